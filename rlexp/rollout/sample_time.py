"""Where a rollout worker's time goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SampleTime:
    """Seconds that it took to make a sample."""

    total_s: float = 0.0
    acting_s: float = 0.0
    """Of them, those in which the policy chose actions."""
    stepping_s: float = 0.0
    """Those in which the envs stepped."""
    folding_s: float = 0.0
    """Those in which steps became transitions with priorities."""

    @staticmethod
    def sum(parts: Iterable[SampleTime]) -> SampleTime:
        """Return the time of all parts together."""
        parts = tuple(parts)
        return SampleTime(
            total_s=sum(part.total_s for part in parts),
            acting_s=sum(part.acting_s for part in parts),
            stepping_s=sum(part.stepping_s for part in parts),
            folding_s=sum(part.folding_s for part in parts),
        )
