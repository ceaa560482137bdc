"""Continuous actions: numbered for agents that choose among a finite number, else brought within their bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import VectorActionWrapper, VectorEnv
from numpy.typing import NDArray

from rlexp.config.keys.common import ActionScaling
from rlexp.errors import UsageError

Array = NDArray[Any]
Vector = VectorEnv[Any, Any, Any]
if TYPE_CHECKING:
    _VectorActions = VectorActionWrapper[Any, Any, Any, Any]
else:  # it is no generic class in Gymnasium 1.3
    _VectorActions = VectorActionWrapper

MOST_ACTIONS = 10_000
"""A network has an output for each action, and a grid has bins to the power of dimensions of them."""


class DiscreteActions(gym.ActionWrapper[Any, Any, Any]):
    """Numbers the points of a grid over a Box of d dimensions: ``bins`` values in each, both bounds included."""

    grid: Array
    """The env's action ``[A, *shape]`` of each number."""

    def __init__(self, env: gym.Env[Any, Any], name: str, bins: int) -> None:
        """Raise UsageError, naming the env, where a dimension has no bounds or the grid is too large."""
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, Box)
        _check(name, space, bins)
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        axes = [np.linspace(*bounds, bins) for bounds in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        self.grid = grid.reshape(-1, *space.shape).astype(space.dtype)
        self.action_space = Discrete(len(self.grid))

    def action(self, action: Any) -> Any:
        return self.grid[action].copy()


def _check(name: str, space: Box, bins: int) -> None:
    if not space.is_bounded():
        message = f"env {name} has actions {space} without bounds, which discretize_actions cannot divide"
        raise UsageError(message, "wrap the env so that its actions are bounded")
    dimensions = int(np.prod(space.shape))
    if bins**dimensions > MOST_ACTIONS:
        raise UsageError(
            f"discretize_actions: {bins} makes {bins}**{dimensions} actions of the {dimensions} dimensions of "
            f"env {name}; {MOST_ACTIONS} are the limit",
            "lower discretize_actions, or choose an env with fewer action dimensions",
        )


def bound_actions(vector: Vector, scaling: ActionScaling | None) -> Vector:
    """Wrap ``vector`` so that its envs get continuous actions within their bounds; None and other spaces: as it is."""
    space = vector.single_action_space
    return BoundedActions(vector, space, scaling) if scaling is not None and is_continuous(space) else vector


def is_continuous(space: Space[Any]) -> TypeGuard[Box]:
    """Return whether actions of ``space`` are floating-point numbers."""
    return isinstance(space, Box) and np.issubdtype(space.dtype, np.floating)


@dataclass(frozen=True, eq=False)
class ActionBounds:
    """How a continuous action becomes one within the bounds of its Box: ``clip(action * scale + shift, low, high)``.

    In float64, the width of a float32 Box is never infinite, and rounding to float32 gives its bounds exactly.
    """

    low: Array
    high: Array
    scale: Array
    shift: Array
    dtype: np.dtype[Any]
    """Of the Box."""

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

    ``single_action_space`` is still the env's Box: its shape and dtype are those of an action as it is drawn, not its
    bounds. Actions are left unchanged, the envs get new arrays.
    """

    def __init__(self, vector: Vector, space: Box, scaling: ActionScaling) -> None:
        super().__init__(vector)
        self._bounds = ActionBounds.of(space, scaling)

    def actions(self, actions: Array) -> Array:
        return self._bounds.bounded(actions)
