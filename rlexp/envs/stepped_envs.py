"""SteppedEnvs: single envs stepped one after the other as one vector env, with little beside their own steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

Array = NDArray[Any]
Step = tuple[Any, Array, Array, Array, dict[str, Any]]


class SteppedEnvs(SyncVectorEnv):
    """Gymnasium's SyncVectorEnv in NEXT_STEP mode; of array observations, each step makes its arrays only once.

    There, a step of one env joins lists, copies deeply what it joined, and looks up by type how to do either: about as
    much work as a step of a small env.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        space = self.single_observation_space
        self._is_plain = (
            isinstance(space, Box) and space.shape != () and isinstance(self.action_space, Box | MultiDiscrete)
        )

    def step(self, actions: Any) -> Step:
        if not self._is_plain:
            return super().step(actions)
        space = self.observation_space
        obs, infos = np.empty(space.shape or (), space.dtype), dict[str, Any]()
        rewards, (terminated, truncated) = np.zeros(self.num_envs), np.zeros((2, self.num_envs), bool)
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self._autoreset_envs[index]:
                seen, info = env.reset()
            else:
                seen, rewards[index], terminated[index], truncated[index], info = env.step(action)
            np.copyto(obs[index], seen, casting="same_kind")  # which refuses fractions where the space has integers
            if info:
                infos = self._add_info(infos, info, index)
        self._autoreset_envs = terminated | truncated
        return obs, rewards, terminated, truncated, infos
