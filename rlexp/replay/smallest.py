"""SmallestPositive: the least positive value of a large array that changes all the time."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import Array

BLOCK_BITS = 10
BLOCK = 1 << BLOCK_BITS
"""Values looked through at a time: 3 µs to scan, and 2²⁰ values make 1024 blocks, 1 µs to search."""


class SmallestPositive:
    """Watches an array that its owner changes, and finds the least positive value when asked.

    It keeps for each block of values a bound that no positive value in the block is below. Writing
    can only lower a bound or make it too low, which is cheap to record; only the block with the
    lowest bound of all must be looked through, and only when it was written since. Each block
    looked through was therefore written before: rarely more than one is in a replay cycle, where
    a tree of minima would cost as much as the sum tree beside it.
    """

    def __init__(self, values: Array) -> None:
        """Watch ``values [N]``, all of them zero now."""
        self._values = values
        blocks = -(-len(values) >> BLOCK_BITS)
        self._bounds = np.full(blocks, np.inf)
        self._written = np.zeros(blocks, bool)

    @property
    def nbytes(self) -> int:
        """Bytes of the bounds and marks."""
        return self._bounds.nbytes + self._written.nbytes

    def note(self, indices: Array, values: Array) -> None:
        """Learn that ``values [B]`` were written at ``indices [B]``; an index may stand there twice."""
        blocks = indices >> BLOCK_BITS
        np.minimum.at(self._bounds, blocks, np.where(values > 0, values, np.inf))
        self._written[blocks] = True

    def note_run(self, start: int, values: Array) -> None:
        """Learn that ``values [B]``, B > 0, were written from index ``start`` on."""
        blocks = slice(start >> BLOCK_BITS, (start + len(values) - 1 >> BLOCK_BITS) + 1)
        np.minimum(self._bounds[blocks], _least_positive(values), out=self._bounds[blocks])
        self._written[blocks] = True

    def find(self) -> float:
        """Return the least positive value held now, exactly; infinity when there is none."""
        while True:
            block = int(self._bounds.argmin())
            if not self._written[block]:
                return float(self._bounds[block])
            self._bounds[block] = _least_positive(self._values[block << BLOCK_BITS : block + 1 << BLOCK_BITS])
            self._written[block] = False


def _least_positive(values: Array) -> float:
    return float(values.min(where=values > 0, initial=np.inf))
