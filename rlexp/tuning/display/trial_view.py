"""What a display knows of one trial: its newest row, its rewards so far and how near its end it is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlexp.config.trial import Trial
from rlexp.tuning.figures import is_known
from rlexp.tuning.recorders import flatten
from rlexp.tuning.run_record import Status

_REWARDS_KEPT: Final = 400
_COUNTERS: Final = ("timesteps_total", "training_iteration", "time_total_s", "episodes_total")


@dataclass(frozen=True)
class Progress:
    """How much of a ``stop`` criterion is reached."""

    metric: str
    goal: float
    share: float
    """0..1."""
    seconds_left: float | None
    """At the speed since the first row; None where that says nothing, as for a reward."""


class TrialView:
    """Owns what is shown of one trial; a display makes one per trial and hands it every row."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.status = Status.PENDING
        self.row: dict[str, Any] = {}
        """The newest row, flat."""
        self.rewards: deque[float] = deque(maxlen=_REWARDS_KEPT)
        self.best_reward: float | None = None
        self._first: dict[str, Any] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Take over a result row."""
        self.status = Status.RUNNING
        self.row = flatten(row)
        self._first = self._first or self.row
        reward = self.row.get("episode_reward_mean")
        if is_known(reward):
            self.rewards.append(reward)
            self.best_reward = reward if self.best_reward is None else max(reward, self.best_reward)

    def progress(self) -> Progress | None:
        """Return the progress of the ``stop`` criterion that is nearest, or None without one or without a row.

        Counters come before rewards: they only grow, so their share can be relied on.
        """
        stop = self.trial.experiment.stop
        candidates = [self._progress(metric, stop[metric]) for metric in _COUNTERS if metric in stop]
        candidates = candidates or [self._progress(metric, goal) for metric, goal in stop.items()]
        known = [candidate for candidate in candidates if candidate is not None]
        return max(known, key=lambda candidate: candidate.share, default=None)

    def _progress(self, metric: str, goal: float) -> Progress | None:
        value, start = self.row.get(metric), self._first.get(metric)
        if not is_known(value):
            return None
        if metric in _COUNTERS:
            share = _share(value, goal)
            return Progress(metric, goal, share, 0.0 if share >= 1 else self._seconds_left(metric, goal - value))
        start = start if is_known(start) else value
        return Progress(metric, goal, _share(value - start, goal - start) if value < goal else 1.0, None)

    def _seconds_left(self, metric: str, missing: float) -> float | None:
        gained = self.row[metric] - self._first[metric]
        seconds = self.row["time_total_s"] - self._first["time_total_s"]
        return missing * seconds / gained if gained > 0 and seconds > 0 else None


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 1.0
