"""Envs of several agents that act together and learn one policy: each agent is a row of a vector env.

An env like PettingZoo's ``ParallelEnv`` takes and returns dicts by agent. AgentRows shows the agents of some copies of
it as the envs of one vector env. Its infos say which agents rest, and when a copy's episode is over. OneAgent shows a
copy as an env of one agent, for checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlexp.envs.atari import GAME_OVER, GAME_SCORE, GAME_STEPS, Seeds
from rlexp.envs.checked_env import HOW_TO_RENDER, Wrapper, env_error, has_form, misfit
from rlexp.envs.native_vectors import ACTION_MASK, AGENT_RETURNS, INFOS, RESTING, InfosAsGiven
from rlexp.errors import EnvError, UsageError
from rlexp.sample_batch import Array

RESETS: Final = "(observations, infos), two dicts by agent"
STEPS: Final = "(observations, rewards, terminations, truncations, infos), five dicts by agent"
_HOW_TO_LEAVE: Final = "in an agent's last step, return its observation, and terminations or truncations true"
ONE_POLICY: Final = (
    "all agents learn one policy, so their spaces must be equal: pad them in the env (SuperSuit has "
    "pad_observations_v0 and pad_action_space_v0), or train one kind of agent while a class of yours plays the others"
)


class AgentRows(InfosAsGiven):
    """C copies of an env of A agents as a vector env of C * A rows; owns the copies.

    An agent's row ends with the agent, and rests until it is in the env again, often after the next reset. The step
    after the end of a copy's episode, when none of its agents is left, resets it (``AutoresetMode.NEXT_STEP``). Infos
    report a copy's whole episode at its first row, as Atari's do for games with lives: its score is the sum of the
    returns of all agents, and its length counts steps of the env.
    """

    def __init__(self, make: Callable[[], Any], name: str, num_copies: int, horizon: int | None = None) -> None:
        """Make the copies, whose episodes ``horizon`` cuts. ``name`` is the env's in an experiment, for errors.

        Raises UsageError if agents have different spaces, EnvError if the env is not as it must be.
        """
        self._name, self._horizon = name, horizon
        self._copies = [make() for _ in range(num_copies)]
        first = self._copies[0]
        self.agents = _agents_of(first, name)
        """The names of all agents that an episode may have."""
        self.agents_per_env = len(self.agents)
        self.num_envs = num_copies * self.agents_per_env
        self.single_observation_space = self._only_space("observation_space")
        self.single_action_space = self._only_space("action_space")
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**getattr(first, "metadata", {}), "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = getattr(first, "render_mode", None)
        shape = num_copies, self.agents_per_env
        self._acting: Array = np.zeros(shape, bool)
        self._took_part: Array = np.zeros(shape, bool)
        self._returns = np.zeros(shape)
        self._over: Array = np.zeros(num_copies, bool)
        self._steps = np.zeros(num_copies, np.int64)
        nothing = next(iter(iterate(self.observation_space, batched(self.single_observation_space, []))))
        self._seen: list[Any] = [deepcopy(nothing) for _ in range(self.num_envs)]

    @property
    def copies(self) -> Sequence[Any]:
        """The copies of the env."""
        return self._copies

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all copies; one number as seed seeds each copy by the next number."""
        infos: dict[str, Any] = {}
        for copy in range(len(self._copies)):
            own = seed[copy * self.agents_per_env] if isinstance(seed, list) else seed
            self._reset(copy, own + copy if isinstance(seed, int) and own is not None else own, options, infos)
        return self._batch(), self._with_report(infos, np.zeros(len(self._copies), bool))

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        given = list(iterate(self.action_space, actions))
        rewards, ends = np.zeros(self._acting.shape), np.zeros((2, *self._acting.shape), bool)
        infos: dict[str, Any] = {}
        for copy, is_over in enumerate(self._over.tolist()):
            if is_over:
                self._reset(copy, None, None, infos)
            else:
                first = copy * self.agents_per_env
                self._step(copy, given[first : first + self.agents_per_env], rewards[copy], ends[:, copy], infos)
        self._returns += rewards
        self._over = np.logical_not(self._acting.any(axis=1))
        terminated, truncated = ends.reshape(2, self.num_envs)
        return self._batch(), rewards.reshape(-1), terminated, truncated, self._with_report(infos, self._over)

    def render(self) -> Any:
        """Return a picture of each copy."""
        return tuple(self._called(copy, "render") for copy in range(len(self._copies)))

    def close_extras(self, **kwargs: Any) -> None:
        for copy in range(len(self._copies)):
            self._called(copy, "close")

    def _only_space(self, kind: str) -> Space[Any]:
        """Return the space that all agents have; raises UsageError if two differ."""
        spaces = {agent: self._called(0, kind, agent) for agent in self.agents}
        for agent, space in spaces.items():
            if not isinstance(space, gym.Space):
                message = f"env {self._name}: {kind}({agent!r}) is {type(space).__name__}, not a gymnasium.Space"
                raise EnvError(message, f"return a space from {kind}")
        first: Space[Any] = spaces[self.agents[0]]
        other = next((agent for agent, space in spaces.items() if space != first), None)
        if other is not None:
            words = kind.replace("_", " ")
            raise UsageError(
                f"env {self._name}: the {words} of {self.agents[0]} is {first}, but {other} has {spaces[other]}",
                ONE_POLICY,
            )
        return first

    def _reset(self, copy: int, seed: int | None, options: dict[str, Any] | None, infos: dict[str, Any]) -> None:
        arguments: dict[str, Any] = {"seed": seed} | ({} if options is None else {"options": options})
        result = self._called(copy, "reset", **arguments)
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(part, Mapping) for part in result):
            raise self._error(f"reset returned {_kind(result)}, not {RESETS}", "correct reset of the env")
        for state in (self._acting, self._took_part, self._returns, self._steps, self._over):
            state[copy] = 0
        observations, given = result
        if not observations:
            raise self._error("reset returned no observation", "return one for each agent that acts in the first step")
        for agent, obs in observations.items():
            self._begin(copy, agent, obs, "reset")
        self._add_infos(copy, given, infos)

    def _step(self, copy: int, given: list[Any], rewards: Array, ends: Array, infos: dict[str, Any]) -> None:
        """Step a copy; ``rewards [A]`` and ``ends [2, A]``, terminated and truncated, are filled."""
        env, acting = self._copies[copy], self._acting[copy]
        actions = {agent: given[self._place(agent, "agents")] for agent in env.agents}
        result = self._called(copy, "step", actions)
        if not isinstance(result, tuple) or len(result) != 5 or not all(isinstance(part, Mapping) for part in result):
            raise self._error(f"step returned {_kind(result)}, not {STEPS}", "correct step of the env")
        observations, paid, terminated, truncated, own_infos = result
        self._steps[copy] += 1
        is_cut = self._horizon is not None and self._steps[copy] >= self._horizon
        for place in np.flatnonzero(acting).tolist():
            agent = self.agents[place]
            if any(agent not in part for part in result[:4]):
                raise self._error(f"step returned nothing for {agent}, whose episode has not ended", _HOW_TO_LEAVE)
            self._see(copy, place, observations[agent], "step")
            rewards[place] = self._number(agent, paid[agent])
            ends[:, place] = bool(terminated[agent]), bool(truncated[agent]) or is_cut
        others = [agent for agent in observations if not acting[self._place(agent, "step")]]
        acting &= ~ends.any(axis=0)
        for agent in others:
            # Some envs return more for agents that have ended, with their flags.
            if agent in env.agents and not (is_cut or terminated.get(agent) or truncated.get(agent)):
                self._begin(copy, agent, observations[agent], "step")
        self._add_infos(copy, own_infos, infos)

    def _begin(self, copy: int, agent: Any, obs: Any, method: str) -> None:
        place = self._place(agent, method)
        self._acting[copy, place] = self._took_part[copy, place] = True
        self._see(copy, place, obs, method)

    def _place(self, agent: Any, where: str) -> int:
        if agent not in self.agents:
            agents = ", ".join(map(str, self.agents))
            raise self._error(f"{where} has the agent {agent}, which is not one of possible_agents ({agents})")
        return self.agents.index(agent)

    def _see(self, copy: int, place: int, obs: Any, method: str) -> None:
        """Store an agent's observation as a copy, as an env may change it later."""
        space = self.single_observation_space
        if not has_form(space, obs):
            what = f"{method} returned for {self.agents[place]} {misfit(space, obs)}"
            raise self._error(what, f"correct {method} of the env")
        is_box = isinstance(space, Box)
        self._seen[copy * self.agents_per_env + place] = np.array(obs, space.dtype) if is_box else deepcopy(obs)

    def _number(self, agent: Any, reward: Any) -> float:
        try:
            return float(reward)
        except (TypeError, ValueError):
            raise self._error(f"step returned for {agent} a reward of {_kind(reward)}, not a number") from None

    def _add_infos(self, copy: int, given: Mapping[Any, Any], infos: dict[str, Any]) -> None:
        for agent, info in given.items():
            if agent in self.agents and isinstance(info, dict) and info:
                self._add_info(infos, info, copy * self.agents_per_env + self.agents.index(agent))

    def _with_report(self, infos: dict[str, Any], over: Array) -> dict[str, Any]:
        """Return ``infos`` with which agents rest, and with the episodes of copies that are ``over [C]``."""
        is_first = np.zeros(self._acting.shape, bool)
        is_first[:, 0] = over
        whole = (
            np.where(is_first, self._returns.sum(axis=1, keepdims=True), 0.0),
            np.where(is_first.T, self._steps, 0).T,
        )
        report = (RESTING, ~self._acting), (GAME_OVER, is_first), (GAME_SCORE, whole[0]), (GAME_STEPS, whole[1])
        returns = np.where(self._took_part, self._returns, np.nan)
        reports = {key: value.reshape(-1) for key, value in report} | {AGENT_RETURNS: returns}
        return {INFOS: [{}] * self.num_envs} | infos | reports

    def _batch(self) -> Any:
        """Return the observations of all rows as a new array, or for a Dict as arrays."""
        return batched(self.single_observation_space, self._seen)

    def _called(self, copy: int, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of a copy; exceptions become EnvErrors with the line of the env."""
        try:
            return getattr(self._copies[copy], method)(*args, **kwargs)
        except gym.error.Error:  # for example a missing library, which it names
            raise
        except NotImplementedError as error:
            if method == "render":
                raise EnvError(f"env {self._name}: its class has no render method", HOW_TO_RENDER) from error
            raise env_error(self._name, error) from error
        except BaseException as error:
            raise env_error(self._name, error) from error

    def _error(self, what: str, hint: str = "correct the env") -> EnvError:
        return EnvError(f"env {self._name}: {what}", hint)


def _agents_of(env: Any, name: str) -> tuple[Any, ...]:
    agents = getattr(env, "possible_agents", None)
    if not isinstance(agents, list | tuple) or not agents:
        message = f"env {name} has no possible_agents, and each agent needs a row of its own"
        raise EnvError(message, "set self.possible_agents in __init__ to the names of all agents that may come")
    return tuple(agents)


def _kind(value: Any) -> str:
    return f"{type(value).__name__} of {len(value)} items" if isinstance(value, tuple | list) else type(value).__name__


def batched(space: Space[Any], items: Sequence[Any]) -> Any:
    """Return elements of a space as a new array ``[B, ...]``, or a dict of arrays; without any, zeros for B = 1."""
    empty: Any = create_empty_array(space, max(len(items), 1))
    return concatenate(space, items, empty) if items else empty


def agents_of(vector: VectorEnv[Any, Any, Any]) -> tuple[Any, ...]:
    """Return the names of the agents whose rows each env of a vector env has; none for envs of one agent."""
    rows = vector.unwrapped
    return rows.agents if isinstance(rows, AgentRows) else ()


def agents_per_env(vector: VectorEnv[Any, Any, Any]) -> int:
    """Return how many rows of a vector env are one env: 1 for envs of one agent."""
    return max(len(agents_of(vector)), 1)


class OneAgent(gym.Env[Any, Any]):
    """An agent of a copy of an env, while random actions move the others; each episode shows the next agent. Owns it.

    It is for checks, which play envs of one agent. A policy's own env is the copy itself.
    """

    def __init__(self, rows: AgentRows) -> None:
        self._rows, self._shown = rows, 0
        self.agents = rows.agents
        self.observation_space, self.action_space = rows.single_observation_space, rows.single_action_space
        self._others = deepcopy(self.action_space)
        self.metadata, self.render_mode = rows.metadata, rows.render_mode
        self._infos: dict[str, Any] = {}
        self._obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._others.seed(seed)
        self._obs, self._infos = self._rows.reset(seed=seed, options=options)
        acting = np.flatnonzero(~self._infos[RESTING])
        self._shown = int(acting[0 if seed is not None else (acting > self._shown).argmax()])
        return self._own(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows = self._rows
        chosen = [action if row == self._shown else self._drawn(row) for row in range(rows.num_envs)]
        self._obs, rewards, terminated, truncated, self._infos = rows.step(batched(self.action_space, chosen))
        shown = self._shown
        return self._own(), float(rewards[shown]), bool(terminated[shown]), bool(truncated[shown]), self._info()

    def render(self) -> Any:
        """Return a picture of the env."""
        return self._rows.render()[0]

    def close(self) -> None:
        self._rows.close()

    def _drawn(self, row: int) -> Any:
        """Return a random action of another agent, among those that its mask allows."""
        obs = self._of(row)
        mask = obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
        if mask is None and ACTION_MASK in self._infos:
            mask = self._infos[ACTION_MASK][row]
        if mask is None or not isinstance(self._others, Discrete):
            return self._others.sample()
        return self._others.sample(mask=np.asarray(mask, np.int8))

    def _of(self, row: int) -> Any:
        return list(iterate(self._rows.observation_space, self._obs))[row]

    def _own(self) -> Any:
        return deepcopy(self._of(self._shown))

    def _info(self) -> dict[str, Any]:
        mask = self._infos.get(ACTION_MASK)
        return {} if mask is None else {ACTION_MASK: mask[self._shown]}


class TranslatedRows(Wrapper):
    """Applies wrappers of single envs that have no state to each row: their observations and their actions."""

    def __init__(self, vector: VectorEnv[Any, Any, Any], wrappers: Sequence[gym.Env[Any, Any]]) -> None:
        """``wrappers`` are around one agent's spaces, the innermost first."""
        super().__init__(vector)
        self._wrappers = list(wrappers)
        self.single_observation_space = wrappers[-1].observation_space
        self.single_action_space = wrappers[-1].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._translated(obs), infos

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        given = list(iterate(self.action_space, actions))
        for wrapper in reversed(self._wrappers):
            if isinstance(wrapper, gym.ActionWrapper):
                given = [wrapper.action(action) for action in given]
        obs, rewards, terminated, truncated, infos = self.env.step(batched(self.env.single_action_space, given))
        return self._translated(obs), rewards, terminated, truncated, infos

    def _translated(self, obs: Any) -> Any:
        rows = list(iterate(self.env.observation_space, obs))
        for wrapper in self._wrappers:
            if isinstance(wrapper, gym.ObservationWrapper):
                rows = [wrapper.observation(row) for row in rows]
        return batched(self.single_observation_space, rows)
