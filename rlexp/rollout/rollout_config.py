"""What a rollout worker needs to know of the experiment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlexp.rollout.filters import Moments
from rlexp.rollout.rewards import RewardLimits


@dataclass(frozen=True)
class RolloutConfig:
    """What a worker needs to know of the experiment, apart from env, policy and ε."""

    fragment_length: int
    """Steps per env and ``sample`` call (``sample_batch_size``)."""
    n_step: int
    gamma: float
    clip_rewards: RewardLimits
    """How the learner sees rewards; episode returns are never clipped."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"]
    """Whether ``sample`` returns what it has recorded, or whole episodes only."""
    sample_async: bool
    """Whether the next fragment is recorded while this one is folded and sent."""
    observation_filter: Moments | None
    """The moments that a MeanStdFilter begins with; None: observations stay as they are."""
