"""The exceptions that a user can meet; each class has the exit code of a command that ends with it.

::

    RlexpError (1)
    ├── UsageError (2)           the user's file or flags are wrong; nothing was created
    │   └── ConfigError          one or more problems in an experiment file, each with its place
    ├── ResumeError (3)          a run that is damaged, foreign or locked
    │   └── CheckpointError      a checkpoint that is missing or of another format
    │       └── DamagedCheckpointError
    ├── ResourceError (4)        this machine or cluster cannot hold the experiment
    ├── RayStoppedError (5)      Ray was lost while trials ran (in ``rlexp.cluster.session``)
    └── TrialError (1)           a trial failed while it ran
        ├── EnvError             its env raised, or returned something that Gymnasium does not allow
        ├── CallbackError        its callbacks raised, or reported a metric that is not a number
        └── NotFiniteError       a network's outputs are NaN or infinite
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One problem in an experiment file: its place, a description, and a remedy."""

    where: str
    """``file:line:column``, ``-o key=value``, the file alone, or empty without a file."""
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        """Return it with its hint, which is on a line of its own."""
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{self.where}  {self.message}".lstrip() + hint


@dataclass(frozen=True)
class Notice:
    """A note about an experiment file for its user that is not an error."""

    where: str
    message: str


class RlexpError(Exception):
    """An error that the user can correct; printed as ``error:`` and ``hint:`` lines without a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors come from other processes too, and ``__init__`` of some has other arguments than ``args``."""
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, one ``error:`` line each."""
        return (Problem("", self.message, self.hint),)


class UsageError(RlexpError):
    """Raised if the user's file or flags are wrong; nothing was created."""

    exit_code = 2


class ConfigError(UsageError):
    """Raised with all problems of the experiment files, in the order of the files."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{problem.where}  {problem.message}" for problem in problems))
        self._problems = tuple(problems)

    def __str__(self) -> str:
        """Return every problem with its hint: what a traceback ends with."""
        return "\n".join(map(str, self._problems))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems, in the order of the files."""
        return self._problems


class ResumeError(RlexpError):
    """Raised for a run directory that cannot be continued: damaged, foreign or locked."""

    exit_code = 3


class CheckpointError(ResumeError):
    """Raised for a checkpoint that is missing, damaged or of a format that this version does not read."""


class DamagedCheckpointError(CheckpointError):
    """Raised for a checkpoint that was cut short or changed after it was written."""

    def __init__(self, checkpoint: object, what: str) -> None:
        """Initialise; ``what`` names the file and its defect."""
        super().__init__(
            f"checkpoint {checkpoint} is damaged ({what})",
            "it was cut short or changed after it was written; use an earlier checkpoint of the trial",
        )
        self.what = what


class ResourceError(RlexpError):
    """Raised if the machine or the cluster cannot hold the experiment."""

    exit_code = 4

    def __init__(self, message: str, hint: str | None = None, more: Sequence[Problem] = ()) -> None:
        super().__init__(message, hint)
        self._more = tuple(more)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The missing resources, one problem per experiment."""
        return (*super().problems, *self._more)


class TrialError(RlexpError):
    """Raised if a trial failed while it ran."""


class EnvError(TrialError):
    """Raised for an exception or an invalid result of an env; names the env and the line."""


class CallbackError(TrialError):
    """Raised if the user's callbacks raised, or reported a metric that is not a number; names class, hook and line."""


class NotFiniteError(TrialError):
    """Raised if a network's outputs are NaN or infinite, so that no action is better than another."""
