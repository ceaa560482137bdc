"""The precision in which weights travel: float16 where the trial says so and their values allow it."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.policy import Weights

FLOAT16: Final = "float16"
_LARGEST: Final = float(np.finfo(np.float16).max)


class WeightPrecision:
    """Rounds weights before they are published; owned by the source of joined actors."""

    def __init__(self, dtype: str) -> None:
        """``dtype`` is what float32 arrays become: ``float32`` or ``float16``."""
        self.dtype = dtype
        self._kept: set[str] = set()
        self._events: list[str] = []

    def rounded(self, weights: Weights) -> Weights:
        """Return ``weights`` to be sent. An array with a value beyond float16 stays float32: none becomes infinite."""
        if self.dtype != FLOAT16:
            return weights
        return {name: self._rounded(name, np.asarray(array)) for name, array in weights.items()}

    def drain_events(self) -> list[str]:
        """Return which arrays stayed float32 since the last call; each is named once."""
        events, self._events = self._events, []
        return events

    def _rounded(self, name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype != np.float32:
            return array
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float16)
        if np.isfinite(rounded).all():
            return rounded
        if name not in self._kept:
            self._kept.add(name)
            why = f"it has values beyond {_LARGEST:,.0f}, the largest of float16"
            self._events.append(f"weights {name} are sent to joined actors as float32: {why}")
        return array


def widened(weights: Weights) -> Weights:
    """Return received weights as networks use them: float16 becomes float32."""
    return {name: array.astype(np.float32) if array.dtype == np.float16 else array for name, array in weights.items()}
