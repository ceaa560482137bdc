"""The first hop of the data: steps envs with a policy and turns the steps into transitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.policy import Policy, Weights
from rlexp.rollout.exploration import EpsilonSchedule, explore
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.n_step import NStepAccumulator
from rlexp.sample_batch import Array, SampleBatch
from rlexp.seeding import derive_seed

MakeVectorEnv = Callable[[], "VectorEnv[Any, Any, Any]"]
MakePolicy = Callable[[], Policy]


@dataclass(frozen=True)
class RolloutConfig:
    """What a worker needs to know of the experiment, apart from env, policy and exploration."""

    fragment_length: int
    """Steps per env and ``sample`` call (``sample_batch_size``)."""
    n_step: int
    gamma: float
    clip_rewards: bool
    """Whether the learner sees the sign of each reward; episode returns are never clipped."""


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended in a fragment; rows belong together."""

    returns: Array
    """Undiscounted, unclipped returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    epsilons: Array
    """The ε ``[E]`` of the env that played it, when it ended."""


@dataclass(frozen=True)
class FragmentInfo:
    """What is told about a sampled batch; small, and separate from it, so that the batch can travel by reference."""

    worker_index: int
    num_rows: int
    """Transitions in the batch."""
    num_env_steps: int
    """Env steps taken; differs from ``num_rows`` by what waits for its n-step successors."""
    episodes: Episodes
    epsilons: Array
    """ε per env ``[M]`` at the fragment's last step."""
    weights_version: int
    """Learner updates behind the weights that acted."""
    sample_time_s: float
    """Seconds of work in this call."""


class RolloutWorker:
    """Owns a vector env, a policy and the steps that still wait for their n-step successors.

    A plain class: ``RemoteWorkers`` places it as an actor, ``LocalWorkers`` calls it in its own thread.
    """

    def __init__(
        self,
        make_env: MakeVectorEnv,
        make_policy: MakePolicy,
        epsilon_schedule: EpsilonSchedule,
        config: RolloutConfig,
        worker_index: int,
        seed: int,
    ) -> None:
        self._env = make_env()
        self._policy = make_policy()
        self._num_actions = int(self._env.single_action_space.n)  # type: ignore[attr-defined]
        self._epsilon_schedule = epsilon_schedule
        self._config = config
        self._worker_index = worker_index
        self._rng = np.random.default_rng(derive_seed(seed, "worker", worker_index, "exploration"))
        self._n_step = NStepAccumulator(config.n_step, config.gamma)
        self._weights_version = 0
        num_envs = self._env.num_envs
        self._obs, _ = self._env.reset(seed=derive_seed(seed, "worker", worker_index, "env"))
        self._resetting = np.zeros(num_envs, bool)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights`` from the next step on; ``version`` counts the learner's updates behind them."""
        self._policy.set_weights(weights)
        self._weights_version = version

    def sample(self, num_steps_sampled: int) -> tuple[SampleBatch, FragmentInfo]:
        """Step every env ``fragment_length`` times; return the complete transitions and what is told about them.

        ``num_steps_sampled`` is the env steps of all workers that the caller knows of, the clock of ε.
        """
        started = time.perf_counter()
        fragment, episodes, epsilons = self._record(num_steps_sampled)
        batch = self._policy.postprocess(self._n_step.push(fragment))
        info = FragmentInfo(
            worker_index=self._worker_index,
            num_rows=batch.count,
            num_env_steps=int(np.count_nonzero(fragment.valid)),
            episodes=episodes,
            epsilons=epsilons,
            weights_version=self._weights_version,
            sample_time_s=time.perf_counter() - started,
        )
        return batch, info

    def stop(self) -> None:
        """Close the envs."""
        self._env.close()

    def _record(self, num_steps_sampled: int) -> tuple[Fragment, Episodes, Array]:
        steps, num_envs = self._config.fragment_length, self._env.num_envs
        fragment = self._empty_fragment()
        finished: list[Episodes] = []
        for t in range(steps):
            epsilons = self._epsilon_schedule.epsilons(num_steps_sampled + t * num_envs)
            actions = explore(self._policy.compute_actions(self._obs), epsilons, self._num_actions, self._rng)
            next_obs, rewards, terminated, truncated, _ = self._env.step(actions)
            fragment.obs[t] = self._obs
            fragment.actions[t] = actions
            fragment.rewards[t] = np.sign(rewards) if self._config.clip_rewards else rewards
            fragment.terminated[t] = terminated
            fragment.truncated[t] = truncated
            fragment.valid[t] = ~self._resetting
            finished += self._count(rewards, terminated | truncated, epsilons)
            self._obs = next_obs
        fragment.obs[steps] = self._obs
        return fragment, _join(finished), epsilons

    def _empty_fragment(self) -> Fragment:
        shape = (self._config.fragment_length, self._env.num_envs)
        space = self._env.single_observation_space
        dtype = np.dtype(np.float32) if np.issubdtype(space.dtype, np.floating) else space.dtype
        observation_shape = space.shape or ()
        return Fragment(
            obs=np.empty((shape[0] + 1, shape[1], *observation_shape), dtype),
            actions=np.empty(shape, np.int64),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, bool),
            truncated=np.empty(shape, bool),
            valid=np.empty(shape, bool),
        )

    def _count(self, rewards: Array, ended: Array, epsilons: Array) -> list[Episodes]:
        """Add one step to the running episodes; return those that it ended."""
        self._returns += rewards
        self._lengths += ~self._resetting
        self._resetting = ended
        if not ended.any():
            return []
        episodes = Episodes(self._returns[ended], self._lengths[ended], epsilons[ended])
        self._returns[ended] = 0.0
        self._lengths[ended] = 0
        return [episodes]


def _join(parts: list[Episodes]) -> Episodes:
    if not parts:
        return Episodes(np.empty(0), np.empty(0, np.int64), np.empty(0))
    return Episodes(
        np.concatenate([part.returns for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.epsilons for part in parts]),
    )
