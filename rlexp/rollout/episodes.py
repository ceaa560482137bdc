"""Whole episodes as they are reported, undiscounted and unclipped, and the calls of the user's hooks for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorWrapper

from rlexp.callbacks import Callbacks, Episode, EpisodeEnd, EpisodeStart, EpisodeStep
from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS
from rlexp.envs.native_vectors import AGENT_RETURNS, RESTING, info_of
from rlexp.envs.parallel_envs import AgentRows, agents_of
from rlexp.envs.registry import Vector
from rlexp.rollout.user_callbacks import UserCallbacks, plain_copy
from rlexp.sample_batch import Array


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended in a fragment; rows belong together."""

    returns: Array
    """Undiscounted, unclipped returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    reported: Array
    """Whether they count for the reported returns ``[E]``; episodes that explore much do not."""
    own_metrics: Mapping[str, Array] = field(default_factory=dict)
    """The user's own metrics of the reported episodes, by name; only episodes that have a metric give a value."""
    of_agents: Mapping[str, Array] = field(default_factory=dict)
    """The returns of each agent in reported episodes, by its name, if the env has several."""

    @staticmethod
    def join(parts: Sequence[Episodes]) -> Episodes:
        """Return the episodes of all parts, in order; an empty result if there are no parts."""
        if not parts:
            return Episodes(np.empty(0), np.empty(0, np.int64), np.empty(0, bool))
        return Episodes(
            np.concatenate([part.returns for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.reported for part in parts]),
            join_metrics([part.own_metrics for part in parts]),
            join_metrics([part.of_agents for part in parts]),
        )


def join_metrics(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the values of all parts by name, in order."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: np.concatenate([part[name] for part in parts if name in part]) for name in names}


@dataclass(frozen=True)
class Finished:
    """What one step of a vector env finished; rows belong together."""

    envs: Array
    """Indices ``[E]`` of the envs."""
    returns: Array
    """Returns ``[E]``."""
    lengths: Array
    """Env steps ``[E]``."""
    of_agents: Array | None = None
    """The returns of the A agents of each env ``[E, A]``, NaN for those that were not in it; None without agents."""

    def returns_by_agent(self, agents: Sequence[Any], counted: Array) -> dict[str, Array]:
        """Return the returns of each agent by its name, in the ``counted [E]`` episodes that it was in."""
        if self.of_agents is None:
            return {}
        columns = self.of_agents[counted].T
        return {str(agent): column[~np.isnan(column)] for agent, column in zip(agents, columns, strict=True)}


class EpisodeCounter:
    """Adds up the running episodes of ``M`` envs, which reset on the step after an episode's end.

    If an env's episodes are only parts of a game, such as Atari's lives or the agents of an AgentRows, its infos report
    the end, score and length of each game. Whole games are then counted.
    """

    def __init__(self, num_envs: int) -> None:
        self.resetting = np.zeros(num_envs, bool)
        """Whether the next step of each env is a reset, or one that an agent rests, and not an env step ``[M]``."""
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)

    def begin(self, infos: Mapping[str, Any]) -> None:
        """Begin with the infos of the first reset of all envs."""
        if RESTING in infos:
            self.resetting = infos[RESTING]

    def add(self, rewards: Array, ended: Array, infos: Mapping[str, Any]) -> Finished | None:
        """Count one step of every env: its rewards ``[M]`` and ends ``[M]``. Return None if no episode finished."""
        self._returns += rewards
        self._lengths += ~self.resetting
        self.resetting = infos.get(RESTING, ended)
        if GAME_OVER in infos:
            return _finished(infos[GAME_OVER], infos[GAME_SCORE], infos[GAME_STEPS], infos.get(AGENT_RETURNS))
        finished = _finished(ended, self._returns, self._lengths)
        if finished is not None:
            self._returns[finished.envs] = 0.0
            self._lengths[finished.envs] = 0
        return finished

    def state(self) -> dict[str, Array]:
        """Return how far the running episodes are."""
        return {"resetting": self.resetting, "returns": self._returns, "lengths": self._lengths}

    def load(self, state: Mapping[str, Array]) -> None:
        """Continue from what ``state`` returned, which it owns from now on."""
        self.resetting, self._returns, self._lengths = state["resetting"], state["returns"], state["lengths"]


