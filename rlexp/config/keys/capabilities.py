"""What the rooms that know no algorithm ask of an agent's keys, beside the keys that all agents have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReplayNeeds:
    """What decides how much memory the replay of an agent takes when it is full."""

    capacity: int
    """Transitions."""
    capacity_key: str
    """The key under ``config`` that gives it."""
    least_capacity: int
    """Transitions, below which the agent cannot train."""
    num_shards: int
    n_step: int
    is_compressed: bool
    keeps_whole_observations: bool
    """Whether each transition has observations of its own, instead of frames that transitions share."""


@dataclass(frozen=True)
class Caution:
    """What a user may not have meant, though it can be trained."""

    key: str
    """The key under ``config`` that brings it about; without effect where the file does not give it."""
    message: str
