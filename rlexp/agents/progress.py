"""Progress: the iterations, seconds and episodes of an agent, over all processes that ever trained it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rlexp.metrics.windows import EpisodeSummary, EpisodeWindow
from rlexp.rollout.episodes import Episodes


class Progress:
    """Counts what was done, and remembers the newest episodes; part of every checkpoint. Owned by one agent."""

    def __init__(self, smoothing_episodes: int) -> None:
        """Begin now; results are taken over so many episodes."""
        self.iteration = 0
        self.episodes_total = 0
        self._everybody, self._reported = EpisodeWindow(smoothing_episodes), EpisodeWindow(smoothing_episodes)
        self._started_s = time.monotonic()
        self._time_before_s = 0.0

    @property
    def time_total_s(self) -> float:
        """Seconds since the beginning, without those between two processes."""
        return self._time_before_s + time.monotonic() - self._started_s

    def add(self, episodes: Episodes, reported_epsilon: float) -> None:
        """Count episodes that ended; those played with an ε up to ``reported_epsilon`` are reported."""
        reported = episodes.epsilons <= reported_epsilon
        self.episodes_total += len(episodes.returns)
        self._everybody.extend(episodes.returns, episodes.lengths)
        self._reported.extend(episodes.returns[reported], episodes.lengths[reported])

    def summaries(self) -> tuple[EpisodeSummary, EpisodeSummary]:
        """Return the statistics of the newest episodes that are reported, and of the newest ones of all envs."""
        return self._reported.summary(), self._everybody.summary()

    def state(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {
            "iteration": self.iteration,
            "time_total_s": self.time_total_s,
            "episodes_total": self.episodes_total,
            "episodes": {"reported": self._reported.state(), "everybody": self._everybody.state()},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned; older checkpoints have no ``episodes``."""
        self.iteration, self.episodes_total = state["iteration"], state["episodes_total"]
        self._time_before_s = state["time_total_s"]
        if "episodes" in state:
            self._reported.load(state["episodes"]["reported"])
            self._everybody.load(state["episodes"]["everybody"])