def _finished(over: Array, returns: Array, lengths: Array, of_agents: Array | None = None) -> Finished | None:
    if not np.count_nonzero(over):  # Every step calls this; ``over.any()`` takes six times as long.
        return None
    envs = over.nonzero()[0]
    if of_agents is not None:  # a copy reports its episode at the first of its agents' rows
        of_agents = of_agents[envs // of_agents.shape[1]]
    return Finished(envs, returns[envs], lengths[envs], of_agents)


@dataclass(frozen=True, eq=False)
class VectorStep:
    """One step of the M envs of a vector env, as the env returned it."""

    resetting: Array
    """Whether the step was the reset between two episodes ``[M]``."""
    obs: Array
    """Observations after it ``[M, ...]``."""
    actions: Array
    """``[M, ...]``."""
    rewards: Array
    """``[M]``, not clipped."""
    terminated: Array
    """``[M]``."""
    truncated: Array
    """``[M]``."""
    infos: Mapping[str, Any]


@dataclass
class _Running:
    """An episode that has begun."""

    episode: Episode
    episode_return: float = 0.0
    length: int = 0
    last: VectorStep | None = None
    """Its last step, if only a part of it (a life) has ended. The next reset may end the whole episode."""


class EpisodeHooks:
    """Calls the user's hooks for episodes. A recorder or an evaluation, whichever steps the vector env, owns it.

    ``playing [M]`` says in which envs another episode may begin, ``reported [M]`` whose metrics count; its owner
    changes them.
    """

    def __init__(
        self, callbacks: UserCallbacks, env: Vector, worker_index: int | None, reported: Array | None = None
    ) -> None:
        """Call hooks for the envs that are ``reported [M]``; None: all. ``worker_index`` None means an evaluation."""
        self._callbacks = callbacks
        self._on_start = callbacks.hooks(Callbacks.on_episode_start)
        self._on_step = callbacks.hooks(Callbacks.on_episode_step)
        self._on_end = callbacks.hooks(Callbacks.on_episode_end)
        self._worker_index = worker_index
        self._envs = _sub_envs(env)
        self._agents: list[str | None] = [str(agent) for agent in agents_of(env)] or [None]
        self.reported = np.ones(env.num_envs, bool) if reported is None else reported
        self.playing: Array = np.ones(env.num_envs, bool)
        self._running: list[_Running | None] = [None] * env.num_envs
        self._num_begun = [0] * env.num_envs
        self._first_reset: tuple[Array, Mapping[str, Any]] | None = None
        self._metrics: dict[str, list[float]] = {}

    def note_first_reset(self, obs: Array, infos: Mapping[str, Any]) -> None:
        """Store what the first reset of all envs returned; ``begin`` calls the hooks."""
        self._first_reset = obs, infos

    def begin(self) -> None:
        """Call the hooks of the first reset, before the first step; later calls do nothing."""
        if self._first_reset is None:
            return
        (obs, infos), self._first_reset = self._first_reset, None
        rests = infos.get(RESTING, np.zeros(len(self._running), bool))
        for index in np.flatnonzero(~rests).tolist():
            self._start(index, obs, infos)

    def after_step(self, step: VectorStep, finished: Finished | None) -> None:
        """Call the hooks that belong to one step of the vector env; the step ended the ``finished`` episodes."""
        if self._is_of_no_interest(step, finished):
            return
        totals: dict[int, tuple[float, int]] = {}
        if finished is not None:
            rows = zip(finished.envs.tolist(), finished.returns.tolist(), finished.lengths.tolist(), strict=True)
            totals = {index: (episode_return, length) for index, episode_return, length in rows}
        rests = step.infos.get(RESTING)
        for index, resets in enumerate(step.resetting.tolist()):
            running = self._running[index]
            if running is not None and not resets:
                self._step(running, index, step)
            if running is not None and rests is not None:  # an agent's part is an episode of its own
                totals = {index: (running.episode_return, running.length)} if rests[index] else {}
            if running is not None and index in totals:
                self._end(running, index, step, totals[index])
            if resets and self._running[index] is None and (rests is None or not rests[index]):
                self._start(index, step.obs, step.infos)

    def drain_metrics(self) -> dict[str, Array]:
        """Return the own metrics of the episodes that ended since the last call, by name; values ``[E]``."""
        metrics, self._metrics = self._metrics, {}
        return {name: np.array(values) for name, values in metrics.items()}

    def state(self) -> dict[str, Any] | None:
        """Return the progress of the running episodes; None if a checkpoint cannot hold their ``data``."""
        try:
            episodes = [None if running is None else _state_of(running) for running in self._running]
        except ValueError:
            return None
        return {"episodes": episodes, "num_begun": list(self._num_begun), **self.callbacks_state()}

    def callbacks_state(self) -> dict[str, Any]:
        """Return the part of ``state`` that ``load_callbacks`` needs. A checkpoint can always hold it."""
        return {"callbacks": self._callbacks.state()}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continue the episodes of ``state``. Episodes of other or no callback classes have no hooks until they end."""
        self._first_reset = None
        if state is None or not self._callbacks.load(state["callbacks"]):
            return
        self._num_begun = list(state["num_begun"])
        for index, episode in enumerate(state["episodes"]):
            self._running[index] = None if episode is None else self._restored(index, episode)

    def load_callbacks(self, state: Mapping[str, Any] | None) -> None:
        """Load the callbacks' own state from ``state`` and begin new episodes; objects of other classes begin anew."""
        if state is not None:
            self._callbacks.load(state["callbacks"])

    def _is_of_no_interest(self, step: VectorStep, finished: Finished | None) -> bool:
        if self._on_step or finished is not None:
            return False
        if RESTING in step.infos and np.count_nonzero(step.truncated):
            return False
        return not (np.count_nonzero(step.resetting) or np.count_nonzero(step.terminated))

    def _start(self, index: int, obs: Array, infos: Mapping[str, Any]) -> None:
        if not self.playing[index]:
            return
        number = self._num_begun[index]
        self._num_begun[index] = number + 1
        running = self._running[index] = _Running(self._episode(index, number))
        if self._on_start:
            start = EpisodeStart(episode=running.episode, obs=obs[index].copy(), info=info_of(infos, index, len(obs)))
            for hook in self._on_start:
                hook(start)

    def _step(self, running: _Running, index: int, step: VectorStep) -> None:
        running.episode_return += float(step.rewards[index])
        running.length += 1
        running.last = step if step.terminated[index] or step.truncated[index] else None
        if self._on_step:
            moment = EpisodeStep(
                **_fields(running.episode, index, step), episode_return=running.episode_return, length=running.length
            )
            for hook in self._on_step:
                hook(moment)

    def _end(self, running: _Running, index: int, step: VectorStep, totals: tuple[float, int]) -> None:
        self._running[index] = None
        if self._on_end:
            last = step if running.last is None else running.last
            end = EpisodeEnd(**_fields(running.episode, index, last), episode_return=totals[0], length=totals[1])
            for hook in self._on_end:
                hook(end)
        for name, value in self._callbacks.checked_metrics(running.episode.metrics, of_episode=True).items():
            if self.reported[index]:
                self._metrics.setdefault(name, []).append(value)

    def _episode(self, index: int, number: int, **kept: Any) -> Episode:
        return Episode(
            worker_index=self._worker_index,
            env_index=index,
            number=number,
            is_evaluation=self._worker_index is None,
            env=self._envs[index],
            agent=self._agents[index % len(self._agents)],
            **kept,
        )

    def _restored(self, index: int, state: Mapping[str, Any]) -> _Running:
        episode = self._episode(index, state["number"], metrics=state["metrics"], data=state["data"])
        return _Running(episode, state["episode_return"], state["length"])


def make_episode_hooks(
    callbacks: UserCallbacks, env: Vector, worker_index: int | None, reported: Array | None = None
) -> EpisodeHooks | None:
    """Return the object that calls the hooks of ``env``'s episodes; None without hooks, so that steps look none up."""
    hooks = (Callbacks.on_episode_start, Callbacks.on_episode_step, Callbacks.on_episode_end)
    if not any(callbacks.hooks(hook) for hook in hooks):
        return None
    return EpisodeHooks(callbacks, env, worker_index, reported)


def _fields(episode: Episode, index: int, step: VectorStep) -> dict[str, Any]:
    """Return copies of the arguments of a hook for one env's step, as a hook may change them."""
    return {
        "episode": episode,
        "obs": step.obs[index].copy(),
        "action": step.actions[index].copy(),
        "reward": float(step.rewards[index]),
        "terminated": bool(step.terminated[index]),
        "truncated": bool(step.truncated[index]),
        "info": info_of(step.infos, index, len(step.rewards)),
    }


def _state_of(running: _Running) -> dict[str, Any]:
    """Return the progress of an episode; ValueError if a checkpoint cannot hold its metrics or data."""
    episode = running.episode
    # NaN marks a metric that an episode does not have.
    metrics = {name: value for name, value in episode.metrics.items() if not _is_nan(value)}
    totals = {"episode_return": running.episode_return, "length": running.length}
    own = {"metrics": plain_copy(metrics), "data": plain_copy(episode.data)}
    return {"number": episode.number, **own, **totals}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _sub_envs(vector: Any) -> tuple[Any, ...]:
    """Return the envs of a vector env one by one; None for each if the vector env has no such list."""
    while isinstance(vector, VectorWrapper):
        vector = vector.env
    if isinstance(vector, AgentRows):
        return tuple(copy for copy in vector.copies for _ in vector.agents)
    return tuple(vector.envs) if isinstance(vector, SyncVectorEnv) else (None,) * vector.num_envs
