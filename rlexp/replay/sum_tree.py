"""SumTree: values in slots, their total, and the slot where a running sum passes a given number."""

from __future__ import annotations

import numpy as np

from rlexp.replay.smallest import SmallestPositive
from rlexp.sample_batch import Array

TOP_NODES = 512
"""Width of the top, which is searched as one cumulative sum; 256 to 1024 were measured to be equally quick."""


class SumTree:
    """Non-negative float64 values in slots 0 to capacity - 1, zero at first; a prioritized buffer owns it.

    A binary tree whose upper levels are cut off where they are at most ``TOP_NODES`` wide: finding
    512 slots among 2²⁰ takes one search in a cumulative sum and 11 steps down instead of 20. Every
    call handles all its rows at once, level by level. A parent is always computed anew from its two
    children, never adjusted by a difference, so that the sums cannot drift however long it lives,
    and depend on the values alone, not on the order in which they came.
    """

    def __init__(self, capacity: int) -> None:
        """Make ``capacity`` empty slots; raises ValueError below 1."""
        if capacity < 1:
            raise ValueError(f"a tree needs at least one slot, not {capacity}")
        depth = max((capacity - 1).bit_length() - (TOP_NODES.bit_length() - 1), 0)
        top = -(-capacity >> depth)
        self._levels = [np.zeros(top << height) for height in range(depth, -1, -1)]
        self._pairs = [level.reshape(-1, 2) for level in self._levels[:-1]]
        self._sums_before = np.zeros(top + 1)
        self._sums_are_old = False
        self._smallest = SmallestPositive(self._levels[0])

    @property
    def total(self) -> float:
        """The sum of all values; :meth:`find` takes numbers from 0 to below it."""
        return float(self._running_sums()[-1])

    @property
    def min(self) -> float:
        """The least positive value held now; infinity when every slot is empty."""
        return self._smallest.find()

    @property
    def nbytes(self) -> int:
        """Bytes of all levels."""
        return sum(level.nbytes for level in self._levels) + self._sums_before.nbytes + self._smallest.nbytes

    def get(self, slots: Array) -> Array:
        """Return the values ``[B]`` in ``slots [B]``, as a copy."""
        return self._levels[0].take(slots, mode="clip")

    def set(self, slots: Array, values: Array) -> None:
        """Put ``values [B]`` (finite, >= 0) into ``slots [B]``; of a slot named twice the last value stays."""
        self._levels[0][slots] = values
        self._smallest.note(slots, values)
        nodes = slots
        # A parent named twice is computed twice, to the same sum: finding the duplicates would cost far more.
        for pairs, parents in zip(self._pairs, self._levels[1:], strict=True):
            nodes = nodes >> 1
            children = pairs.take(nodes, axis=0, mode="clip")
            parents[nodes] = children[:, 0] + children[:, 1]
        self._sums_are_old = True

    def set_run(self, start: int, values: Array) -> None:
        """Put ``values [B]`` (finite, >= 0) into slots ``start`` to ``start + B - 1``, all within the capacity."""
        if not len(values):
            return
        first, last = start, start + len(values) - 1
        self._levels[0][first : last + 1] = values
        self._smallest.note_run(start, values)
        for pairs, parents in zip(self._pairs, self._levels[1:], strict=True):
            first, last = first >> 1, last >> 1
            children = pairs[first : last + 1]
            np.add(children[:, 0], children[:, 1], out=parents[first : last + 1])
        self._sums_are_old = True

    def find(self, prefix_sums: Array) -> Array:
        """Return the slots ``[B]`` where the running sum first exceeds ``prefix_sums [B]`` (0 to ``total``).

        A number at or, by rounding, beyond the total finds a slot near the last one; an empty slot is never
        returned. Raises ValueError when every slot is empty.
        """
        if not self.total > 0:
            raise ValueError("there is nothing to find: every slot is empty")
        order = prefix_sums.argsort()  # sorting pays: neighbours share cache lines, and the top is searched faster
        sorted_slots = self._descend(prefix_sums[order])
        if not self.get(sorted_slots).all():
            empty = self.get(sorted_slots) == 0
            sorted_slots[empty] = self._descend(prefix_sums[order][empty], shun_empty=True)
        slots = np.empty_like(sorted_slots)
        slots[order] = sorted_slots
        return slots

    def _descend(self, rest: Array, shun_empty: bool = False) -> Array:
        """Return the slots for ``rest [B]``, which is overwritten with what is left of each number.

        Rounding can leave a number as large as the subtree it is in, which leads into an empty last
        slot; ``shun_empty`` looks at the right child too, at a third more time, and never goes there.
        """
        sums_before = self._running_sums()
        last = sums_before.searchsorted(sums_before[-1]) - 1
        nodes: Array = np.minimum(sums_before[1:].searchsorted(rest, side="right"), last)
        rest -= sums_before[nodes]
        for level in reversed(self._levels[:-1]):
            nodes <<= 1
            left = level.take(nodes, mode="clip")
            go_right = rest >= left
            if shun_empty:
                go_right &= level.take(nodes + 1, mode="clip") > 0
            nodes += go_right
            left *= go_right
            rest -= left
        return nodes

    def _running_sums(self) -> Array:
        """Return ``[top + 1]``: what all top nodes before each one sum to, and last the total."""
        if self._sums_are_old:
            np.cumsum(self._levels[-1], out=self._sums_before[1:])
            self._sums_are_old = False
        return self._sums_before
