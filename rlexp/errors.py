"""The exceptions a user can meet; each class knows the exit code that it ends a command with.

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
        ├── CallbackError        its callbacks raised, or reported a metric that is no number
        └── NotFiniteError       a network's outputs are NaN or infinite
"""

from __future__ import annotations

import copyreg
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing wrong in an experiment file: where, what, and what to do."""

    where: str
    """``file:line:column``, ``-o key=value``, the file alone, or empty where no file is to blame."""
    message: str
    hint: str | None = None


@dataclass(frozen=True)
class Notice:
    """Something in an experiment file that is no error, but that its user should know."""

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
        """Errors come from other processes too; ``__init__`` of some has other arguments than ``args``."""
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything wrong, one ``error:`` line each."""
        return (Problem("", self.message, self.hint),)


class UsageError(RlexpError):
    """The user's file or flags are wrong; nothing was created."""

    exit_code = 2


class ConfigError(UsageError):
    """Every problem that was found in the experiment files, in the order of the files."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"{problem.where}  {problem.message}" for problem in problems))
        self._problems = tuple(problems)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything wrong, in the order of the files."""
        return self._problems


class ResumeError(RlexpError):
    """A run directory that cannot be continued: damaged, foreign or locked."""

    exit_code = 3


class CheckpointError(ResumeError):
    """A checkpoint that is missing, damaged or of a format this version does not read."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was cut short or changed after it was written."""

    def __init__(self, checkpoint: object, what: str) -> None:
        """``what`` names the file and what is wrong with it."""
        super().__init__(
            f"checkpoint {checkpoint} is damaged ({what})",
            "it was cut short or changed after it was written; use an earlier checkpoint of the trial",
        )
        self.what = what


class ResourceError(RlexpError):
    """The machine, or the cluster, cannot hold the experiment."""

    exit_code = 4

    def __init__(self, message: str, hint: str | None = None, more: Sequence[Problem] = ()) -> None:
        super().__init__(message, hint)
        self._more = tuple(more)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What does not fit, one problem an experiment."""
        return (*super().problems, *self._more)


class TrialError(RlexpError):
    """A trial failed while it ran."""


class EnvError(TrialError):
    """An env raised, or returned something that Gymnasium does not allow; names the env and the line."""


class CallbackError(TrialError):
    """The user's callbacks raised, or reported a metric that is no number; names class, hook and line."""


class NotFiniteError(TrialError):
    """The outputs of a network are NaN or infinite, so that no action is better than another."""
