"""SingleEnv: a vector env of one copy as an env, for what looks at one: wrappers, horizons, checks, videos."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

Step = tuple[Any, Any, bool, bool, dict[str, Any]]
Start = tuple[Any, dict[str, Any]]


class SingleEnv(gym.Env[Any, Any]):
    """Plays a vector env with ``num_envs`` 1; owns it. What it reports in its infos is left out."""

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        self._vector = vector
        self.metadata = vector.metadata
        self.render_mode = vector.render_mode
        self.observation_space = vector.single_observation_space
        self._batched_space = batch_space(self.observation_space, 1)
        self.action_space = vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        super().reset(seed=seed)
        obs, _ = self._vector.reset(seed=seed, options=options)
        return self._only(obs), {}

    def step(self, action: Any) -> Step:
        actions: Any = create_empty_array(self.action_space, 1)
        actions = concatenate(self.action_space, [action], actions)
        obs, rewards, terminated, truncated, _ = self._vector.step(actions)
        return self._only(obs), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """Return the picture of the only copy."""
        pictures = self._vector.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        self._vector.close()

    def _only(self, obs: Any) -> Any:
        """Return the only one of ``obs [1, ...]``, which the vector env may overwrite."""
        return deepcopy(next(iter(iterate(self._batched_space, obs))))
