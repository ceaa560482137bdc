"""Steps a vector env with a policy and records what happens: fragments, before they become transitions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.envs.snapshots import restore_snapshot, take_snapshot
from rlexp.errors import TrialError
from rlexp.policy import Policy, Weights
from rlexp.rollout.episodes import EpisodeCounter, Episodes
from rlexp.rollout.exploration import EpsilonGreedy, EpsilonSchedule
from rlexp.rollout.filters import MeanStdFilter, Moments
from rlexp.rollout.fragment import Fragment
from rlexp.rollout.rewards import clip_rewards
from rlexp.rollout.rollout_config import RolloutConfig
from rlexp.rollout.sample_time import SampleTime
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed


@dataclass(frozen=True, eq=False)
class Recording:
    """A fragment and what is known about it."""

    fragment: Fragment
    episodes: Episodes
    """The episodes that ended in it."""
    epsilons: Array
    """ε per env ``[M]`` at its last step."""
    observed: Moments | None
    """Moments of its raw observations; None without a filter."""
    weights_version: int
    """Learner updates behind the weights that acted."""
    time: SampleTime
    """How long it took."""

    @property
    def num_env_steps(self) -> int:
        """Steps that were no resets."""
        return int(np.count_nonzero(self.fragment.valid))


class Recorder(Protocol):
    """Delivers fragment after fragment; weights and filters change between two of them."""

    def record(self, num_steps_sampled: int) -> Recording:
        """Return the next fragment; ``num_steps_sampled`` is the clock of ε."""
        ...

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights``; ``version`` counts the learner's updates behind them."""
        ...

    def set_filter(self, moments: Moments) -> None:
        """Standardise observations by ``moments`` of all workers."""
        ...

    def state(self) -> dict[str, Any] | None:
        """Return all that the next fragment depends on but weights; None where that cannot be told."""
        ...

    def load(self, state: Mapping[str, Any]) -> bool:
        """Go on from what ``state`` returned, as a new recorder; return False, with nothing changed, if it cannot."""
        ...

    def stop(self) -> None:
        """End what is under way and close the envs; idempotent."""
        ...


