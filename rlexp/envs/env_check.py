"""Plays an env before anything is trained: its first steps before a run, whole episodes for ``rlexp check --env``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Tuple

from rlexp.envs.action_masks import MaskReader, random_actions
from rlexp.errors import EnvError

_SLACK: Final = 0.01
"""Share of a Box's range by which observations may leave it: many envs do so a little, without harm."""
_MOST_REPEATED: Final = 100
"""Steps of the first episode that are taken again with the same seed."""
_STEPS_NOT_REPEATED: Final = (
    "step returns another observation or reward for the same seed and actions, so a seed does not repeat an experiment:"
    " draw from self.np_random, and let reset set all that step changes"
)
_NOT_REPEATED: Final = (
    "reset returns another observation for the same seed, so a seed does not repeat an experiment: call"
    " super().reset(seed=seed), and draw from self.np_random"
)


@dataclass(frozen=True)
class Limit:
    """How long an env is played: no step begins after any of these limits."""

    num_steps: float
    num_episodes: float
    seconds: float
    least_steps: int = 0
    """Steps that are taken even in more than ``num_episodes``: a fault may come in one of thousands."""
    is_repeated: bool = False
    """Whether the first episode is played again, to see if its seed repeats it."""


FIRST_STEPS: Final = Limit(16, float("inf"), 2.0)
"""The limit before a run, which should begin soon."""
EPISODES: Final = Limit(float("inf"), 20, 3.0, least_steps=5_000, is_repeated=True)
"""The limit for ``rlexp check --env``."""


@dataclass(frozen=True)
class Doubt:
    """A problem of an env; if it ``is_error``, nothing can be trained with the env."""

    message: str
    hint: str | None = None
    is_error: bool = False


