"""The drills by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.drills.scene import Scene

Play = Callable[[Scene], str]


@dataclass(frozen=True)
class Drill:
    """Something that is broken on purpose."""

    number: int
    """In the design's list."""
    name: str
    about: str
    fast: bool
    play: Play
    """Breaks it, checks what comes of it, and returns the evidence; raises DrillError."""


DRILLS: dict[str, Drill] = {}


def drill(number: int, name: str, fast: bool = False) -> Callable[[Play], Play]:
    """Register a function as a drill; its docstring says what it is about."""

    def register(play: Play) -> Play:
        DRILLS[name] = Drill(number, name, (play.__doc__ or "").strip().splitlines()[0], fast, play)
        return play

    return register
