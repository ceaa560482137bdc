"""What a transition takes in full replay, measured on a first batch: how well frames compress, only they can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.envs import EnvConfig, make_vector_env
from rlexp.errors import ResourceError
from rlexp.machine import Machine
from rlexp.machine.fit import frames_per_transition
from rlexp.policy import Weights
from rlexp.replay.storage import FrameStorage
from rlexp.rollout.exploration import ConstantEpsilon
from rlexp.rollout.rollout_config import RolloutConfig
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import OBS, Array, FrameRows, SampleBatch, WrittenRows

NUM_STEPS = 256
"""Steps of the batch: a third of a second of an Atari game."""
BYTES_OF_PRIORITY = 48
"""Bytes of a transition in the sum tree, at most."""
BYTES_BESIDE = BYTES_OF_PRIORITY + 80
"""Bytes of a transition beside its two observations, at most."""


class RandomPolicy:
    """Leaves every action to its worker's ε."""

    def compute_actions(self, obs: Array) -> Array:
        return np.zeros(len(obs), np.int64)

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, None]:
        return self.compute_actions(obs), None

    def outputs(self, obs: Array) -> None:
        return None

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        return None

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        return None


def check_replay_fits(experiment: Experiment, env_config: EnvConfig, observation_bytes: int, machine: Machine) -> None:
    """Raise ResourceError where an experiment's replay, once it is full, takes more memory than the machine has.

    The env is only played where whole observations, of ``observation_bytes`` each, would not fit.
    Raises UsageError where it cannot be made.
    """
    config, memory = experiment.config, machine.memory_total
    if not isinstance(config, DQNConfig) or config.buffer_size * (2 * observation_bytes + BYTES_BESIDE) <= memory:
        return
    each = measured_bytes_per_transition(env_config, config)
    if each * config.buffer_size <= memory:
        return
    needed, has = (f"{number / 2**30:.1f} GiB" for number in (each * config.buffer_size, memory))
    raise ResourceError(
        f"{experiment.name} would need {needed} for replay, {each:,} bytes a transition, this machine has {has}",
        f"-o config.buffer_size={memory // each}",
    )


def measured_bytes_per_transition(env_config: EnvConfig, config: DQNConfig) -> int:
    """Return the bytes of one transition of full replay, after some steps at random."""
    rows = _first_batch(env_config, config)
    if isinstance(rows, SampleBatch):
        return BYTES_OF_PRIORITY + math.ceil(rows.nbytes / len(rows))
    replay = config.replay
    if replay.keeps_whole_observations:
        return BYTES_OF_PRIORITY + rows.stacks().slice(0, 1).nbytes
    storage = FrameStorage(len(rows), config.compress_observations)
    storage.write(0, rows)
    stacked = rows.rows[OBS].shape[1]
    return BYTES_OF_PRIORITY + round(
        storage.nbytes / len(rows) * frames_per_transition(replay, config.sample_batch_size, stacked)
    )


def _first_batch(env_config: EnvConfig, config: DQNConfig) -> SampleBatch | FrameRows:
    rollout = RolloutConfig(
        fragment_length=NUM_STEPS,
        n_step=config.n_step,
        gamma=config.gamma,
        clip_rewards=False,
        batch_mode="truncate_episodes",
        sample_async=False,
        observation_filter=None,
    )
    everything_at_random = ConstantEpsilon((1.0,))
    worker = RolloutWorker(
        partial(make_vector_env, env_config, 1), RandomPolicy, everything_at_random, rollout, worker_index=0, seed=0
    )
    try:
        rows = worker.sample(0)[0]
        assert not isinstance(rows, WrittenRows)  # it shares no memory with replay
        return rows
    finally:
        worker.stop()
