"""Means over what happened since somebody last asked."""

from __future__ import annotations


class Mean:
    """The mean of the values added since the last ``drain``."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        """Take one value."""
        self._sum += value
        self._count += 1

    def drain(self) -> float:
        """Return the mean, 0 if nothing was added, and begin anew."""
        mean = self._sum / self._count if self._count else 0.0
        self._sum, self._count = 0.0, 0
        return mean
