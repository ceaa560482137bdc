"""KeeperLink: how a trial's process calls the Keeper, which may be on another machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from rlexp.errors import TrialError
from rlexp.runs.files.keeper import Keeper

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class KeeperLostError(TrialError):
    """The Keeper has died or cannot be reached, so that the trial can keep nothing."""


class Answer(Protocol[T_co]):
    """What the Keeper answers, now or later."""

    def is_ready(self) -> bool:
        """Return whether ``get`` would return at once; never waits."""

    def get(self) -> T_co:
        """Wait for the answer; raises what the call raised, KeeperLostError where there is none in time."""


class KeeperLink(Protocol):
    """Calls functions of one Keeper; those that ``watches`` arrive in the order of the calls."""

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a call that reads or writes files; calls of one process may overtake each other if not waited for."""

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a call that takes no time, such as a phase or a look; in order, and not behind large files."""
