"""What the first steps of an env show of it, before anything is trained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Tuple

from rlexp.errors import EnvError

NUM_STEPS: Final = 16
LONGEST_S: Final = 2.0
"""Slow envs are stepped less often: after so many seconds no further step begins."""
_SLACK: Final = 0.01
"""Share of a Box's range by which observations may leave it: many an env leaves its Box a little, without harm."""


def check_first_steps(env_id: str, env: gym.Env[Any, Any]) -> list[str]:
    """Reset ``env``, step it up to NUM_STEPS times, and return what is doubtful about it, in sentences.

    Raises EnvError where it cannot be reset or stepped, where an observation is not of its space, or where an
    observation or a reward is NaN or infinite: it could not be trained with.
    """
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    _check_kind(env_id, env.observation_space, obs)
    doubts = dict.fromkeys(_checked_values(env_id, "reset", env.observation_space, obs))
    end_s = time.monotonic() + LONGEST_S
    for number in range(1, NUM_STEPS + 1):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        if not np.isfinite(float(reward)):
            raise EnvError(f"env {env_id}: step {number} returned a reward of {float(reward):g}", "correct the reward")
        doubts |= dict.fromkeys(_checked_values(env_id, f"step {number}", env.observation_space, obs))
        if doubts or time.monotonic() > end_s:
            break
        if terminated or truncated:
            env.reset()
    return list(doubts)


def _check_kind(env_id: str, space: Space[Any], obs: Any) -> None:
    if not isinstance(space, Box) and not space.contains(obs):
        raise EnvError(
            f"env {env_id}: reset returned {obs!r}, which its observation_space {space} does not contain",
            "correct the observation or the observation_space",
        )


def _checked_values(env_id: str, method: str, space: Space[Any], obs: Any) -> Iterator[str]:
    """Yield which observations are far outside their Box; raises EnvError for those that are not finite."""
    for box, value in _parts(space, obs):
        seen = np.asarray(value)
        if seen.dtype.kind != "f":
            continue
        if not np.isfinite(seen).all():
            worst = seen[~np.isfinite(seen)].flat[0]
            raise EnvError(f"env {env_id}: {method} returned an observation of {worst:g}", "correct the observation")
        outside = _outside(box, seen)
        if outside is not None:
            bounds = f"{box.low.min():g} to {box.high.max():g}"
            yield f"{method} returned an observation of {outside:g}, outside its observation_space ({bounds})"


def _outside(box: Box, seen: Any) -> float | None:
    """Return the first value that leaves the bounds of ``box`` by more than a little, None where none does."""
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
