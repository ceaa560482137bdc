"""RLlib's example envs, under ids such as ``rllib/StatelessCartPole-v0``; importing this module registers them.

They take their options as RLlib's files give them: as keyword arguments, or in a mapping ``config``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.wrappers import RescaleAction

from rlexp.config.keys.env_ids import BULLET_CART_POLE, CUT_AFTER, RLLIB_ENVS
from rlexp.envs.cart_poles import CartPoleCrashing, Options, StatelessCartPole, Step, given_options
from rlexp.sample_batch import Array

_REWARDS: Final = Box(-1.0, 1.0, (), np.float32)


class RandomEnv(gym.Env[Any, Any]):
    """Shows and pays random numbers, whatever the actions are; each step ends the episode with chance ``p_done``."""

    def __init__(
        self,
        config: Options | None = None,
        observation_space: Box | Discrete | None = None,
        action_space: Box | Discrete | None = None,
        **options: Any,
    ) -> None:
        names = ("p_done", "p_terminated", "max_episode_len", "static_samples", "check_action_bounds")
        given = given_options(self, config, options, *names)
        self.observation_space = observation_space or Discrete(2)
        self.action_space = action_space or Discrete(2)
        self._chance_of_end: float = given.get("p_terminated", given.get("p_done", 0.1))
        self._longest: int | None = given.get("max_episode_len")
        self._checks_actions: bool = given.get("check_action_bounds", False)
        self._is_static: bool = given.get("static_samples", False)
        self._static: tuple[Any, float] | None = None
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._length = 0
        return self._shown()[0], {}

    def step(self, action: Any) -> Step:
        if self._checks_actions and not self.action_space.contains(action):
            raise ValueError(f"the action {action} is not in {self.action_space}")
        self._length += 1
        observation, reward = self._shown()
        is_over = bool(self.np_random.random() < self._chance_of_end)
        is_cut = self._longest is not None and self._length >= self._longest
        return observation, reward, is_over, is_cut, {}

    def _shown(self) -> tuple[Any, float]:
        """Return an observation and a reward; with ``static_samples`` always the first ones."""
        if self._static is None or not self._is_static:
            self._static = _drawn(self.observation_space, self.np_random), float(_drawn(_REWARDS, self.np_random))
        return self._static


class RandomLargeObsSpaceEnv(RandomEnv):
    """RandomEnv with 5000 numbers in an observation."""

    def __init__(self, config: Options | None = None, **options: Any) -> None:
        super().__init__(config, Box(-1.0, 1.0, (5000,), np.float32), **options)


class RandomLargeObsSpaceEnvContActions(RandomEnv):
    """RandomEnv with 5000 numbers in an observation, and 5 in an action."""

    def __init__(self, config: Options | None = None, **options: Any) -> None:
        super().__init__(config, Box(-1.0, 1.0, (5000,), np.float32), Box(-1.0, 1.0, (5,), np.float32), **options)


class RepeatAfterMeEnv(gym.Env[Any, Any]):
    """Pays for repeating the observation of ``repeat_delay`` steps before: 1 or -1, or less for a larger distance."""

    def __init__(self, config: Options | None = None, **options: Any) -> None:
        given = given_options(self, config, options, "continuous", "repeat_delay", "episode_len")
        is_continuous = bool(given.get("continuous", False))
        space = Box(-1.0, 1.0, (2,), np.float32) if is_continuous else Discrete(2)
        self.observation_space = self.action_space = space
        self._delay: int = given.get("repeat_delay", 1)
        self._length: int = given.get("episode_len", 100)
        self._shown: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._shown = [0] * self._delay
        return self._next(), {}

    def step(self, action: Any) -> Step:
        wanted = self._shown[-1 - self._delay]
        if isinstance(self.action_space, Box):
            reward = -float(np.abs(action - wanted).sum())
        else:
            reward = 1.0 if action == wanted else -1.0
        is_over = len(self._shown) > self._length
        return self._next(), reward, is_over, False, {}

    def _next(self) -> Any:
        self._shown.append(_drawn(self.observation_space, self.np_random))
        return self._shown[-1]


class RecommSys001(gym.Env[Any, Any]):
    """Recommends ``slate_size`` of some documents to a user, who may read one and pays as far as it is of interest.

    Users and documents are vectors of interest in ``num_categories``, from fixed sets of ``num_users_in_db`` and
    ``num_docs_in_db``, or new ones. A user leaves after reading ``user_time_budget`` documents.
    """

    def __init__(self, config: Options | None = None, **options: Any) -> None:
        names = ("num_categories", "num_docs_to_select_from", "slate_size", "num_docs_in_db", "num_users_in_db")
        given = given_options(self, config, options, *names, "user_time_budget")
        self._num_categories, self._num_shown, self._size = (
            given.get(name, default) for name, default in zip(names[:3], (2, 10, 1), strict=True)
        )
        self._limits = given.get("num_docs_in_db"), given.get("num_users_in_db")
        self._stored: dict[int, Array] = {}
        self._budget: float = given.get("user_time_budget", 60.0)
        interests = Box(0.0, 1.0, (self._num_categories,), np.float32)
        answer = {"click": Discrete(2), "engagement": Box(0.0, 100.0, (), np.float32)}
        parts = {
            "doc": Dict({str(index): interests for index in range(self._num_shown)}),
            "user": interests,
            "response": Tuple([Dict(answer) for _ in range(self._size)]),
        }
        self.observation_space = Dict(parts)
        self.action_space = MultiDiscrete([self._num_shown] * self._size)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = self._budget
        self._user = self._interests(1, 1)[0]
        return self._shown(None, 0.0), {}

    def step(self, action: Array) -> Step:
        overlaps = np.append(self._docs[action] @ self._user, 1 / self._num_categories)  # the last: reads none
        chances = np.exp(10 * (overlaps - overlaps.max()))
        read = int(self.np_random.choice(self._size + 1, p=chances / chances.sum()))
        reward = float(overlaps[read]) if read < self._size else 0.0
        self._left -= read < self._size
        return self._shown(read, reward), reward, self._left <= 0, False, {}

    def _interests(self, kind: int, number: int) -> Array:
        """Return vectors ``[number, C]`` of documents (0) or users (1), different ones of a fixed set."""
        limit = self._limits[kind]
        if kind not in self._stored or limit is None:
            drawn = np.exp(self.np_random.normal(scale=2.0, size=(limit or number, self._num_categories)))
            self._stored[kind] = (drawn / drawn.sum(axis=1, keepdims=True)).astype(np.float32)
        stored = self._stored[kind]
        return stored if limit is None else stored[self.np_random.choice(limit, number, replace=False)]

    def _shown(self, read: int | None, reward: float) -> dict[str, Any]:
        self._docs = self._interests(0, self._num_shown)
        answers = [(int(index == read), np.float32(reward if index == read else 0)) for index in range(self._size)]
        return {
            "doc": {str(index): doc for index, doc in enumerate(self._docs)},
            "user": self._user,
            "response": tuple({"click": click, "engagement": np.asarray(time)} for click, time in answers),
        }


class IndependentEnvs:
    """Envs of one kind side by side, each played by an agent until its episode ends: an env like a ParallelEnv."""

    render_mode = None

    def __init__(
        self, make: Callable[..., gym.Env[Any, Any]], config: Options | None = None, num_agents: int = 1, **options: Any
    ) -> None:
        given = {**(config or {}), **options}
        number = given.pop("num_agents", num_agents)
        self._envs = {f"agent_{index}": make(**given) for index in range(number)}
        self.possible_agents = list(self._envs)
        self.agents: list[str] = []
        self.metadata: dict[str, Any] = {}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of an agent's observations."""
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return the space of an agent's actions."""
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode of each env, with random streams of its own."""
        seeds = np.random.SeedSequence(seed).generate_state(len(self._envs)).tolist()
        self.agents = list(self._envs)
        starts = {
            agent: env.reset(seed=None if seed is None else own)
            for (agent, env), own in zip(self._envs.items(), seeds, strict=True)
        }
        observations, infos = ({agent: start[part] for agent, start in starts.items()} for part in range(2))
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Step the env of each agent."""
        steps = {agent: self._envs[agent].step(actions[agent]) for agent in self.agents}
        self.agents = [agent for agent, step in steps.items() if not (step[2] or step[3])]
        return tuple({agent: step[part] for agent, step in steps.items()} for part in range(5))

    def close(self) -> None:
        """Close all envs."""
        for env in self._envs.values():
            env.close()


