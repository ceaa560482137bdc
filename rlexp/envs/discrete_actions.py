"""DiscreteActions: continuous actions on an even grid, for agents that choose among a finite number."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from rlexp.errors import UsageError

MOST_ACTIONS = 10_000
"""A network has an output for each action, and a grid has bins to the power of dimensions of them."""


class DiscreteActions(gym.ActionWrapper[Any, Any, Any]):
    """Numbers the points of a grid over a Box of d dimensions: ``bins`` values in each, both bounds included."""

    def __init__(self, env: gym.Env[Any, Any], name: str, bins: int) -> None:
        """Raise UsageError, naming the env, where a dimension has no bounds or the grid is too large."""
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, Box)
        _check(name, space, bins)
        low, high = space.low.reshape(-1), space.high.reshape(-1)
        axes = [np.linspace(*bounds, bins) for bounds in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        self._actions = grid.reshape(-1, *space.shape).astype(space.dtype)
        self.action_space = Discrete(len(self._actions))

    def action(self, action: Any) -> Any:
        return self._actions[action].copy()


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
