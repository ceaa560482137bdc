"""What a trial is worth at its end: the mean of a metric over the last stretch of its way."""

from __future__ import annotations

from typing import Final

import numpy as np

from rlexp.sample_batch import Array

FINAL_SHARE: Final = 0.1
"""The part of a budget whose mean is a trial's final score."""


def final_score(x: Array, values: Array, start: float, end: float) -> float:
    """Return the mean of ``values [N]`` where ``x [N]`` is in (start, end], each counting once; with none, the nearest.

    N is 1 at least.
    """
    inside = (x > start) & (x <= end)
    if inside.any():
        return float(values[inside].mean())
    return float(values[np.abs(x - end).argmin()])
