"""What of Gymnasium's spaces the agents can play."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import FlattenObservation

from rlexp.envs.env_config import EnvConfig
from rlexp.errors import UsageError

SHAPES_KEPT = (1, 3)
"""Ranks of observations that are not flattened: vectors and images."""
MOST_CHANNELS_FIRST = 4
"""An image of so few rows, and more columns and channels, is one with its channels first."""


def flatten_observations(vector: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Wrap ``vector`` so that its observations are vectors, or else images ``[H, W, C]``.

    Discrete becomes one-hot; Dict, Tuple and Boxes of other ranks are joined.
    """
    space = vector.single_observation_space
    if isinstance(space, Box) and len(space.shape) in SHAPES_KEPT:
        return vector
    return FlattenObservation(vector)


def check_spaces(config: EnvConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise UsageError where an env has actions that its algorithm cannot choose, or observations without numbers."""
    env, playable = config.env, config.actions
    if playable is not None and not isinstance(action_space, tuple(getattr(spaces, name) for name in playable.spaces)):
        raise UsageError(
            f"env {env} has the action space {action_space}; {playable.needs}",
            (playable.hint_for_box if isinstance(action_space, Box) else None) or playable.hint,
        )
    if isinstance(action_space, Discrete) and action_space.start != 0:
        raise UsageError(
            f"env {env} has the action space {action_space}, which does not start at 0",
            "wrap the env so that its actions are 0, 1, 2, ...",
        )
    without_form = [name for name, part in _parts(observation_space) if not _can_be_vector(part)]
    if without_form:
        raise UsageError(
            f"env {env} has the observation space {observation_space}; {' and '.join(without_form)} cannot be turned "
            "into numbers",
            _wrapper_for(observation_space),
        )
    if observation_bytes(observation_space) == 0:
        raise UsageError(
            f"env {env} has the empty observation space {observation_space}",
            "return at least one number as observation",
        )


def _parts(space: Space[Any]) -> list[tuple[str, Space[Any]]]:
    """Return the entries of a Dict with their names; any other space as the only part."""
    return [(f"{name!r}", part) for name, part in space.items()] if isinstance(space, Dict) else [("it", space)]


def _can_be_vector(space: Space[Any]) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # spaces of other libraries do not say
        return False


def _wrapper_for(space: Space[Any]) -> str:
    """Return how to wrap an env such that its observations become numbers."""
    kept = [name for name, part in space.items() if _can_be_vector(part)] if isinstance(space, Dict) else []
    if not kept:
        return "wrap the env so that its observations are numbers, and name your class as env: package.module:Class"
    return (
        f"write a class MyEnv(gymnasium.Wrapper) around gymnasium.wrappers.FilterObservation(env, {kept}), "
        "and name it as env: my_module:MyEnv"
    )


def check_layout(env: str, observation_space: Space[Any]) -> None:
    """Raise UsageError where ``env`` shows images with the channels first: they would be taken for very low ones."""
    shape = observation_space.shape
    if shape is not None and len(shape) == 3 and shape[0] <= MOST_CHANNELS_FIRST < min(shape[1:]):
        raise UsageError(
            f"env {env} has image observations {shape}, which look like [channels, height, width]",
            "wrap the env so that they are [height, width, channels]",
        )


def is_byte_vector(space: Space[Any]) -> bool:
    """Return whether observations are vectors of bytes that use the whole range, as the memory of an Atari game."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == np.iinfo(np.uint8).max).all())


def observation_bytes(observation_space: Space[Any]) -> int:
    """Return the bytes of one observation as the agents see it: an image, or else a vector."""
    flat = flatten_space(observation_space)
    return int(flat.dtype.itemsize * math.prod(flat.shape)) if flat.dtype and flat.shape else 0


def observation_shape(observation_space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of one observation as the agents see it."""
    keeps_its_shape = isinstance(observation_space, Box) and len(observation_space.shape) in SHAPES_KEPT
    return (observation_space if keeps_its_shape else flatten_space(observation_space)).shape or ()
