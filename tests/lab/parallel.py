"""Envs of several agents with the methods of PettingZoo's ParallelEnv; each step says whose and which it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

Array = NDArray[Any]
RELAY = "tests.lab.parallel:Relay"
MASKED_RELAY = "tests.lab.parallel:MaskedRelay"
LIVES: Mapping[str, tuple[int, int, str]] = {"a": (0, 3, "terminated"), "b": (0, 5, "truncated"), "c": (2, 5, "both")}
"""For each agent of a Relay, the steps of its first and its last observation, and how it ends."""


class Relay:
    """An env whose agents come and go at fixed steps. Reward: 1 for the first, 10 for the second, and so on.

    An observation has the number of the agent, of the step in its episode, and of the episode since a seed, from 1000
    times the last two digits of the seed on.
    """

    render_mode: str | None

    def __init__(
        self, lives: Mapping[str, Sequence[Any]] = LIVES, render_mode: str | None = None, keeps_agents: bool = False
    ) -> None:
        self.possible_agents = list(lives)
        self.agents: list[str] = []
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
        self.render_mode = render_mode
        self._lives, self._keeps_agents = {agent: tuple(life) for agent, life in lives.items()}, keeps_agents
        self._episode = self._step = 0
        self.closed = 0

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1e6, (3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._episode = self._episode + 1 if seed is None else 1000 * (seed % 100)
        self._step = 0
        self.agents = self._present()
        return self._observations(self.agents), {agent: {"number": self._number(agent)} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> Any:
        before = self.agents
        assert set(actions) == set(before), "an agent that is not there got an action"
        self._step += 1
        acted = [agent for agent in before if self._lives[agent][1] >= self._step]
        ends = {agent: self._lives[agent][2] if self._lives[agent][1] == self._step else "" for agent in acted}
        new = [agent for agent in self._present() if agent not in before]
        if not self._keeps_agents:
            self.agents = [agent for agent in acted if not ends[agent]] + new
        shown = acted + new
        return (
            self._observations(shown),
            {agent: 10.0 ** self._number(agent) for agent in acted},
            {agent: ends.get(agent) in {"terminated", "both"} for agent in shown},
            {agent: ends.get(agent) in {"truncated", "both"} for agent in shown},
            {agent: {"number": self._number(agent)} for agent in shown},
        )

    def render(self) -> Array:
        return np.full((4, 4, 3), self._step, np.uint8)

    def close(self) -> None:
        self.closed += 1

    def _present(self) -> list[str]:
        return [agent for agent, (first, last, _) in self._lives.items() if first <= self._step < last]

    def _number(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _observations(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: self._observation(agent) for agent in agents}

    def _observation(self, agent: str) -> Any:
        return np.array([self._number(agent), self._step, self._episode], np.float32)


class MaskedRelay(Relay):
    """Allows only the action that is the step's parity; the last observation of an agent allows none."""

    def __init__(self, place: str = "observation", lives: Mapping[str, Sequence[Any]] = LIVES) -> None:
        super().__init__(lives)
        self._place = place

    def observation_space(self, agent: str) -> Any:
        own = super().observation_space(agent)
        return Dict({"observation": own, "action_mask": Box(0, 1, (2,), np.int8)}) if self._is_inside else own

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        return observations, self._infos(infos)

    def step(self, actions: Mapping[str, Any]) -> Any:
        assert all(action == self._step % 2 for action in actions.values()), "an action that is not allowed"
        *rest, infos = super().step(actions)
        return *rest, self._infos(infos)

    def _infos(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: info if self._is_inside else {"action_mask": self._mask(agent)} for agent, info in infos.items()}

    def _observation(self, agent: str) -> Any:
        own = super()._observation(agent)
        return {"observation": own, "action_mask": self._mask(agent)} if self._is_inside else own

    @property
    def _is_inside(self) -> bool:
        return self._place == "observation"

    def _mask(self, agent: str) -> Array:
        is_over = self._lives[agent][1] == self._step
        return np.array([not is_over and self._step % 2 == action for action in range(2)], np.int8)


class Unequal(Relay):
    """Its second agent sees more."""

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1e6, (3 + (agent == "b"),), np.float32)


class Images(Relay):
    """Shows images, which can be scaled, and has continuous actions, which can be numbered."""

    def observation_space(self, agent: str) -> Any:
        return Box(0, 255, (12, 12, 3), np.uint8)

    def action_space(self, agent: str) -> Any:
        return Box(-2.0, 2.0, (1,), np.float32)

    def step(self, actions: Mapping[str, Any]) -> Any:
        self.actions = dict(actions)
        return super().step(actions)

    def _observation(self, agent: str) -> Any:
        return np.full((12, 12, 3), 10 * self._number(agent) + self._step, np.uint8)


class Wrong(Relay):
    """Breaks one rule, which ``fault`` names."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault
        if fault == "no agents":
            del self.possible_agents

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observations, infos = super().reset(seed, options)
        if self._fault == "only observations":
            return observations
        return ({} if self._fault == "nobody" else observations), infos

    def step(self, actions: Mapping[str, Any]) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(actions)
        if self._fault == "leaves":
            del observations["b"]
        if self._fault == "stranger":
            observations["x"], self.agents = observations["b"], [*self.agents, "x"]
        if self._fault == "shape":
            observations["b"] = np.zeros(2, np.float32)
        if self._fault == "reward":
            rewards["b"] = "much"
        if self._fault == "raises":
            raise ValueError("the relay stumbles")
        if self._fault == "four":
            return observations, rewards, terminated, infos
        return observations, rewards, terminated, truncated, infos


def parallel_env(lives: Mapping[str, Sequence[Any]] = LIVES, render_mode: str | None = None) -> Relay:
    """Make a Relay, as a module of PettingZoo's makes its env."""
    return Relay(lives, render_mode)