class FragmentRecorder:
    """A Recorder that records when it is asked to; owns the vector env and the policy that acts in it."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        policy: Policy,
        epsilon_schedule: EpsilonSchedule,
        config: RolloutConfig,
        worker_index: int,
        seed: int,
    ) -> None:
        self._env = env
        self._policy = policy
        self._epsilon_schedule = epsilon_schedule
        self._config = config
        self._rng = np.random.default_rng(derive_seed(seed, "worker", worker_index, "exploration"))
        num_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
        epsilon_rng = np.random.default_rng(derive_seed(seed, "worker", worker_index, "epsilon"))
        self._explore = EpsilonGreedy(env.num_envs, num_actions, epsilon_rng)
        self._filter = None if config.observation_filter is None else MeanStdFilter(config.observation_filter)
        self._weights_version = 0
        self._episodes = EpisodeCounter(env.num_envs)
        first_obs, _ = env.reset(seed=derive_seed(seed, "worker", worker_index, "env"))
        self._obs = self._seen(first_obs)

    def record(self, num_steps_sampled: int) -> Recording:
        started = time.perf_counter()
        acting_s = stepping_s = 0.0
        num_envs = self._env.num_envs
        fragment = self._empty_fragment()
        outputs: list[Array | None] = []
        rewards = np.empty(fragment.actions.shape)
        episodes: list[Episodes] = []
        for t in range(fragment.num_steps):
            acting_from = time.perf_counter()
            epsilons = self._epsilon_schedule.epsilons(num_steps_sampled + t * num_envs)
            actions, seen = self._policy.sample_actions(self._obs, epsilons, self._episodes.resetting, self._rng)
            actions = self._explore(actions, epsilons)
            outputs.append(seen)
            fragment.obs[t] = self._obs
            fragment.actions[t] = actions
            fragment.valid[t] = ~self._episodes.resetting
            stepping_from = time.perf_counter()
            acting_s += stepping_from - acting_from
            next_obs, rewards[t], terminated, truncated, infos = self._env.step(actions)
            stepping_s += time.perf_counter() - stepping_from
            fragment.terminated[t] = terminated
            fragment.truncated[t] = truncated
            finished = self._episodes.add(rewards[t], terminated | truncated, infos)
            if finished is not None:
                episodes.append(Episodes(finished.returns, finished.lengths, epsilons[finished.envs]))
            self._obs = self._seen(next_obs)
        fragment.obs[-1] = self._obs
        _refuse_not_finite(fragment.obs, "an observation")
        _refuse_not_finite(rewards, "a reward")
        outputs.append(self._policy.outputs(self._obs))
        return Recording(
            fragment=replace(
                fragment,
                rewards=clip_rewards(rewards, self._config.clip_rewards).astype(np.float32),
                outputs=_joined(outputs),
            ),
            episodes=Episodes.join(episodes),
            epsilons=epsilons,
            observed=None if self._filter is None else self._filter.drain(),
            weights_version=self._weights_version,
            time=SampleTime(time.perf_counter() - started, acting_s, stepping_s),
        )

    def set_weights(self, version: int, weights: Weights) -> None:
        self._policy.set_weights(weights)
        self._weights_version = version

    def set_filter(self, moments: Moments) -> None:
        assert self._filter is not None
        self._filter.share(moments)

    def state(self) -> dict[str, Any] | None:
        snapshot = take_snapshot(self._env)
        if snapshot is None:
            return None
        return {
            "env": snapshot,
            "obs": self._obs,
            "episodes": self._episodes.state(),
            "rng": self._rng.bit_generator.state,
            "explore": self._explore.state(),
            "policy": self._policy.state(),
            "filter": None if self._filter is None else self._filter.state(),
        }

    def load(self, state: Mapping[str, Any]) -> bool:
        if not restore_snapshot(self._env, state["env"]):
            return False
        self._obs = state["obs"]
        self._episodes.load(state["episodes"])
        self._rng.bit_generator.state = state["rng"]
        self._explore.load(state["explore"])
        self._policy.load(state["policy"])
        if self._filter is not None:
            self._filter.load(state["filter"])
        return True

    def stop(self) -> None:
        self._env.close()

    def _seen(self, obs: Array) -> Array:
        return obs if self._filter is None else self._filter(obs)

    def _empty_fragment(self) -> Fragment:
        shape = (self._config.fragment_length, self._env.num_envs)
        return Fragment(
            obs=np.empty((shape[0] + 1, *self._obs.shape), self._observation_dtype()),
            actions=np.empty(shape, np.int64),
            rewards=np.empty(shape, np.float32),
            terminated=np.empty(shape, bool),
            truncated=np.empty(shape, bool),
            valid=np.empty(shape, bool),
        )

    def _observation_dtype(self) -> np.dtype[Any]:
        space = self._env.single_observation_space
        is_float = self._filter is not None or np.issubdtype(space.dtype, np.floating)
        return np.dtype(np.float32) if is_float or space.dtype is None else space.dtype


def _refuse_not_finite(seen: Array, what: str) -> None:
    """Raise TrialError for the first of ``seen [T, M, ...]`` that is NaN or infinite."""
    if np.issubdtype(seen.dtype, np.floating) and not np.isfinite(seen).all():
        step, env, *place = np.argwhere(~np.isfinite(seen))[0].tolist()
        value = seen[(step, env, *place)]
        item = f"{what}{place if place else ''}"
        raise TrialError(
            f"the env returned {item} of {value:g}",
            "the steps sampled with it are not used for training: correct the env",
        )


def _joined(outputs: Sequence[Array | None]) -> Array | None:
    """Return what a policy saw at every step ``[T + 1, M, ...]``, unless it keeps that to itself."""
    told = [seen for seen in outputs if seen is not None]
    return np.stack(told) if told else None
