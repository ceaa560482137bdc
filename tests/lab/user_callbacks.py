"""Callbacks of tests, and what they were told: every call of this process, in order."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlexp.callbacks import Callbacks, EpisodeEnd, EpisodeStart, EpisodeStep, IterationEnd, SavedCheckpoint
from rlexp.config.keys.user_code import UserPart
from rlexp.rollout.user_callbacks import CallbackClasses

MODULE = "tests.lab.user_callbacks"
RECORDER = f"{MODULE}:Recorder"
SUCCESS_RATE = f"{MODULE}:SuccessRate"
GOAL_ENV = f"{MODULE}:GoalEnv"

CALLS: list[tuple[str, Any]] = []
"""Names of hooks, and what they were given."""


class Recorder(Callbacks):
    """Remembers what every hook is given; counts an episode's steps in its data, and reports them."""

    def on_episode_start(self, start: EpisodeStart) -> None:
        start.episode.data["steps"] = np.int64(0)  # as sums of what envs return are
        start.metrics["begun"] = np.bool_(True)
        CALLS.append(("start", start))

    def on_episode_step(self, step: EpisodeStep) -> None:
        step.episode.data["steps"] += 1
        CALLS.append(("step", step))

    def on_episode_end(self, end: EpisodeEnd) -> None:
        end.metrics["steps"] = end.episode.data["steps"]
        CALLS.append(("end", end))

    def on_iteration(self, iteration: IterationEnd) -> None:
        CALLS.append(("iteration", iteration))

    def on_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        CALLS.append(("checkpoint", checkpoint))


class SuccessRate(Callbacks):
    """Declares what it reports of GoalEnv; ``bonus`` is reported by iterations; counts these in its state."""

    EPISODE_METRICS: ClassVar[tuple[str, ...]] = ("success", "length")

    def __init__(self, bonus: float = 0.0) -> None:
        self._bonus = bonus
        self._num_iterations = 0

    def on_episode_end(self, end: EpisodeEnd) -> None:
        end.metrics["success"] = end.info["is_success"]
        end.metrics["length"] = end.length

    def on_iteration(self, iteration: IterationEnd) -> None:
        self._num_iterations += 1
        iteration.metrics["bonus"] = self._bonus
        iteration.metrics["iterations"] = self._num_iterations

    def state(self) -> dict[str, Any]:
        return {"num_iterations": np.int64(self._num_iterations)}

    def load(self, state: dict[str, Any]) -> None:
        self._num_iterations = state["num_iterations"]


class Ends(Callbacks):
    """Has a hook for the end of episodes only."""

    def on_episode_end(self, end: EpisodeEnd) -> None:
        end.metrics["ended"] = 1


class CountsEnds(Callbacks):
    """Counts the ends of episodes in its state, and reports the count."""

    def __init__(self) -> None:
        self._num_ends = 0

    def on_episode_end(self, end: EpisodeEnd) -> None:
        self._num_ends += 1
        end.metrics["ends"] = self._num_ends

    def state(self) -> dict[str, Any]:
        return {"num_ends": self._num_ends}

    def load(self, state: dict[str, Any]) -> None:
        self._num_ends = state["num_ends"]


class Fails(Callbacks):
    """Raises in a hook; ``hook`` is its name."""

    def __init__(self, hook: str) -> None:
        self._hook = hook

    def on_episode_start(self, start: EpisodeStart) -> None:
        self._fail("on_episode_start")

    def on_episode_step(self, step: EpisodeStep) -> None:
        self._fail("on_episode_step")

    def on_episode_end(self, end: EpisodeEnd) -> None:
        self._fail("on_episode_end")

    def on_iteration(self, iteration: IterationEnd) -> None:
        self._fail("on_iteration")

    def _fail(self, hook: str) -> None:
        if hook == self._hook:
            raise KeyError("is_success")


class Reports(Callbacks):
    """Reports ``value`` as ``metric`` at the end of each episode."""

    def __init__(self, metric: Any, value: Any) -> None:
        self._metric, self._value = metric, value

    def on_episode_end(self, end: EpisodeEnd) -> None:
        end.metrics[self._metric] = self._value


class ReportsIterations(Callbacks):
    """Reports ``number`` metrics, the first as ``prefix`` alone; each iteration has names of its own for the others."""

    def __init__(self, prefix: str, number: int) -> None:
        self._prefix, self._number = prefix, number

    def on_iteration(self, iteration: IterationEnd) -> None:
        iteration.metrics[self._prefix] = 1
        for index in range(1, self._number):
            iteration.metrics[f"{self._prefix}-{iteration.row['training_iteration']}-{index}"] = index


class Undeclared(SuccessRate):
    """Reports more than it declares."""

    def on_episode_end(self, end: EpisodeEnd) -> None:
        super().on_episode_end(end)
        end.metrics["sucess"] = 1


class GoalEnv(gym.Env[Any, Any]):
    """Four steps an episode; those of every other one are a success, which pays 1 at the end."""

    STEPS = 4

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)
        self._episode = -1
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._step = 0
        return np.zeros(1, np.float32), {"level": self._episode}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        ended, succeeds = self._step == self.STEPS, self._episode % 2 == 1
        info = {"is_success": ended and succeeds, "nested": {"step": self._step}}
        return np.zeros(1, np.float32), float(ended and succeeds), ended, False, info


def classes_of(*names: str, **kwargs: Any) -> CallbackClasses:
    """Return classes of this module, each made with ``kwargs``."""
    return CallbackClasses(tuple(UserPart("config.callbacks", f"{MODULE}:{name}", kwargs) for name in names))


def calls_of(hook: str) -> list[Any]:
    """Return what one hook was given, in order."""
    return [moment for name, moment in CALLS if name == hook]
