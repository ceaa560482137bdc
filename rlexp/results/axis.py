"""What runs are aligned by; light enough for the command line to import."""

from __future__ import annotations

from enum import StrEnum


class Axis(StrEnum):
    """The quantity at whose equal values runs are compared."""

    STEPS = "steps"
    TIME = "time"

    @property
    def label(self) -> str:
        """How people call it, with its unit."""
        return "env steps" if self is Axis.STEPS else "seconds"
