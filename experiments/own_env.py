"""An env of one's own, and callbacks that measure how it is solved: own-env.yaml trains it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlexp.callbacks import Callbacks, EpisodeEnd, EpisodeStart, EpisodeStep

Observation = NDArray[np.float32]


class Parking(gymnasium.Env[Observation, np.int64]):
    """Drive a car along a line and stop it at a place that is drawn anew for each episode.

    Actions: 0 accelerates to the left, 1 coasts, 2 accelerates to the right. Each step costs 0.02, parking pays 1.
    """

    def __init__(self, tolerance: float = 0.1, max_steps: int = 100) -> None:
        self.tolerance, self.max_steps = tolerance, max_steps
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)  # it seeds self.np_random, from which everything random is drawn
        self.distance = float(self.np_random.uniform(-1.0, 1.0))
        self.speed = 0.0
        self.steps = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.speed = 0.95 * self.speed + 0.02 * (int(action) - 1)
        self.distance -= self.speed
        parked = abs(self.distance) < self.tolerance and abs(self.speed) < 0.02
        # terminated: the task has ended. truncated: only the time is over, so the last state keeps a value.
        truncated = not parked and self.steps >= self.max_steps
        return self._observation(), 1.0 if parked else -0.02, parked, truncated, {"parked": parked}

    def _observation(self) -> Observation:
        # Both about as large as 1: networks learn from such inputs best.
        return np.array([self.distance, 10 * self.speed], np.float32)


class ParkingMetrics(Callbacks):
    """Reports how many episodes ended parked, and how often the car drove past the place."""

    EPISODE_METRICS = ("success", "passes")

    def on_episode_start(self, start: EpisodeStart) -> None:
        """Begin to count."""
        start.metrics["passes"] = 0
        start.episode.data["side"] = np.sign(start.obs[0])

    def on_episode_step(self, step: EpisodeStep) -> None:
        """Count a change of side."""
        side = np.sign(step.obs[0])
        step.metrics["passes"] += bool(side != step.episode.data["side"])
        step.episode.data["side"] = side

    def on_episode_end(self, end: EpisodeEnd) -> None:
        """Report whether the car was parked: ``info`` is what the env returned with its last step."""
        end.metrics["success"] = end.info["parked"]
