"""When a trial ends by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.tuning.recorders import flatten


def reached(stop: Mapping[str, float], row: Mapping[str, Any]) -> bool:
    """Return whether a row of results has reached one of the ``stop`` values; NaN reaches none."""
    values = flatten(row)
    return any(name in values and values[name] is not None and values[name] >= limit for name, limit in stop.items())
