"""Preprocessor: a class of the user's own that turns observations into what the network sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
from gymnasium import Space


class Preprocessor(ABC):
    """What ``config.model.custom_preprocessor`` names: made for each env, with the arguments that the file gives.

    A subclass sets ``observation_space`` in ``__init__`` to what ``transform`` returns::

        class Direction(Preprocessor):
            def __init__(self, observation_space, scale=1.0):
                super().__init__(observation_space)
                self.observation_space = Box(-scale, scale, (2,), np.float32)
    """

    def __init__(self, observation_space: Space[Any], **kwargs: Any) -> None:
        """``observation_space`` is that of the env, behind its wrappers."""
        if kwargs:
            raise TypeError(f"{type(self).__name__} has no argument {next(iter(kwargs))}")
        self.observation_space = observation_space
        """Of what ``transform`` returns."""

    @abstractmethod
    def transform(self, observation: Any) -> Any:
        """Return what the network sees of ``observation``; it is called once for each observation of an env."""


class PreprocessedObservations(gym.ObservationWrapper[Any, Any, Any]):
    """Shows an env's observations as a preprocessor transforms them."""

    def __init__(self, env: gym.Env[Any, Any], preprocessor: Preprocessor) -> None:
        super().__init__(env)
        self._preprocessor = preprocessor
        self.observation_space = preprocessor.observation_space

    def observation(self, observation: Any) -> Any:
        return self._preprocessor.transform(observation)
