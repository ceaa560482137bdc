"""StoredArray: a part of a replay's state that is read piece by piece, since all of it would be a second replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.sample_batch import Array


@dataclass(frozen=True)
class StoredArray:
    """An array that lies scattered, or in another process; it can be read until the replay changes."""

    shape: tuple[int, ...]
    """Its shape, of one dimension at least."""
    dtype: np.dtype[Any]
    read: Callable[[int, int], Array]
    """Returns the rows from a first index to before a second one."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole."""
        return math.prod(self.shape) * self.dtype.itemsize


StateArray = Array | StoredArray
"""What the arrays of a state are: views of the replay's own memory, or stored ones."""


def rows_of(array: StateArray, start: int, stop: int) -> Array:
    """Return the rows ``start`` to ``stop`` (exclusive) of an array of a state."""
    return array.read(start, stop) if isinstance(array, StoredArray) else array[start:stop]
