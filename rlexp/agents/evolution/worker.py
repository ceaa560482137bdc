"""Stage 1 of the data path in ES and ARS: plays whole episodes with changed weights and sends their returns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.agents.evolution.policy import RETURNS, SEEDS, ChangedPolicies, Rollout
from rlexp.envs.parallel_envs import agents_of, agents_per_env
from rlexp.errors import TrialError
from rlexp.policy import Weights
from rlexp.rollout.episodes import EpisodeCounter, Episodes, Finished, VectorStep, join_metrics
from rlexp.rollout.filters import MeanStdFilter, Moments
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.rollout.recorder import clip_rewards
from rlexp.rollout.worker import WorkerSpec, make_hooks
from rlexp.sample_batch import Array, SampleBatch
from rlexp.schedules import derive_seed

LARGEST_SEED = 2**63
IDLE = -1
"""The rollout of an env that has played its part of a call, and steps on until the others have."""


class EvolutionWorker:
    """A SamplingWorker: owns envs, a policy for each, and the random stream of the directions that it plays.

    A call begins with a reset of all envs and plays the same episodes to their ends, whatever they last. So no episode
    begins with other weights than it ends with, and long ones count as often as short ones.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._env = spec.make_env()
        policy = spec.make_policy()
        assert isinstance(policy, ChangedPolicies)
        self._policy, self._plan = policy, policy.plan
        moments = spec.rollout.observation_filter
        self._filter = None if moments is None else MeanStdFilter(moments)
        self._hooks = make_hooks(spec, self._env)
        self._rng = np.random.default_rng(derive_seed(spec.seed, "worker", spec.index, "directions"))
        self._weights_version = 0
        self._evaluated_version = -1
        """The weights with which it has played an episode without noise."""

    def set_weights(self, version: int, weights: Weights) -> None:
        self._policy.set_weights(weights)
        self._weights_version = version

    def set_filter(self, moments: Moments) -> None:
        assert self._filter is not None
        self._filter.share(moments)

    def sample(self, num_steps_sampled: int) -> tuple[SampleBatch, SampleInfo]:
        """Play both episodes of each of the next directions; return a row for each direction."""
        started = time.perf_counter()
        seeds = self._rng.integers(LARGEST_SEED, size=self._plan.num_directions)
        rollouts = [Rollout(seed, sign) for seed in seeds.tolist() for sign in (1, -1)]
        num_evaluations = self._num_evaluations()
        playing = _Playing(self._env, rollouts + [Rollout(0, 0)] * num_evaluations, self._policy)
        acting_s, stepping_s = self._play(playing)
        reported = np.arange(len(playing.returns)) >= len(rollouts)
        own_metrics = {} if self._hooks is None else self._hooks.drain_metrics()
        of_agents = join_metrics(playing.of_agents)
        episodes = Episodes(playing.returns, playing.lengths, reported, own_metrics, of_agents)
        info = SampleInfo(
            worker_index=self._spec.index,
            num_rows=self._plan.num_directions,
            num_env_steps=playing.num_env_steps,
            episodes=episodes,
            weights_version=self._weights_version,
            time=SampleTime(time.perf_counter() - started, acting_s, stepping_s),
            observed=None if self._filter is None else self._filter.drain(),
        )
        return SampleBatch({SEEDS: seeds, RETURNS: playing.learned[: len(rollouts)].reshape(-1, 2)}), info

    def state(self) -> dict[str, Any]:
        """Return everything except weights; no episode is under way between two calls."""
        return {
            "rng": self._rng.bit_generator.state,
            "policy": self._policy.state(),
            "filter": None if self._filter is None else self._filter.state(),
            "evaluated_version": self._evaluated_version,
            "callbacks": None if self._hooks is None else self._hooks.callbacks_state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._policy.load(state["policy"])
        self._evaluated_version = state["evaluated_version"]
        if self._filter is not None:
            self._filter.load(state["filter"])
        if self._hooks is not None:
            self._hooks.load_callbacks(state["callbacks"])

    def stop(self) -> None:
        self._env.close()

    def _num_evaluations(self) -> int:
        """Return the number of episodes without noise in this call: at least one with each weights."""
        drawn = int(self._rng.binomial(self._plan.num_directions, self._plan.eval_prob))
        is_first = self._evaluated_version != self._weights_version
        self._evaluated_version = self._weights_version
        return max(drawn, int(is_first))

    def _play(self, playing: _Playing) -> tuple[float, float]:
        """Play all rollouts to their ends; return the seconds in which the policies acted and the envs stepped."""
        acting_s = stepping_s = 0.0
        counter = EpisodeCounter(self._env.num_envs)
        obs, infos = self._env.reset(seed=int(self._rng.integers(2**31)))
        counter.begin(infos)
        rested = counter.resetting
        if self._hooks is not None:
            self._hooks.playing = playing.rows
            self._hooks.note_first_reset(obs, infos)
            self._hooks.begin()
        while playing.is_running:
            acting_from = time.perf_counter()
            resetting = counter.resetting
            actions = self._policy.compute_actions(self._seen(obs, ~(resetting & rested)))
            rested = resetting
            stepping_from = time.perf_counter()
            obs, rewards, terminated, truncated, infos = self._env.step(actions)
            stepping_s += time.perf_counter() - stepping_from
            acting_s += stepping_from - acting_from
            finished = counter.add(rewards, terminated | truncated, infos)
            if self._hooks is not None:
                self._hooks.reported = playing.plain_rows
            learned = clip_rewards(rewards, self._spec.rollout.clip_rewards) - self._plan.offset
            playing.add(np.where(resetting, 0.0, learned), ~resetting, finished)
            if self._hooks is not None:
                self._hooks.playing = playing.rows
                step = VectorStep(resetting, obs, actions, rewards, terminated, truncated, infos)
                self._hooks.after_step(step, finished)
        return acting_s, stepping_s

    def _seen(self, obs: Array, is_new: Array) -> Array:
        """Return observations as the policy sees them; agents that rested and still rest have none that ``is_new``."""
        if np.issubdtype(obs.dtype, np.floating) and not np.isfinite(obs).all():
            raise _not_finite("an observation")
        return obs if self._filter is None else self._filter(obs, is_new)


class _Playing:
    """Which env plays which rollout of a call, and the returns of those that have ended."""

    def __init__(self, env: VectorEnv[Any, Any, Any], rollouts: list[Rollout], policy: ChangedPolicies) -> None:
        self._rollouts, self._policy = rollouts, policy
        self._is_plain = np.array([*(rollout.sign == 0 for rollout in rollouts), False])
        """Whether each rollout is without noise; the last item is for IDLE."""
        self._agents, self._num_agents = agents_of(env), agents_per_env(env)
        self.of_agents: list[dict[str, Array]] = []
        """The returns of each agent in episodes without noise."""
        num_envs = env.num_envs // self._num_agents
        self._waiting = deque(range(len(rollouts)))
        self.returns, self.learned = np.zeros(len(rollouts)), np.zeros(len(rollouts))
        """Returns as they are reported, and as they are learned from."""
        self.lengths = np.zeros(len(rollouts), np.int64)
        self.num_env_steps = 0
        self._so_far = np.zeros(num_envs)
        self.rollout_of = np.full(num_envs, IDLE)
        """The rollout of each env ``[M]``."""
        for index in range(num_envs):
            self._next(index)

    @property
    def is_running(self) -> bool:
        """Whether an env plays a rollout."""
        return bool(np.count_nonzero(self.rollout_of != IDLE))

    @property
    def rows(self) -> Array:
        """Whether the env of each row plays a rollout ``[M]``; an env of several agents has a row for each."""
        return np.repeat(self.rollout_of != IDLE, self._num_agents)

    @property
    def plain_rows(self) -> Array:
        """Whether the env of each row plays a rollout without noise ``[M]``."""
        return np.repeat(self._is_plain[self.rollout_of], self._num_agents)

    def add(self, rewards: Array, valid: Array, finished: Finished | None) -> None:
        """Add a step: ``rewards [M]`` as they are learned from, and the episodes that it ended.

        ``valid [M]`` says which envs stepped.
        """
        self._so_far += rewards.reshape(-1, self._num_agents).sum(axis=1)
        self.num_env_steps += int(np.count_nonzero(valid.reshape(-1, self._num_agents).any(axis=1)))
        if finished is None:
            return
        envs = finished.envs // self._num_agents
        rollouts = self.rollout_of[envs]
        self.of_agents.append(finished.returns_by_agent(self._agents, self._is_plain[rollouts]))
        for env, episode_return, length in zip(envs, finished.returns, finished.lengths, strict=True):
            rollout = self.rollout_of[env]
            if rollout != IDLE:
                self.returns[rollout], self.learned[rollout] = episode_return, self._so_far[env]
                self.lengths[rollout] = length
                if not np.isfinite(self.learned[rollout]):
                    raise _not_finite("a reward")
                self._next(env)

    def _next(self, env: int) -> None:
        self._so_far[env] = 0.0
        self.rollout_of[env] = self._waiting.popleft() if self._waiting else IDLE
        if self.rollout_of[env] != IDLE:
            self._policy.begin(env, self._rollouts[self.rollout_of[env]])


def _not_finite(what: str) -> TrialError:
    message = f"the env returned {what} that is NaN or infinite"
    return TrialError(message, "the steps sampled with it are not used for training: correct the env")