def transformed_action_pendulum(
    config: Options | None = None, low: float = -1.0, high: float = 1.0, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    """Return Pendulum whose actions are numbers from ``low`` to ``high``."""
    given = {"low": low, "high": high, **(config or {})}
    return RescaleAction(
        gym.make("Pendulum-v1", render_mode=render_mode), np.float32(given["low"]), np.float32(given["high"])
    )


def _drawn(space: gym.Space[Any], rng: np.random.Generator) -> Any:
    """Return a random element of a space of bounded numbers, or of choices."""
    if isinstance(space, Box):
        return np.asarray(rng.uniform(space.low, space.high), space.dtype)
    assert isinstance(space, Discrete)
    return int(rng.integers(space.n))


_MAKERS: Final[Mapping[str, Callable[..., gym.Env[Any, Any]]]] = {
    "CartPoleCrashing": CartPoleCrashing,
    "RandomEnv": RandomEnv,
    "RecommSys001": RecommSys001,
    "RandomLargeObsSpaceEnv": RandomLargeObsSpaceEnv,
    "RandomLargeObsSpaceEnvContActions": RandomLargeObsSpaceEnvContActions,
    "RepeatAfterMeEnv": RepeatAfterMeEnv,
    "StatelessCartPole": StatelessCartPole,
    "TransformedActionPendulum": transformed_action_pendulum,
}
PARALLEL_ENVS: Final[Mapping[str, Callable[..., IndependentEnvs]]] = {
    RLLIB_ENVS[f"MultiAgent{name}"]: partial(IndependentEnvs, partial(gym.make, env_id, disable_env_checker=True))
    for name, env_id in (
        ("CartPole", "CartPole-v1"),
        ("CartPoleCrashing", RLLIB_ENVS["CartPoleCrashing"]),
        ("MountainCar", "MountainCarContinuous-v0"),
        ("Pendulum", "Pendulum-v1"),
    )
}
"""RLlib's example envs of several agents, whose option ``num_agents`` says how many."""
for _name, _make in _MAKERS.items():
    gym.register(RLLIB_ENVS[_name], _make, max_episode_steps=CUT_AFTER.get(RLLIB_ENVS[_name]))
gym.register(BULLET_CART_POLE, "rlexp.envs.cart_poles:ContinuousBulletCartPole", max_episode_steps=200)
