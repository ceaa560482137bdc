"""Agents in one thread on envs whose every step is known, to see what reaches their workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlexp.agents.agent import Agent
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.cluster.pool import Actor, InlineTaskPool, Resources, TaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.policy import Weights
from rlexp.rollout.filters import LARGEST_DEVIATION
from rlexp.rollout.fragment import SampleInfo
from rlexp.runs.checkpoints import Checkpoint
from rlexp.sample_batch import OBS, Array, SampleBatch, SentRows
from tests.envs import COUNTING_ENV
from tests.sent_rows import whole

NUM_ENVS = 2
SMALL: Mapping[str, Any] = {
    "model": ModelConfig(fcnet_hiddens=(8,)),
    "hiddens": (8,),
    "num_envs_per_worker": NUM_ENVS,
    "sample_batch_size": 10,
    "buffer_size": 1000,
    "learning_starts": 32,
    "timesteps_per_iteration": 60,
    "min_iter_time_s": 0.0,
}


class PlacementPool(InlineTaskPool):
    """An inline pool that remembers what each actor reserved; None: it was to stay in this process."""

    def __init__(self) -> None:
        self.placed: dict[str, Resources | None] = {}

    def place(
        self, name: str, resources: Resources | None, make: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Actor[Any]:
        self.placed[name] = resources
        return super().place(name, resources, make, *args, **kwargs)


def make_agent(
    env: str = COUNTING_ENV, checkpoint: Checkpoint | None = None, pool: TaskPool | None = None, **changes: Any
) -> DQNAgent[DQNConfig]:
    return DQNAgent(env, DQNConfig(**{**SMALL, **changes}), pool or PlacementPool(), 0, checkpoint)


def weights_of(agent: Agent[Any]) -> Weights:
    """Return a copy of the learner's weights."""
    with agent.optimizer.paused() as learner:
        return learner.get_weights()


def poll(agent: Agent[Any], num_steps_sampled: int = 0) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return the next sample of each of the agent's workers, which send whole observations."""
    return [(whole(sent), info) for sent, info in poll_sent(agent, num_steps_sampled)]


def poll_sent(agent: Agent[Any], num_steps_sampled: int = 0) -> list[tuple[SentRows, SampleInfo]]:
    """Return the next sample of each of the agent's workers, in the form in which it was sent."""
    samples = agent.source.poll(num_steps_sampled) or agent.source.poll(num_steps_sampled)
    return [(agent.pool.get(sample.batch, 1.0), sample.info) for sample in samples]


def sample(polls: int, env: str = COUNTING_ENV, **changes: Any) -> list[tuple[SampleBatch, SampleInfo]]:
    """Return what the workers of a new agent deliver."""
    agent = make_agent(env, **changes)
    try:
        return [delivered for _ in range(polls) for delivered in poll(agent)]
    finally:
        agent.stop()


def rows(samples: list[tuple[SampleBatch, SampleInfo]], column: str = OBS) -> Array:
    return np.concatenate([batch[column] for batch, _ in samples])


def standardised(observations: Array, seen: Array) -> Array:
    """Return observations in deviations from the mean of everything in ``seen [N, D]``."""
    seen = seen.astype(np.float64)
    scale = seen.std(axis=0, ddof=1) + 1e-8
    deviations: Array = (observations - seen.mean(axis=0)) / scale
    return deviations.clip(-LARGEST_DEVIATION, LARGEST_DEVIATION)


def endless_observations(env_ids: Array, last_step: int) -> Array:
    """Return what the envs have shown up to a step, in any order."""
    return np.array([(env_id, 0, step) for env_id in env_ids for step in range(last_step + 1)])
