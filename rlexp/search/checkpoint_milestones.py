"""Milestones: where the trials of a population write checkpoints for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlexp.config.keys.search import TimeAttribute


@dataclass(frozen=True)
class Milestones:
    """The multiples of ``interval`` in a metric that only grows."""

    metric: TimeAttribute
    interval: float

    def passed(self, before: float, row: Mapping[str, Any]) -> bool:
        """Return whether one lies between what the metric was and what it is in ``row``."""
        return bool(row[self.metric] // self.interval > before // self.interval)
