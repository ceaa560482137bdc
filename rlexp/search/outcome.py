"""Outcome: how a configuration of a sweep ended, as its searcher gets it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OutcomeStatus(Enum):
    """How a configuration ended."""

    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """The result of a configuration."""

    status: OutcomeStatus
    value: float | None
    """Of which more is better; None for one that failed."""
    time: float = 0.0
    """Of one that ended early: the rung at which it has that value, in the unit of the scheduler's ``time_attr``."""
