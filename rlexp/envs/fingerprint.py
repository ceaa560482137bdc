"""The fingerprint of an env: the same on two machines where it plays the same way."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from rlexp.envs.env_config import EnvConfig
from rlexp.envs.make import make_vector_env

NUM_STEPS = 32
DECIMALS = 3
"""Processors differ in the last digits of what they compute."""


def env_fingerprint(config: EnvConfig) -> str:
    """Return a hash of what one env shows and pays from ``reset(seed=0)`` on, by 32 actions that are always the same.

    Envs that draw from other random streams than their own have another one each time.
    """
    vector = make_vector_env(config, 1)
    try:
        vector.single_action_space.seed(0)
        seen = [vector.reset(seed=0)[0]]
        digest = hashlib.sha256()
        for _ in range(NUM_STEPS):
            action = np.asarray([vector.single_action_space.sample()])
            obs, rewards, terminated, truncated, _ = vector.step(action)
            seen += [obs, rewards, terminated, truncated]
        for array in seen:
            digest.update(_rounded(np.asarray(array)).tobytes())
        return digest.hexdigest()[:16]
    finally:
        vector.close()


def _rounded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind != "f":
        return array
    return array.astype(np.float64).round(DECIMALS) + 0.0  # without the sign of zeros