class EnvCheck:
    """Plays one env with random actions, and reports each problem once."""

    def __init__(
        self,
        env_id: str,
        env: gym.Env[Any, Any],
        begin: Callable[[str], None] = lambda _: None,
        masks: MaskReader | None = None,
    ) -> None:
        """``begin`` is called with the next activity, so that a process that hangs or dies there can be located.

        Only actions that ``masks`` allow are chosen.
        """
        self._env_id, self._env, self._begin, self._masks = env_id, env, begin, masks
        self._info: dict[str, Any] = {}
        self._seen: set[str] = set()
        self._end_s = 0.0
        self.num_steps = 0
        self.num_episodes = 0
        """Number of episodes that have begun."""
        self.num_ended = 0
        """Number of episodes that have ended by themselves."""
        self.has_rewards = False
        """Whether a reward was not 0."""
        self._recorded: list[tuple[Any, Any, float]] = []
        """Action, observation and reward of the first steps."""

    def first_steps(self) -> list[Doubt]:
        """Reset the env, take the first steps, and return its problems.

        Raises EnvError if training is impossible: it cannot be reset or stepped, an observation is not in its space, or
        an observation or a reward is NaN or infinite.
        """
        doubts = []
        for doubt in self.doubts(FIRST_STEPS):
            if doubt.is_error:
                raise EnvError(doubt.message, doubt.hint)
            doubts.append(doubt)
        return doubts

    def doubts(self, limit: Limit) -> Iterator[Doubt]:
        """Play to the ``limit``; an exception of the env ends an episode, and the next one begins."""
        self._end_s = time.monotonic() + limit.seconds
        self._env.action_space.seed(0)
        while not self._is_over(limit):
            if self.num_episodes >= limit.num_episodes and self.num_steps >= limit.least_steps:
                return
            self.num_episodes += 1
            num_steps = self.num_steps
            try:
                yield from self._episode(limit)
                if self.num_episodes == 1 and limit.is_repeated and _NOT_REPEATED not in self._seen:
                    yield from self._repeated()
            except EnvError as error:
                yield from self._once(error.message, Doubt(f"{error.message} ({self._place})", error.hint, True))
                if self.num_steps == num_steps:  # it cannot be reset, or not be stepped even once
                    return

    def _episode(self, limit: Limit) -> Iterator[Doubt]:
        obs = self._reset()
        yield from self._values("reset", obs)
        if limit.is_repeated:
            yield from self._types(obs)
        if self.num_episodes == 1:
            self._check_kind(obs)
            if not _are_equal(self._env.observation_space, obs, self._reset()):
                yield from self._once(_NOT_REPEATED, Doubt(_NOT_REPEATED))
        number = 0
        while not self._is_over(limit):
            number += 1
            self._place = f"step {number} of episode {self.num_episodes}"
            self._begin(self._place)
            action = self._action(obs)
            obs, reward, terminated, truncated, self._info = self._env.step(action)
            self.num_steps += 1
            self.has_rewards = self.has_rewards or float(reward) != 0
            if number <= _MOST_REPEATED and self.num_episodes == 1 and limit.is_repeated:
                self._recorded.append((action, deepcopy(obs), float(reward)))
            if not np.isfinite(float(reward)):
                message = f"{self._place} returned a reward of {float(reward):g}"
                yield from self._once("reward", Doubt(f"env {self._env_id}: {message}", "correct the reward", True))
            yield from self._values(self._place, obs)
            if terminated or truncated:
                self.num_ended += 1
                return

    def _repeated(self) -> Iterator[Doubt]:
        """Take the steps of the first episode again, with its seed and actions."""
        self._reset()
        for number, (action, obs, reward) in enumerate(self._recorded, start=1):
            self._place = f"step {number} of episode 1, taken again,"
            self._begin(self._place)
            seen, again, terminated, truncated, _ = self._env.step(action)
            is_equal = _are_equal(self._env.observation_space, obs, seen) and _have_equal_numbers(float(again), reward)
            if not is_equal:
                yield from self._once(_STEPS_NOT_REPEATED, Doubt(_STEPS_NOT_REPEATED))
                return
            if terminated or truncated:
                return

    def _reset(self) -> Any:
        self._place = f"reset of episode {self.num_episodes}"
        self._begin(self._place)
        obs, self._info = self._env.reset(seed=0 if self.num_episodes == 1 else None)
        return obs

    def _action(self, obs: Any) -> Any:
        """Return a random action."""
        space = self._env.action_space
        if self._masks is None:
            return space.sample()
        allowed = self._masks.of_env(self._env, obs, self._info)
        return random_actions(space, self._masks.choices, allowed[None])[0]

    def _is_over(self, limit: Limit) -> bool:
        return self.num_steps >= limit.num_steps or (self.num_steps > 0 and time.monotonic() > self._end_s)

    def _once(self, topic: str, doubt: Doubt) -> Iterator[Doubt]:
        if topic not in self._seen:
            self._seen.add(topic)
            yield doubt

    def _check_kind(self, obs: Any) -> None:
        space = self._env.observation_space
        if not isinstance(space, Box) and not space.contains(obs):
            raise EnvError(
                f"env {self._env_id}: reset returned {obs!r}, which its observation_space {space} does not contain",
                "correct the observation or the observation_space",
            )

    def _types(self, obs: Any) -> Iterator[Doubt]:
        """Yield the arrays of floats that have another type than their Box: another program may refuse them."""
        for number, (box, seen) in enumerate(_parts(self._env.observation_space, obs)):
            if isinstance(seen, np.ndarray) and seen.dtype.kind == box.dtype.kind == "f" and seen.dtype != box.dtype:
                message = f"reset returned {seen.dtype} numbers, which become {box.dtype}, as in its observation_space"
                yield from self._once(f"type {number}", Doubt(message))

    def _values(self, method: str, obs: Any) -> Iterator[Doubt]:
        """Yield the parts of an observation that are not finite, or far outside their Box."""
        for number, (box, value) in enumerate(_parts(self._env.observation_space, obs)):
            seen = np.asarray(value)
            if seen.dtype.kind == "f" and box.dtype.kind in "iu":
                message = f"{method} returned {seen.dtype} numbers, which its observation_space ({box.dtype}) cuts off"
                yield from self._once(f"type {number}", Doubt(message))
            if seen.dtype.kind not in "fi":
                continue
            if not np.isfinite(seen).all():
                worst = seen[~np.isfinite(seen)].flat[0]
                message = f"env {self._env_id}: {method} returned an observation of {worst:g}"
                yield from self._once(f"not finite {number}", Doubt(message, "correct the observation", True))
                continue
            outside = _outside(box, seen)
            if outside is not None:
                bounds = f"{box.low.min():g} to {box.high.max():g}"
                message = f"{method} returned an observation of {outside:g}, outside its observation_space ({bounds})"
                yield from self._once(f"outside {number}", Doubt(message))


def _are_equal(space: Space[Any], one: Any, other: Any) -> bool:
    """Return whether the numbers of two observations are equal."""
    pairs = zip(_parts(space, one), _parts(space, other), strict=True)
    return all(_have_equal_numbers(mine, its) for (_, mine), (_, its) in pairs)


def _have_equal_numbers(one: Any, other: Any) -> bool:
    """Return whether numbers are equal; NaN equals NaN, as it has a sentence of its own."""
    return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == np.asarray(other).dtype.kind == "f")


def _outside(box: Box, seen: Any) -> float | None:
    """Return the first value that exceeds the bounds of ``box`` by more than a little; None if there is none."""
    low, high = box.low.astype(np.float64), box.high.astype(np.float64)
    width = np.where(np.isfinite(high) & np.isfinite(low), high - low, 1.0)
    out = (seen < low - _SLACK * width) | (seen > high + _SLACK * width)
    return float(seen[out].flat[0]) if out.any() else None


def _parts(space: Space[Any], obs: Any) -> Iterator[tuple[Box, Any]]:
    if isinstance(space, Box):
        yield space, obs
    elif isinstance(space, Dict):
        for key, part in space.items():
            yield from _parts(part, obs[key])
    elif isinstance(space, Tuple):
        for part, item in zip(space.spaces, obs, strict=True):
            yield from _parts(part, item)
