"""The errors of the process that trains, as JSON and as exceptions of the program again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rlexp import errors
from rlexp.errors import ConfigError, Problem, ResourceError, RlexpError

_CLASSES: Final[Mapping[str, type[RlexpError]]] = {
    cls.__name__: cls
    for cls in (
        RlexpError,
        errors.UsageError,
        errors.ResumeError,
        errors.CheckpointError,
        errors.TrialError,
        errors.EnvError,
        errors.NotFiniteError,
    )
}
"""Those that are made of a message and a hint."""


def described(error: RlexpError) -> dict[str, Any]:
    """Return what ``reported`` makes an error of the same class of, or of the nearest class that programs know."""
    return {
        "classes": [cls.__name__ for cls in type(error).__mro__],
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "problems": [[problem.where, problem.message, problem.hint] for problem in error.problems],
    }


def reported(description: Mapping[str, Any]) -> RlexpError:
    """Return the error that ``described`` has described."""
    message, hint, names = description["message"], description["hint"], description["classes"]
    problems = [Problem(*problem) for problem in description["problems"]]
    if ConfigError.__name__ in names:
        return ConfigError(problems)
    if ResourceError.__name__ in names:
        return ResourceError(message, hint, problems[1:])
    error = _CLASSES[next(name for name in names if name in _CLASSES)](message, hint)
    error.exit_code = description["exit_code"]
    return error
