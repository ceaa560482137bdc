"""The double of a Policy, and what tests let it see; Ray's workers import it from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.agents.dqn.exploration import EpsilonGreedy, PolicyExploration
from rlexp.policy import Outputs, Weights
from rlexp.rollout.folds import VF_PREDS
from rlexp.sample_batch import NEW_OBS, OBS, TD_ERRORS, Array, SampleBatch, new

NUM_ACTIONS = 1000
"""Of a CountingEnv."""
SEEN = "seen"
"""The output of a StepPolicy."""
VERSION = "version"
"""The output of a VersionPolicy: the weights that acted."""


class ScriptedPolicy:
    """Acts with 0, or at random where ``exploration`` says so by its ε; remembers what it was given."""

    postprocess_reads_obs = False

    def __init__(self, exploration: PolicyExploration | None = None) -> None:
        self.weights_given: list[Weights] = []
        self.acts: list[tuple[int, list[bool]]] = []
        """The clock of each act, and which envs reset."""
        self._schedule = None if exploration is None else exploration.epsilon
        if exploration is not None:
            rng = np.random.default_rng(exploration.seed_of("epsilon"))
            self._epsilon_greedy = EpsilonGreedy(len(exploration.epsilon.epsilons(0)), NUM_ACTIONS, rng)

    def compute_actions(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        self.acts.append((num_steps_sampled, resetting.tolist()))
        actions = self.compute_actions(obs)
        if self._schedule is not None:
            actions = self._epsilon_greedy(actions, self._schedule.epsilons(num_steps_sampled))
        return actions, self.outputs(obs)

    def outputs(self, obs: Array) -> Outputs:
        return {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        self.weights_given.append(weights)

    def state(self) -> dict[str, Any]:
        return {} if self._schedule is None else self._epsilon_greedy.state()

    def load(self, state: Mapping[str, Any]) -> None:
        if self._schedule is not None:
            self._epsilon_greedy.load(state)


class StepPolicy(ScriptedPolicy):
    """Acts with the step that a CountingEnv shows; its output is twice the observation, and its TD error the step."""

    postprocess_reads_obs = True

    def compute_actions(self, obs: Array) -> Array:
        return obs[:, 2].astype(np.int64)

    def outputs(self, obs: Array) -> Outputs:
        return {SEEN: 2 * obs}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        assert (batch[SEEN] == 2 * batch[OBS]).all()
        assert (batch[new(SEEN)] == 2 * batch[NEW_OBS]).all()
        return without(batch, SEEN, new(SEEN)).with_columns(**{TD_ERRORS: batch[OBS][:, 2]})


class CountingPolicy(ScriptedPolicy):
    """A row's first TD error is a number of its own; the weights are a version, which must grow."""

    postprocess_reads_obs = True
    version = -1.0

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch.with_columns(**{TD_ERRORS: own_number(batch[OBS])})

    def set_weights(self, weights: Weights) -> None:
        assert weights["version"] > self.version, "weights went back in time"
        self.version = float(weights["version"])


class VersionPolicy(ScriptedPolicy):
    """Values an observation of a CountingEnv by its step; says which weights it has."""

    version = -1

    def outputs(self, obs: Array) -> Outputs:
        return {VF_PREDS: obs[:, 2], VERSION: np.full(len(obs), self.version)}

    def set_weights(self, weights: Weights) -> None:
        assert weights["version"] > self.version, "weights went back in time"
        self.version = int(weights["version"])


def own_number(obs: Array) -> Array:
    """Return a number for each row that depends on which one it is."""
    number: Array = 1 + obs[:, 0] % 7 + obs[:, 1] % 5 + obs[:, 2]
    return number


def without(batch: SampleBatch, *names: str) -> SampleBatch:
    """Return ``batch`` without the columns ``names``."""
    return SampleBatch({name: column for name, column in batch.columns.items() if name not in names})
