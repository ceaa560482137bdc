"""A Keeper that is called in this process, and breaks where a test asks for it.

What may happen to a directory that is in use.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from rlexp.runs.keeper import Answer, Keeper, KeeperLostError


def deleted(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replaced(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()  # which gets the same inode on some file systems, unless the first one is kept open


LOSSES = pytest.mark.parametrize("lose", [deleted, moved, replaced])
Lose = Callable[[Path], None]

P = ParamSpec("P")
T = TypeVar("T")


class InlineAnswer(Answer[T]):
    """An answer, or an error, that is there at once, unless it is held back."""

    def __init__(self, link: InlineLink, call: Callable[[], T]) -> None:
        self._link = link
        self._call = call

    def is_ready(self) -> bool:
        return not self._link.is_held

    def get(self) -> T:
        return self._call()


class InlineLink:
    """Calls a Keeper directly; counts the calls and can change pieces, or lose the Keeper after some calls."""

    def __init__(self, keeper: Keeper, calls_until_lost: int = 10**9) -> None:
        self.keeper = keeper
        self.is_held = False
        self.calls: list[str] = []
        self.change: Callable[[bytes], bytes] = bytes
        self._calls_until_lost = calls_until_lost

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        self.calls.append(function.__name__)
        if len(self.calls) > self._calls_until_lost:
            return InlineAnswer(self, self._lost)
        changed: Any = [self.change(each) if isinstance(each, bytes) else each for each in args]
        return InlineAnswer(self, lambda: function(self.keeper, *changed, **named))

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        self.calls.append(function.__name__)
        answer = function(self.keeper, *args, **named)
        return InlineAnswer(self, lambda: answer)

    def _lost(self) -> Any:
        raise KeeperLostError("the Keeper is lost: its process cannot be reached")
