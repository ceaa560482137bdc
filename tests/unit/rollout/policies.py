"""Policies whose every choice is known beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.policy import Weights
from rlexp.sample_batch import NEW_OBS, NEW_OUTPUTS, OBS, OUTPUTS, TD_ERRORS, Array, SampleBatch


class StepPolicy:
    """Acts with the step that a CountingEnv shows, and remembers what it was given.

    What it sees in an observation is twice the observation, and it wants to be told so of every row.
    """

    def __init__(self) -> None:
        self.weights_given: list[Weights] = []

    def compute_actions(self, obs: Array) -> Array:
        return obs[:, 2].astype(np.int64)

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        return self.compute_actions(obs), 2 * obs

    def outputs(self, obs: Array) -> Array | None:
        return 2 * obs

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        assert (batch[OUTPUTS] == 2 * batch[OBS]).all()
        assert (batch[NEW_OUTPUTS] == 2 * batch[NEW_OBS]).all()
        kept = {name: column for name, column in batch.columns.items() if name not in {OUTPUTS, NEW_OUTPUTS}}
        return SampleBatch({**kept, TD_ERRORS: batch[OBS][:, 2]})

    def set_weights(self, weights: Weights) -> None:
        self.weights_given.append(weights)

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        return None


class ZeroPolicy:
    """Acts with 0, whatever it sees."""

    def compute_actions(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        return self.compute_actions(obs), None

    def outputs(self, obs: Array) -> Array | None:
        return None

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        return None
