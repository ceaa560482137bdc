"""Measures the memory of a transition in full replay from a first batch, as frames compress differently."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space

from rlexp.cluster.room.machine import Machine
from rlexp.cluster.room.shortfalls import frames_per_transition
from rlexp.config.keys.common import ReplayNeeds
from rlexp.config.keys.experiment import Experiment
from rlexp.envs.action_masks import MaskedSpace, random_actions
from rlexp.envs.make import make_vector_env, spaces_of
from rlexp.envs.registry import EnvConfig
from rlexp.errors import ResourceError, UsageError
from rlexp.policy import Outputs, Weights
from rlexp.replay.storage import STORAGES
from rlexp.rollout.folds import NStep
from rlexp.rollout.recorder import RolloutConfig
from rlexp.rollout.worker import RolloutWorker, WorkerSpec
from rlexp.sample_batch import FRAME_IDS, MIN_FRAMED_BYTES, Array, FrameRows, SampleBatch, WrittenRows

NUM_STEPS = 256
"""Steps of the batch: a third of a second of an Atari game."""
BYTES_OF_PRIORITY = 48
"""Most bytes of a transition in the sum tree."""
BYTES_BESIDE = BYTES_OF_PRIORITY + 80
"""Most bytes of a transition beside its two observations."""


class RandomPolicy:
    """Acts at random, by the masks of its observations if they have any."""

    postprocess_reads_obs = False

    def __init__(self, action_space: Space[Any], observation_space: Space[Any] | None = None) -> None:
        self._action_space, self._observation_space = action_space, observation_space
        self._action_space.seed(0)

    def compute_actions(self, obs: Array) -> Array:
        space = self._observation_space
        if isinstance(space, MaskedSpace):
            return random_actions(self._action_space, space.choices, space.allowed(obs))
        return np.stack([self._action_space.sample() for _ in obs])

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        return self.compute_actions(obs), {}

    def outputs(self, obs: Array) -> Outputs:
        return {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        return batch

    def set_weights(self, weights: Weights) -> None:
        return None

    def state(self) -> dict[str, Any]:
        return {"rng": self._action_space.np_random.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        self._action_space.np_random.bit_generator.state = state["rng"]


def check_replay_fits(experiment: Experiment, env_config: EnvConfig, observation_bytes: int, machine: Machine) -> None:
    """Raise ResourceError if an experiment's full replay takes more memory than the machine has.

    The env is played only if whole observations, of ``observation_bytes`` each, would not fit. Raises UsageError if it
    cannot be made, or if replay on the learner's device would hold no frames. The trial checks the GPU's memory, on the
    GPU's machine.
    """
    replay, memory = experiment.config.replay, machine.memory_total
    if replay is not None and replay.on_device:
        if observation_bytes < MIN_FRAMED_BYTES:
            message = f"replay_storage: device keeps frames, but an observation is only {observation_bytes:,} bytes"
            raise UsageError(message, "-o config.replay_storage=local, which is as fast for small observations")
        if experiment.config.num_gpus:
            return
    each = bytes_per_transition_above(memory, experiment, env_config, observation_bytes)
    if replay is None or each is None:
        return
    needed, has = (f"{number / 2**30:.1f} GiB" for number in (each * replay.capacity, memory))
    raise ResourceError(
        f"{experiment.name} would need {needed} for replay, {each:,} bytes a transition, this machine has {has}",
        f"-o config.{replay.capacity_key}={memory // each}",
    )


def bytes_per_transition_above(
    limit: int, experiment: Experiment, env_config: EnvConfig, observation_bytes: int
) -> int | None:
    """Return the bytes of a transition if full replay takes more than ``limit`` bytes, else None."""
    replay = experiment.config.replay
    if replay is None or replay.capacity * (2 * observation_bytes + BYTES_BESIDE) <= limit:
        return None
    each = measured_bytes_per_transition(env_config, replay, experiment.config.fragment_length)
    return each if each * replay.capacity > limit else None


def measured_bytes_per_transition(env_config: EnvConfig, replay: ReplayNeeds, fragment_length: int) -> int:
    """Return the bytes of one transition of full replay, measured over some random steps."""
    rows = _first_batch(env_config, replay.n_step)
    if isinstance(rows, SampleBatch):
        return BYTES_OF_PRIORITY + math.ceil(rows.nbytes / len(rows))
    if replay.keeps_whole_observations:
        return BYTES_OF_PRIORITY + rows.stacks().slice(0, 1).nbytes
    storage = STORAGES[replay.storage](len(rows))
    storage.write(0, rows)
    stacked = rows.rows[FRAME_IDS].shape[1]
    return BYTES_OF_PRIORITY + round(
        storage.nbytes / len(rows) * frames_per_transition(replay, fragment_length, stacked)
    )


def _first_batch(env_config: EnvConfig, n_step: int) -> SampleBatch | FrameRows:
    observation_space, action_space = spaces_of(env_config)
    rollout = RolloutConfig(
        fragment_length=NUM_STEPS, clip_rewards=False, batch_mode="truncate_episodes", sample_async=False
    )
    worker = RolloutWorker(
        WorkerSpec(
            index=0,
            seed=0,
            make_env=partial(make_vector_env, env_config, 1),
            make_policy=partial(RandomPolicy, action_space, observation_space),
            fold=NStep(n_step, gamma=1.0),
            rollout=rollout,
        )
    )
    try:
        rows = worker.sample(0)[0]
        assert not isinstance(rows, WrittenRows)  # it shares no memory with replay
        return rows
    finally:
        worker.stop()
