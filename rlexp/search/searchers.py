"""Searchers: suggest the next configuration, and learn from the outcomes of those that were tried."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rlexp.config.sweep import Point, Sweep
from rlexp.search.optuna_sampler import require_sampler
from rlexp.search.optuna_searcher import OptunaSearcher
from rlexp.search.outcome import Outcome
from rlexp.search.shared_study import StudyMember, require_study


class Searcher(Protocol):
    """Chooses points, one configuration after the other."""

    def suggest(self, configuration: int) -> Point | None:
        """Return the point of a configuration, the next one each time; None when every point was tried."""

    def restore(self, configuration: int, point: Point) -> None:
        """Record that a point was suggested before the sweep was resumed; called in place of ``suggest``."""

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Record the outcome of a configuration."""

    def keep_alive(self) -> None:
        """Called while the sweep runs, a few times a minute: a study that others use must know that it does."""

    def drain_notes(self) -> list[str]:
        """Return what happened since the last call and a user should know, a sentence each."""


class PlannedSearcher:
    """``grid`` and ``random``: the points are known beforehand, and nothing is learned from them."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = deque(points)

    def suggest(self, configuration: int) -> Point | None:
        return self._points.popleft() if self._points else None

    def restore(self, configuration: int, point: Point) -> None:
        self.suggest(configuration)

    def record(self, configuration: int, outcome: Outcome) -> None:
        return None

    def keep_alive(self) -> None:
        return None

    def drain_notes(self) -> list[str]:
        return []


def require_searcher(sweep: Sweep, folder: Path) -> None:
    """Raise UsageError or ConfigError where the searcher of a sweep could not begin; ``folder`` is for its storage."""
    require_sampler(sweep)
    require_study(sweep, folder)


def make_searcher(sweep: Sweep, member: StudyMember | None = None) -> Searcher:
    """Return the searcher of a sweep; ``member`` is the sweep as a study in a storage knows it."""
    points = sweep.planned_points()
    return OptunaSearcher(sweep, member) if points is None else PlannedSearcher(points)
