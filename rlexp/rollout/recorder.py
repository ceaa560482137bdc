"""Steps a vector env with a policy and records fragments, before they become transitions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from rlexp.envs.parallel_envs import agents_of, agents_per_env
from rlexp.envs.snapshots import restore_snapshot, take_snapshot
from rlexp.errors import EnvError, TrialError
from rlexp.policy import HasMemory, LiveWeights, Outputs, Policy, Weights
from rlexp.rollout.episodes import EpisodeCounter, EpisodeHooks, Episodes, Finished, VectorStep
from rlexp.rollout.filters import MeanStdFilter, Moments
from rlexp.rollout.fragment import Fragment, SampleTime
from rlexp.sample_batch import Array

ENV = "env"
"""Key of the envs in a recorder's state."""
RewardLimits = bool | float | tuple[float, float]
"""True: the sign. False: unchanged. A number x: clipped to [-x, x]. A pair: clipped to [low, high]."""


@dataclass(frozen=True)
class RolloutConfig:
    """How a worker samples, for any algorithm."""

    fragment_length: int
    """Steps per env and fragment (``sample_batch_size``)."""
    clip_rewards: RewardLimits
    """How the learner sees rewards; episode returns are never clipped."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    """Whether ``sample`` returns all recorded steps, or whole episodes only."""
    sample_async: bool
    """Whether the next fragment is recorded while rows of this one are computed and sent."""
    observation_filter: Moments | None = None
    """The moments that a MeanStdFilter starts with; None: observations stay as they are."""
    reported_envs: tuple[bool, ...] | None = None
    """Whether the episodes of each env count for the reported returns; None: all do. Other envs explore too much."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A fragment and the report about it."""

    fragment: Fragment
    episodes: Episodes
    """The episodes that ended in it."""
    observed: Moments | None
    """Moments of its raw observations; None without a filter."""
    weights_version: int
    """Number of learner updates that the acting weights include."""
    time: SampleTime
    """The time that recording took."""
    agents_per_env: int = 1
    """Rows of the fragment that are the agents of one env."""

    @property
    def num_env_steps(self) -> int:
        """Env steps, without resets; a step of several agents is one."""
        valid = self.fragment.valid
        if self.agents_per_env > 1:
            return int(np.count_nonzero(valid.reshape(len(valid), -1, self.agents_per_env).any(axis=2)))
        return int(np.count_nonzero(valid))


class StepRecorder(Protocol):
    """Delivers one fragment after another; weights and filters change only between fragments."""

    def record(self, num_steps_sampled: int) -> Recording:
        """Return the next fragment; ``num_steps_sampled`` is the clock of the policy's schedules."""

    def set_weights(self, version: int, weights: Weights) -> None:
        """Act with ``weights``; ``version`` counts the learner updates that they include."""

    def set_filter(self, moments: Moments) -> None:
        """Standardise observations by ``moments`` of all workers."""

    def state(self) -> dict[str, Any] | None:
        """Return everything except weights on which the next fragment depends; None if it cannot be read.

        If only the states of the user's callbacks can be read, the result has nothing else: no ``ENV``.
        """

    def load(self, state: Mapping[str, Any]) -> bool:
        """Continue from what ``state`` returned, as a new recorder.

        False if the envs cannot continue; then only the user's callbacks have continued.
        """

    def stop(self) -> None:
        """End the recording in progress and close the envs; idempotent."""


