"""States of replay as a checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.states import LazyArray, rows_of


def in_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with a copy of each array, whole."""
    return {
        name: np.array(rows_of(value, 0, value.shape[0])) if isinstance(value, np.ndarray | LazyArray) else value
        for name, value in state.items()
    }
