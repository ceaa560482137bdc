"""How workers explore with a policy network: they add noise to its actions, or draw actions from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rlexp.models.action_distributions import (
    CategoricalActions,
    PlainActions,
    SquashedActions,
    SquashedGaussianActions,
)
from rlexp.models.network_config import MASKED
from rlexp.sample_batch import Array
from rlexp.schedules import LinearSchedule, derive_seed

PolicyActions = PlainActions | CategoricalActions
"""The actions that a policy network's inputs describe."""
RANGE = 2.0
"""From -1 to 1, the numbers that a policy network's actions have."""


class ActionExplorer(Protocol):
    """Chooses a worker's actions; owned by its policy."""

    def choose(self, inputs: Array, resetting: Array, num_steps_sampled: int) -> Array:
        """Return actions ``[M, *shape]`` for ``inputs [M, K]``; envs ``resetting [M]`` start an episode."""

    def start_episodes(self, starting: Array) -> None:
        """Let the next actions of the envs ``starting [M]`` be the first ones of an episode."""

    def state(self) -> dict[str, Any]:
        """Return its random stream and processes."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""


@dataclass(frozen=True)
class Exploration:
    """How the policy of one worker explores: by drawing actions."""

    seed: int
    random_timesteps: int
    """Env steps of all workers before which actions are uniformly random."""

    def reseeded(self, attempt: int) -> Exploration:
        """Return the exploration of the worker's replacement, with a random stream of its own."""
        return replace(self, seed=derive_seed(self.seed, "attempt", attempt))

    def explorer(self, actions: PolicyActions) -> ActionExplorer:
        """Return what explores in this way."""
        assert isinstance(actions, SquashedGaussianActions | CategoricalActions)
        return DrawnActions(self, actions)


@dataclass(frozen=True)
class NoiseExploration(Exploration):
    """Noise on the actions of a deterministic policy, in the unit of half their range.

    Ornstein-Uhlenbeck noise is ``RANGE base x`` with ``x <- x - theta x + sigma N(0, 1)``, from 0 at each start of an
    episode (Lillicrap et al. 2016, section 7). Gaussian noise is ``sigma N(0, 1)`` (Fujimoto et al. 2018, section 6.1).
    Both are multiplied by ``scale``.
    """

    scale: LinearSchedule
    """Over the env steps of all workers, after the random ones."""
    sigma: float
    base: float | None
    """None: Gaussian noise."""
    theta: float = 0.15

    def scale_at(self, num_steps_sampled: int) -> float:
        """Return the scale after all workers together have sampled so many env steps."""
        return self.scale.value(max(num_steps_sampled - self.random_timesteps, 0))

    def explorer(self, actions: PolicyActions) -> ActionExplorer:
        assert isinstance(actions, SquashedActions)
        return NoisyActions(self, actions)


class NoisyActions:
    """An ActionExplorer that adds noise."""

    def __init__(self, exploration: NoiseExploration, actions: SquashedActions) -> None:
        self._exploration, self._actions = exploration, actions
        self._rng = np.random.default_rng(exploration.seed)
        self._levels = np.zeros((0, actions.num_numbers), np.float32)
        """The level of each row, from the first step on: an env of several agents has several rows."""

    def choose(self, inputs: Array, resetting: Array, num_steps_sampled: int) -> Array:
        if num_steps_sampled < self._exploration.random_timesteps:
            return self._actions.uniform(len(inputs), self._rng)
        noise = self._noise(resetting) * np.float32(self._exploration.scale_at(num_steps_sampled))
        return self._actions.shaped(np.clip(np.tanh(inputs) + noise, -1.0, 1.0))

    def start_episodes(self, starting: Array) -> None:
        if len(self._levels):
            self._levels[starting] = 0.0

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "levels": self._levels.copy()}

    def load(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._levels = state["levels"].copy()

    def _noise(self, resetting: Array) -> Array:
        """Return the noise of each env ``[M, D]`` before it is scaled."""
        exploration = self._exploration
        if not len(self._levels):
            self._levels = np.zeros((len(resetting), self._levels.shape[1]), np.float32)
        drawn = self._rng.standard_normal(self._levels.shape, np.float32) * np.float32(exploration.sigma)
        if exploration.base is None:
            return drawn
        self._levels += drawn - np.float32(exploration.theta) * self._levels
        self.start_episodes(resetting)  # what was drawn for a reset is not played
        return self._levels * np.float32(RANGE * exploration.base)


class DrawnActions:
    """An ActionExplorer that draws actions from the policy's distribution."""

    def __init__(self, exploration: Exploration, actions: SquashedGaussianActions | CategoricalActions) -> None:
        self._random_timesteps, self._actions = exploration.random_timesteps, actions
        self._rng = np.random.default_rng(exploration.seed)

    def choose(self, inputs: Array, resetting: Array, num_steps_sampled: int) -> Array:
        if num_steps_sampled >= self._random_timesteps:
            return self._actions.draw(inputs, self._rng)
        allowed = inputs != np.float32(MASKED)
        if isinstance(self._actions, CategoricalActions) and not allowed.all():
            return self._actions.uniform_among(allowed, self._rng)
        return self._actions.uniform(len(inputs), self._rng)

    def start_episodes(self, starting: Array) -> None:
        """Do nothing: actions are drawn anew at each step."""

    def state(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
