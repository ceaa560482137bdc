"""SmallestPositive: the least positive value of a large array that changes all the time."""

from __future__ import annotations

import numpy as np

from rlexp.sample_batch import Array

BLOCK_BITS = np.array(10)
BLOCK = 1 << int(BLOCK_BITS)
"""Values looked through at a time: 3 µs, and 2²⁰ values make 1024 blocks, 1 µs to search for the lowest bound."""


class SmallestPositive:
    """Watches an array that its owner changes, and finds the least positive value when asked.

    It keeps for each block of values a bound that no positive value in the block is below, and
    where the bound was a value when the block was last looked through. Writing can only lower a
    bound or make it too low, which is cheap to record. Only the block with the lowest bound of all
    matters: where the bound is still a value, it is the least; else the block is looked through.
    That is seldom, where a tree of minima would cost as much as the sum tree beside it.
    """

    def __init__(self, values: Array) -> None:
        """Watch ``values [N]``, all of them zero now."""
        self._values = values
        blocks = -(-len(values) // BLOCK)
        self._bounds = np.full(blocks, np.inf)
        self._places = np.arange(blocks) * BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes of the bounds, and of where they are."""
        return self._bounds.nbytes + self._places.nbytes

    def note(self, indices: Array, values: Array) -> None:
        """Learn that ``values [B]`` were written at ``indices [B]``; an index may stand there twice."""
        blocks = indices >> BLOCK_BITS
        lower = values < self._bounds.take(blocks, mode="clip")
        if lower.any():  # seldom: one of a block's values is its least
            np.minimum.at(self._bounds, blocks[lower], _zeros_as_infinity(values[lower]))

    def note_run(self, start: int, values: Array) -> None:
        """Learn that ``values [B]``, B > 0, were written from index ``start`` on."""
        bounds = self._bounds[start // BLOCK : (start + len(values) - 1) // BLOCK + 1]
        np.minimum(bounds, values.min() or _zeros_as_infinity(values).min(), out=bounds)

    def find(self) -> float:
        """Return the least positive value held now, exactly; infinity when there is none."""
        while True:
            block = int(self._bounds.argmin())
            bound = self._bounds[block]
            if bound in (np.inf, self._values[self._places[block]]):
                return float(bound)
            self._look_through(block)

    def _look_through(self, block: int) -> None:
        start = block * BLOCK
        values = _zeros_as_infinity(self._values[start : start + BLOCK])
        place = values.argmin()
        self._bounds[block] = values[place]
        self._places[block] = start + place


def _zeros_as_infinity(values: Array) -> Array:
    return np.where(values > 0, values, np.inf)