class FragmentRecorder:
    """A Recorder that records when ``record`` is called; owns the vector env and the policy that acts in it."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        policy: Policy,
        config: RolloutConfig,
        seed: int,
        hooks: EpisodeHooks | None = None,
    ) -> None:
        """Reset the envs with ``seed``. ``hooks`` are called for the episodes, from the first ``record`` on."""
        self._env = env
        self._policy = policy
        self._memory = policy if isinstance(policy, HasMemory) else None
        self._config = config
        self._agents, self._agents_per_env = agents_of(env), agents_per_env(env)
        reported = np.array(config.reported_envs or [True] * (env.num_envs // self._agents_per_env))
        self._reported = reported.repeat(self._agents_per_env)
        self._filter = None if config.observation_filter is None else MeanStdFilter(config.observation_filter)
        self._weights_version = 0
        self._episodes = EpisodeCounter(env.num_envs)
        first_obs, infos = env.reset(seed=seed)
        self._episodes.begin(infos)
        self._hooks = hooks
        if hooks is not None:
            hooks.note_first_reset(first_obs, infos)
        if self._memory is not None:
            self._memory.start_episodes(env.num_envs)
        self._obs = self._seen(first_obs)

    def record(self, num_steps_sampled: int) -> Recording:
        started = time.perf_counter()
        acting_s = stepping_s = 0.0
        num_envs, hooks = self._env.num_envs // self._agents_per_env, self._hooks
        if hooks is not None:
            hooks.begin()
        fragment = self._empty_fragment()
        outputs: list[Outputs] = []
        rewards = np.empty(fragment.rewards.shape)
        episodes: list[Episodes] = []
        fragment.valid[0] = ~self._episodes.resetting
        for t in range(fragment.num_steps):
            acting_from = time.perf_counter()
            resetting = self._episodes.resetting
            actions, output = self._policy.act(self._obs, resetting, num_steps_sampled + t * num_envs)
            outputs.append(output)
            fragment.obs[t] = self._obs
            fragment.actions[t] = actions
            stepping_from = time.perf_counter()
            acting_s += stepping_from - acting_from
            try:
                next_obs, rewards[t], terminated, truncated, infos = self._env.step(actions)
            except EnvError:
                _refuse_not_finite(fragment.obs[: t + 1], "an observation")  # the env may refuse what it led to
                raise
            stepping_s += time.perf_counter() - stepping_from
            fragment.terminated[t] = terminated
            fragment.truncated[t] = truncated
            finished = self._episodes.add(rewards[t], terminated | truncated, infos)
            if finished is not None:
                episodes.append(self._reported_episodes(finished))
            if self._memory is not None:
                self._memory.after_step(rewards[t], resetting)
            if hooks is not None:
                step = VectorStep(resetting, next_obs, actions, rewards[t], terminated, truncated, infos)
                hooks.after_step(step, finished)
            if self._agents:
                fragment.valid[t + 1 : t + 2] = ~self._episodes.resetting
            self._obs = self._seen(next_obs, resetting)
        fragment.obs[-1] = self._obs
        _refuse_not_finite(fragment.obs, "an observation")
        _refuse_not_finite(rewards, "a reward")
        outputs.append(self._policy.outputs(self._obs))
        if not self._agents:  # the step after an episode's end is a reset
            np.logical_not((fragment.terminated | fragment.truncated)[:-1], out=fragment.valid[1:])
        return Recording(
            fragment=replace(
                fragment,
                rewards=clip_rewards(rewards, self._config.clip_rewards).astype(np.float32),
                # For small arrays, ``np.array`` takes a third of the time of ``np.stack``.
                outputs={name: np.array([output[name] for output in outputs]) for name in outputs[-1]},
            ),
            episodes=self._joined(episodes),
            observed=None if self._filter is None else self._filter.drain(),
            weights_version=self._weights_version,
            time=SampleTime(time.perf_counter() - started, acting_s, stepping_s),
            agents_per_env=self._agents_per_env,
        )

    def set_weights(self, version: int, weights: Weights) -> None:
        self._policy.set_weights(weights)
        self._weights_version = version

    def set_filter(self, moments: Moments) -> None:
        assert self._filter is not None
        self._filter.share(moments)

    def state(self) -> dict[str, Any] | None:
        snapshot = take_snapshot(self._env)
        hooks = None if self._hooks is None else self._hooks.state()
        if snapshot is None or (self._hooks is not None and hooks is None):
            return None if self._hooks is None else {"hooks": self._hooks.callbacks_state()}
        state = {} if hooks is None else {"hooks": hooks}
        return state | {
            ENV: snapshot,
            "obs": self._obs,
            "episodes": self._episodes.state(),
            "policy": self._policy.state(),
            "filter": None if self._filter is None else self._filter.state(),
        }

    def load(self, state: Mapping[str, Any]) -> bool:
        if ENV not in state or not restore_snapshot(self._env, state[ENV]):
            if self._hooks is not None:
                self._hooks.load_callbacks(state.get("hooks"))
            return False
        self._obs = state["obs"]
        self._episodes.load(state["episodes"])
        self._policy.load(state["policy"])
        if self._hooks is not None:
            self._hooks.load(state.get("hooks"))
        if self._filter is not None:
            self._filter.load(state["filter"])
        return True

    def stop(self) -> None:
        self._env.close()

    def _reported_episodes(self, finished: Finished) -> Episodes:
        reported = self._reported[finished.envs]
        by_agent = finished.returns_by_agent(self._agents, reported)
        return Episodes(finished.returns, finished.lengths, reported, of_agents=by_agent)

    def _joined(self, parts: list[Episodes]) -> Episodes:
        """Return the episodes of a fragment, with their own metrics if there are hooks."""
        episodes = Episodes.join(parts)
        return episodes if self._hooks is None else replace(episodes, own_metrics=self._hooks.drain_metrics())

    def _seen(self, obs: Array, rested: Array | None = None) -> Array:
        """Return observations as the policy sees them; agents that ``rested [M]`` and still rest have old ones."""
        if self._filter is None:
            return obs
        rests = self._episodes.resetting if self._agents else None
        return self._filter(obs, None if rests is None else ~(rests if rested is None else rests & rested))

    def _empty_fragment(self) -> Fragment:
        shape, actions = (self._config.fragment_length, self._env.num_envs), self._env.single_action_space
        return Fragment(
            obs=np.empty((shape[0] + 1, *self._obs.shape), self._observation_dtype()),
            actions=np.empty((*shape, *(actions.shape or ())), actions.dtype),
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
    """Raise TrialError for the first value in ``seen [T, M, ...]`` that is NaN or infinite."""
    if np.issubdtype(seen.dtype, np.floating) and not np.isfinite(seen).all():
        step, env, *place = np.argwhere(~np.isfinite(seen))[0].tolist()
        value = seen[(step, env, *place)]
        item = f"{what}{place if place else ''}"
        raise TrialError(
            f"the env returned {item} of {value:g}",
            "the steps sampled with it are not used for training: correct the env",
        )


def clip_rewards(rewards: Array, limits: RewardLimits) -> Array:
    """Return ``rewards [...]`` clipped to ``limits``, for learning."""
    if isinstance(limits, bool):
        return np.sign(rewards) if limits else rewards
    low, high = limits if isinstance(limits, tuple) else (-limits, limits)
    return rewards.clip(low, high)


class RecordingAhead:
    """A Recorder whose own thread works one fragment ahead, never more.

    The thread handles requests in order, so weights and filters change between two fragments. The fragment in progress
    is finished with the old ones.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        """Own ``recorder``: from now on, only the thread touches it."""
        self._recorder = recorder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self._ahead: Future[Recording] | None = None
        self._changes: list[Future[None]] = []

    def record(self, num_steps_sampled: int) -> Recording:
        """Return the fragment in progress and begin the next one; raise the error of the recording, if any."""
        ahead = self._ahead or self._begin(num_steps_sampled)
        self._ahead = None
        # No timeout: like a call of the env, it lasts as long as the env's steps.
        recording = ahead.result()
        self._raise_errors_of_changes()
        self._ahead = self._begin(num_steps_sampled + recording.num_env_steps)
        return recording

    def set_weights(self, version: int, weights: Weights) -> None:
        if isinstance(weights, LiveWeights):  # the learner goes on while the thread acts
            weights = {name: array.copy() for name, array in weights.items()}
        self._changes.append(self._thread.submit(self._recorder.set_weights, version, weights))

    def set_filter(self, moments: Moments) -> None:
        self._changes.append(self._thread.submit(self._recorder.set_filter, moments))

    def state(self) -> dict[str, Any] | None:
        """Return None, as a fragment is in progress."""
        return None

    def load(self, state: Mapping[str, Any]) -> bool:
        """Return False, as it has no state to load."""
        return False

    def stop(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        self._recorder.stop()

    def _begin(self, num_steps_sampled: int) -> Future[Recording]:
        return self._thread.submit(self._recorder.record, num_steps_sampled)

    def _raise_errors_of_changes(self) -> None:
        done = [change for change in self._changes if change.done()]
        self._changes = [change for change in self._changes if not change.done()]
        for change in done:
            change.result()
