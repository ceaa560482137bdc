"""The two protocols of an algorithm: a Policy acts on the rollout workers, a Learner learns beside the replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlexp.sample_batch import Array, SampleBatch

Weights = Mapping[str, Array]
"""A network's parameters by name, as plain arrays: what travels from the learner to the workers."""


@dataclass(frozen=True)
class LearnResult:
    """What one update tells the rest of the pipeline."""

    td_errors: Array
    """Absolute TD errors ``[B]`` of the batch's rows, measured before the update: their new priorities."""
    stats: Mapping[str, float]
    """Figures for the results, such as ``loss`` and ``grad_norm``."""


class Policy(Protocol):
    """Chooses actions; owned by a rollout worker (or an evaluation), never shared between threads."""

    def compute_actions(self, obs: Array) -> Array:
        """Return the greedy actions ``[B]`` for observations ``obs [B, ...]``."""
        ...

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        """Return the actions ``[B]`` that the policy explores with by itself: drawn from its values, or with noise.

        ``epsilons [B]`` is how much the worker explores; the envs ``resetting [B]`` begin an episode instead of
        acting. A policy that leaves exploration to its worker's ε returns the greedy actions.

        With them comes what ``postprocess`` wants to know of ``obs`` again, such as values ``[B, A]``: it finds
        them as OUTPUTS and NEW_OUTPUTS of its rows. None where it wants nothing.
        """
        ...

    def outputs(self, obs: Array) -> Array | None:
        """Return the second part of ``sample_actions`` for observations that nobody acts on yet."""
        ...

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add what the learner's side wants from the worker, such as TD errors for initial priorities."""
        ...

    def set_weights(self, weights: Weights) -> None:
        """Act with these weights from now on."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what it acts by beside weights, such as noise: arrays, and values for JSON, by name."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what the ``state`` of a policy like this one returned; it has its weights already."""
        ...


class Learner(Protocol):
    """Updates the weights; owned by one thread at a time."""

    @property
    def num_updates(self) -> int:
        """SGD steps done, the version of the weights."""
        ...

    @property
    def num_target_updates(self) -> int:
        """How often the target network was replaced."""
        ...

    def observe_progress(self, num_steps_sampled: int) -> None:
        """Tell the env steps sampled so far, the clock of schedules; may come from another thread."""
        ...

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Do one SGD step on ``batch``."""
        ...

    def get_weights(self) -> Weights:
        """Return a copy of the acting network's weights."""
        ...

    def state_dict(self) -> Mapping[str, Array]:
        """Return everything that a checkpoint must hold to continue bit by bit."""
        ...

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state_dict`` returned."""
        ...
