"""Policies whose every choice is known beforehand."""

from __future__ import annotations

import numpy as np

from rlexp.policy import Weights
from rlexp.sample_batch import OBS, TD_ERRORS, Array, SampleBatch


class StepPolicy:
    """Acts with the step that a CountingEnv shows, and remembers what it was given."""

    def __init__(self) -> None:
        self.weights_given: list[Weights] = []

    def compute_actions(self, obs: Array) -> Array:
        return obs[:, 2].astype(np.int64)

    def sample_actions(self, obs: Array, rng: np.random.Generator) -> Array:
        return self.compute_actions(obs)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(**{TD_ERRORS: batch[OBS][:, 2]})

    def set_weights(self, weights: Weights) -> None:
        self.weights_given.append(weights)


class ZeroPolicy:
    """Acts with 0, whatever it sees."""

    def compute_actions(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def sample_actions(self, obs: Array, rng: np.random.Generator) -> Array:
        return self.compute_actions(obs)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        return None
