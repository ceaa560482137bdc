"""What the learner sees of rewards (``clip_rewards``); reported returns are made of whole ones."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import Array

RewardLimits = bool | float | tuple[float, float]
"""True: their sign. False: whole. A number x: limited to [-x, x]. A pair: limited to [low, high]."""


def clip_rewards(rewards: Array, limits: RewardLimits) -> Array:
    """Return ``rewards [...]`` as ``limits`` wants them for learning."""
    if isinstance(limits, bool):
        return np.sign(rewards) if limits else rewards
    low, high = limits if isinstance(limits, tuple) else (-limits, limits)
    return rewards.clip(low, high)
