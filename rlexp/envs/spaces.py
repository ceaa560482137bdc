"""The Gymnasium spaces that agents can play, and the wrappers that give envs such spaces.

Continuous actions are numbered for agents that choose from a finite set, else brought within their bounds. Observations
become vectors or images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.spaces.utils import flatten_space
from gymnasium.vector import VectorActionWrapper, VectorEnv
from gymnasium.wrappers.vector import FlattenObservation

from rlexp.config.keys.common import ActionScaling, PlayableActions
from rlexp.envs.registry import EnvConfig, Vector
from rlexp.errors import UsageError
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    _VectorActions = VectorActionWrapper[Any, Any, Any, Any]
else:  # not a generic class in Gymnasium 1.3
    _VectorActions = VectorActionWrapper

MOST_ACTIONS = 10_000
"""Most actions: a network has an output for each, and a grid has up to bins ** dimensions of them."""


class DiscreteActions(gym.ActionWrapper[Any, Any, Any]):
    """Numbers the points of a grid over a Box of d dimensions: ``bins`` values in each, both bounds included.

    Whole numbers are rounded, and come once: a dimension with fewer of them than ``bins`` has each.
    """

    grid: Array
    """The env's action ``[A, *shape]`` for each action number."""

    def __init__(self, env: gym.Env[Any, Any], name: str, bins: int) -> None:
        """Raise UsageError, naming the env, if a dimension has no bounds or the grid is too large."""
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, Box)
        if not space.is_bounded():
            message = f"env {name} has actions {space} without bounds, which discretize_actions cannot divide"
            raise UsageError(message, "wrap the env so that its actions are bounded")
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        bounds = list(zip(low, high, strict=True))
        is_whole = not is_continuous(space)
        counts = [min(bins, int(last) - int(first) + 1) if is_whole else bins for first, last in bounds]
        num_actions = math.prod(counts)
        if num_actions > MOST_ACTIONS:
            raise UsageError(
                f"discretize_actions: {bins} makes {num_actions:,} actions of the {len(counts)} dimensions of "
                f"env {name}; {MOST_ACTIONS:,} are the limit",
                "lower discretize_actions, or choose an env with fewer action dimensions",
            )
        axes = [np.linspace(*ends, number) for ends, number in zip(bounds, counts, strict=True)]
        axes = [np.rint(axis) for axis in axes] if is_whole else axes
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        self.grid = grid.reshape(-1, *space.shape).astype(space.dtype)
        self.action_space = Discrete(len(self.grid))

    def action(self, action: Any) -> Any:
        return self.grid[action].copy()


def bound_actions(vector: Vector, scaling: ActionScaling | None) -> Vector:
    """Wrap ``vector`` so that envs get continuous actions within bounds; None and other spaces: unchanged."""
    space = vector.single_action_space
    return BoundedActions(vector, space, scaling) if scaling is not None and is_continuous(space) else vector


def is_continuous(space: Space[Any]) -> TypeGuard[Box]:
    """Return whether actions of ``space`` are floating-point numbers."""
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)


@dataclass(frozen=True, eq=False)
class ActionBounds:
    """Maps a continuous action into the bounds of its Box: ``clip(action * scale + shift, low, high)``.

    In float64, the width of a float32 Box is never infinite, and rounding to float32 gives its bounds exactly.
    """

    low: Array
    high: Array
    scale: Array
    shift: Array
    dtype: np.dtype[Any]
    """The dtype of the Box."""

    @staticmethod
    def of(space: Box, scaling: ActionScaling) -> ActionBounds:
        """``normalized`` maps -1 to 1 onto ``low`` to ``high`` in each dimension with two finite bounds."""
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        half = high / 2 - low / 2
        is_scaled = np.isfinite(half) & (scaling == "normalized")
        shift = np.add(low, half, out=np.zeros(space.shape), where=is_scaled)
        return ActionBounds(low, high, np.where(is_scaled, half, 1.0), shift, np.dtype(space.dtype))

    def bounded(self, actions: Array) -> Array:
        """Return the actions ``[M, ...]`` within the bounds, as a new array."""
        within: Array = np.clip(actions * self.scale + self.shift, self.low, self.high).astype(self.dtype)
        return within


