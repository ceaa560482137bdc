"""What of Gymnasium's spaces the agents can play: vectors, images and discrete actions."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.vector import FlattenObservation

from rlexp.errors import UsageError

MOST_CHANNELS_FIRST = 4
"""An image of so few rows, and more columns and channels, is one with its channels first."""


def flatten_observations(vector: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Wrap ``vector`` so that its observations are vectors, or else images ``[H, W, C]``.

    Discrete becomes one-hot; Dict, Tuple and Boxes of other ranks are joined.
    """
    space = vector.single_observation_space
    if isinstance(space, Box) and len(space.shape) in (1, 3):
        return vector
    return FlattenObservation(vector)


def check_spaces(env: str, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise UsageError where ``env`` has spaces that DQN and APEX cannot play here."""
    if not isinstance(action_space, Discrete):
        raise UsageError(
            f"env {env} has actions {action_space}; DQN and APEX need a Discrete action space",
            "discretize_actions: 5 chooses among 5 values per dimension"
            if isinstance(action_space, Box)
            else "wrap the env so that it takes a finite number of actions",
        )
    if action_space.start != 0:
        raise UsageError(
            f"env {env} has actions {action_space}, which do not start at 0", "wrap the env so that they do"
        )
    if not observation_space.is_np_flattenable:
        raise UsageError(f"env {env} has observations {observation_space}, which cannot be laid out as a vector")


def check_layout(env: str, observation_space: Space[Any]) -> None:
    """Raise UsageError where ``env`` shows images with the channels first: they would be taken for very low ones."""
    shape = observation_space.shape
    if shape is not None and len(shape) == 3 and shape[0] <= MOST_CHANNELS_FIRST < min(shape[1:]):
        raise UsageError(
            f"env {env} has image observations {shape}, which look like [channels, height, width]",
            "wrap the env so that they are [height, width, channels]",
        )


def check_reset(env_id: str, env: gym.Env[Any, Any]) -> None:
    """Raise UsageError where ``env`` cannot be reset, or its first observation is not one of its space."""
    space = env.observation_space
    try:
        obs, _ = env.reset(seed=0)
    except Exception as error:
        raise UsageError(f"env {env_id} cannot be reset: {type(error).__name__}: {error}", "mend its reset") from error
    # Bounds are not looked at: many an env leaves those of its space a little, which does no harm.
    fits = np.shape(obs) == space.shape if isinstance(space, Box) else space.contains(obs)
    if not fits:
        shown = f"shape {np.shape(obs)}" if isinstance(space, Box) else repr(obs)
        raise UsageError(f"env {env_id} was reset to an observation of {shown}, its space is {space}", "mend either")


def is_byte_vector(space: Space[Any]) -> bool:
    """Return whether observations are vectors of bytes that use the whole range, as the memory of an Atari game."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == np.iinfo(np.uint8).max).all())


def observation_bytes(observation_space: Space[Any]) -> int:
    """Return the bytes of one observation as the agents see it: an image, or else a vector."""
    flat = flatten_space(observation_space)
    return int(flat.dtype.itemsize * math.prod(flat.shape)) if flat.dtype and flat.shape else 0
