"""The drills by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.drills.scene import Scene

Play = Callable[[Scene], str]
Pace = Literal["fast", "minute", "long"]
"""Seconds, and part of ``make test``; a minute at most; several minutes."""


@dataclass(frozen=True)
class Drill:
    """Something that is broken on purpose."""

    number: int
    """By which it is listed."""
    name: str
    about: str
    pace: Pace
    play: Play
    """Breaks it, checks what comes of it, and returns the evidence; raises DrillError."""


DRILLS: dict[str, Drill] = {}


def drill(number: int, name: str, pace: Pace = "minute") -> Callable[[Play], Play]:
    """Register a function as a drill; its docstring says what it is about."""

    def register(play: Play) -> Play:
        DRILLS[name] = Drill(number, name, (play.__doc__ or "").strip().splitlines()[0], pace, play)
        return play

    return register