class BoundedActions(_VectorActions):
    """Clips the actions ``[M, ...]`` of M envs to the bounds of their Box, ``normalized`` ones after scaling them.

    ``single_action_space`` is still the env's Box: a drawn action has its shape and dtype, but may exceed its bounds.
    Actions are not changed; the envs get new arrays.
    """

    def __init__(self, vector: Vector, space: Box, scaling: ActionScaling) -> None:
        super().__init__(vector)
        self._bounds = ActionBounds.of(space, scaling)

    def actions(self, actions: Array) -> Array:
        return self._bounds.bounded(actions)


SHAPES_KEPT = (1, 3)
"""Ranks of observations that are not flattened: vectors and images."""
MOST_CHANNELS_FIRST = 4
"""An image with at most so few rows, and more columns and channels, has its channels first."""
MOST_VALUES = 100_000
"""Most values of all numbers of an action together: a network has an output for each value of each number."""


def flatten_observations(vector: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """Wrap ``vector`` so that its observations are vectors, or else images ``[H, W, C]``.

    Discrete becomes one-hot; Dict, Tuple and Boxes of other ranks are joined.
    """
    return vector if keeps_its_shape(vector.single_observation_space) else FlattenObservation(vector)


def keeps_its_shape(space: Space[Any]) -> TypeGuard[Box]:
    """Return whether observations of ``space`` are vectors or images, which are not flattened."""
    return isinstance(space, Box) and len(space.shape) in SHAPES_KEPT


def check_spaces(config: EnvConfig, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise UsageError if an env has actions that its algorithm cannot choose, or observations without numbers."""
    env = config.env
    _check_actions(env, config.actions, action_space)
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


def _check_actions(env: str, playable: PlayableActions | None, space: Space[Any]) -> None:
    """Raise UsageError if the action space of ``env`` is not ``playable``; None: only its numbering is checked."""
    if playable is not None:
        is_refused = playable.squashes and isinstance(space, Box) and not is_continuous(space)
        if is_refused or not isinstance(space, tuple(getattr(spaces, name) for name in playable.spaces)):
            hint = playable.hint_for_box if isinstance(space, Box) else _hint_for_parts(playable, space)
            raise UsageError(f"env {env} has the action space {space}; {playable.needs}", hint or playable.hint)
        _check_values(env, space)
        if playable.squashes and isinstance(space, Box) and not space.is_bounded():
            raise UsageError(
                f"env {env} has the action space {space}, some of whose numbers have no bounds",
                "give the Box finite bounds, between which actions are chosen, or use PPO",
            )
    if isinstance(space, Discrete) and space.start != 0:
        raise UsageError(
            f"env {env} has the action space {space}, which does not start at 0",
            "wrap the env so that its actions are 0, 1, 2, ...",
        )


def _check_values(env: str, space: Space[Any]) -> None:
    """Raise UsageError if an action has no numbers, or if several whole numbers have too many values."""
    if space.shape is not None and math.prod(space.shape) == 0:
        raise UsageError(f"env {env} has the empty action space {space}", "give it at least one action")
    if isinstance(space, Box) and space.dtype == np.bool_:
        message = f"env {env} has the action space {space}, which is a Box of bool"
        raise UsageError(message, f"write spaces.MultiBinary({list(space.shape)}) in the env")
    num_values = sum(value_counts(space))
    if isinstance(space, Box | MultiDiscrete) and num_values > MOST_VALUES:
        raise UsageError(
            f"env {env} has the action space {space}: its whole numbers have {num_values:,} values together; "
            f"{MOST_VALUES:,} are the limit",
            "wrap the env so that they have smaller bounds, or are floating-point numbers",
        )


def value_counts(space: Space[Any]) -> list[int]:
    """Return the number of values of each whole number in an action; empty for other spaces."""
    match space:
        case Discrete():
            return [int(space.n)]
        case MultiDiscrete():
            return [int(count) for count in space.nvec.flat]
        case MultiBinary():
            return [2] * math.prod(space.shape)
        case Box() if np.issubdtype(space.dtype, np.integer):  # Python's integers: int64's width exceeds int64
            return [int(high) - int(low) + 1 for low, high in zip(space.low.flat, space.high.flat, strict=True)]
    return []


def _hint_for_parts(playable: PlayableActions, space: Space[Any]) -> str:
    """Return the agent's hint; for a Dict or Tuple, with the one space that has all numbers of its parts."""
    parts = list(_leaves(space))
    together = None
    if parts and all(map(value_counts, parts)) and "MultiDiscrete" in playable.spaces:
        together = f"MultiDiscrete({[count for part in parts for count in value_counts(part)]})"
    elif parts and all(map(is_continuous, parts)) and "Box" in playable.spaces:
        together = f"a Box of {sum(math.prod(part.shape or ()) for part in parts)} numbers"
    return playable.hint if together is None else f"{playable.hint}; its parts together are {together}"


def _leaves(space: Space[Any]) -> Iterator[Space[Any]]:
    if isinstance(space, Dict | Tuple):
        for part in space.values() if isinstance(space, Dict) else space:
            yield from _leaves(part)
    else:
        yield space


def _parts(space: Space[Any]) -> list[tuple[str, Space[Any]]]:
    """Return the entries of a Dict with their names; any other space as the only part."""
    return [(f"{name!r}", part) for name, part in space.items()] if isinstance(space, Dict) else [("it", space)]


def _can_be_vector(space: Space[Any]) -> bool:
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:  # spaces of other libraries do not tell
        return False


def _wrapper_for(space: Space[Any]) -> str:
    """Return how to wrap an env so that its observations become numbers."""
    kept = [name for name, part in space.items() if _can_be_vector(part)] if isinstance(space, Dict) else []
    if not kept:
        return "write a wrapper whose observations are numbers, and name it: env_wrappers: [package.module:Class]"
    keys = ", ".join(map(str, kept))
    return f"write env_wrappers: [{{gymnasium.wrappers:FilterObservation: {{filter_keys: [{keys}]}}}}]"


def check_layout(env: str, observation_space: Space[Any]) -> None:
    """Raise UsageError if ``env`` shows images with the channels first, which would be taken for very low images."""
    shape = observation_space.shape
    if shape is not None and len(shape) == 3 and shape[0] <= MOST_CHANNELS_FIRST < min(shape[1:]):
        raise UsageError(
            f"env {env} has image observations {shape}, which look like [channels, height, width]",
            "wrap the env so that they are [height, width, channels]",
        )


def is_byte_vector(space: Space[Any]) -> bool:
    """Return whether observations are vectors of bytes with the whole range, like the memory of an Atari game."""
    if not isinstance(space, Box) or len(space.shape) != 1 or space.dtype != np.uint8:
        return False
    return bool((space.low == 0).all() and (space.high == np.iinfo(np.uint8).max).all())


def observation_bytes(observation_space: Space[Any]) -> int:
    """Return the bytes of one observation as the agents see it: an image, or else a vector."""
    flat = flatten_space(observation_space)
    return int(flat.dtype.itemsize * math.prod(flat.shape)) if flat.dtype and flat.shape else 0


def observation_shape(observation_space: Space[Any]) -> tuple[int, ...]:
    """Return the shape of one observation as the agents see it."""
    seen = observation_space if keeps_its_shape(observation_space) else flatten_space(observation_space)
    return seen.shape or ()
