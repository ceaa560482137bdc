"""SumTree: values in slots, their sum and minimum, and the slots that contain numbers from 0 to the sum."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rlexp.sample_batch import Array

BLOCK_BITS = np.array(3)
BLOCK = 1 << int(BLOCK_BITS)
"""Slots that are summed at once, in one cache line. The three levels of a binary tree that they replace would take
6 bytes a slot more, and were not faster."""
TOP_NODES = 512
"""Width of the top, which is searched as one cumulative sum; 256 to 1024 were measured to be equally fast."""
MOST_STALE = 4096
"""Most blocks written with outdated sums; bounds their memory while nothing is drawn."""
DENSE = 8
"""Parents per stale block up to which all parents of a level are summed; about there both cost the same."""

# Arrays, because NumPy takes 0.2 µs to make one of a Python number, half as long again as an operation on 512 rows.
ONE = np.array(1)
SIGN_BIT = np.array(63)
SUMS_UP_TO = np.triu(np.ones((BLOCK, BLOCK)))
"""A block times this gives its cumulative sums, four times as fast as NumPy's ``accumulate``."""
BOUND_BITS = np.array(10)
BOUND_BLOCK = 1 << int(BOUND_BITS)
"""Values searched at a time: 3 µs, and 2²⁰ values make 1024 blocks, 1 µs to search for the lowest bound."""


class SumTree:
    """Non-negative float64 values in slots 0 to capacity - 1, zero at first; a prioritized buffer owns it.

    A binary tree over blocks of ``BLOCK`` slots, whose upper levels are cut off where they are at most ``TOP_NODES``
    wide: finding 512 slots among 2²⁰ takes one search in a cumulative sum, 8 steps down and one look into the blocks. A
    slot costs 10 bytes, of which its value has 8. Every call handles all its rows at once. Writing changes the values
    alone. The sums above them are renewed when they are needed, for all writes in one pass from level to level. A sum
    is always computed anew from the values below it, never adjusted by a difference. So the sums never drift, and
    depend on the values alone, not on their order of arrival.
    """

    def __init__(self, capacity: int) -> None:
        """Make ``capacity`` empty slots; raises ValueError below 1."""
        if capacity < 1:
            raise ValueError(f"a tree needs at least one slot, not {capacity}")
        num_blocks = -(-capacity // BLOCK)
        depth = max((num_blocks - 1).bit_length() - (TOP_NODES.bit_length() - 1), 0)
        top = -(-num_blocks >> depth)
        sizes = [BLOCK * top << depth, *(top << height for height in range(depth, -1, -1))]
        # Parts of one array, because only a large one gets large pages, and all but its very beginning.
        self._values, *self._levels = np.split(np.zeros(sum(sizes)), np.cumsum(sizes[:-1]))
        self._blocks = self._values.reshape(-1, BLOCK)
        self._right_children = [level[1:] for level in reversed(self._levels[:-1])]
        self._sums_before = np.zeros(top + 1)
        self._stale: list[Array] = []
        self._num_stale = 0
        self._smallest = SmallestPositive(self._values)

    @property
    def total(self) -> float:
        """The sum of all values; :meth:`find` takes numbers from 0 to below it."""
        self._renew_sums()
        return float(self._sums_before[-1])

    @property
    def min(self) -> float:
        """The least positive value held now; infinity when every slot is empty."""
        return self._smallest.find()

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of all sums."""
        sums = sum(level.nbytes for level in self._levels) + self._sums_before.nbytes
        return self._values.nbytes + sums + self._smallest.nbytes

    def get(self, slots: Array) -> Array:
        """Return the values ``[B]`` in ``slots [B]``, as a copy."""
        return self._values.take(slots, mode="clip")

    def set(self, slots: Array, values: Array) -> None:
        """Put ``values [B]`` (finite, >= 0) into ``slots [B]``; for a slot named twice, the last value stays."""
        self._values[slots] = values
        self._smallest.note(slots, values)
        self._mark_stale(slots >> BLOCK_BITS)

    def set_run(self, start: int, values: Array) -> None:
        """Put ``values [B]`` (finite, >= 0) into slots ``start`` to ``start + B - 1``, all within the capacity."""
        if not len(values):
            return
        stop = start + len(values)
        self._values[start:stop] = values
        self._smallest.note_run(start, values)
        self._mark_stale(np.arange(start // BLOCK, (stop - 1) // BLOCK + 1))

    def find(self, numbers: Array) -> tuple[Array, Array]:
        """Return the slots ``[B]`` that contain ``numbers [B]``, by increasing number, and their values.

        The slots are laid end to end on a line from 0 to ``total``, each as long as its value. Their order is nearly
        the order of memory, which makes access to the slots faster than in the numbers' own order. A number at
        or, by rounding, beyond the total falls on a slot near the end; an empty slot is never
        returned. Raises ValueError when every slot is empty.
        """
        if not self.total > 0:
            raise ValueError("there is nothing to find: every slot is empty")
        numbers = np.sort(numbers)
        slots = self._descend(numbers)
        values = self.get(slots)
        if np.count_nonzero(values) < len(values):
            empty = values == 0
            slots[empty] = self._descend_past_empty(numbers[empty])
            values = self.get(slots)
        return slots, values

    def _descend(self, numbers: Array) -> Array:
        """Return the slots for ``numbers [B]``, some of them empty if a sum was rounded up.

        A node's right child comes first on the line: going right then only adds one to the index of the left child, and
        going left adds nothing.
        """
        nodes: Array = self._sums_before[1:-1].searchsorted(numbers, side="right")
        rest = numbers - self._sums_before.take(nodes, mode="clip")
        right, beyond = np.empty_like(rest), np.empty_like(rest)
        rest_bits, beyond_bits, minus_right = rest.view(np.uint64), beyond.view(np.uint64), beyond.view(np.int64)
        for right_children in self._right_children:
            nodes += nodes
            right_children.take(nodes, out=right, mode="clip")
            np.subtract(rest, right, out=beyond)
            # No comparison, whose bool would have to be converted: a float below 0 has its sign bit set. That makes
            # it a huge number when it is read as an unsigned integer, and -1 when a signed one is shifted down to it.
            np.minimum(rest_bits, beyond_bits, out=rest_bits)
            np.right_shift(minus_right, SIGN_BIT, out=minus_right)
            nodes -= minus_right
        beyond_slots = self._blocks.take(nodes, axis=0, mode="clip") @ SUMS_UP_TO <= rest[:, None]
        beyond_slots[:, -1] = False  # no slot further right in the block
        slots: Array = nodes * BLOCK + beyond_slots.argmin(axis=1)
        return slots

    def _descend_past_empty(self, numbers: Array) -> Array:
        """Return the slots for ``numbers [B]`` as :meth:`_descend` does, but never empty ones.

        Rounding can leave a number as large as the subtree it is in, which leads into an empty last slot. Checking both
        children takes half as long again, so only such numbers do that.
        """
        sums_before = self._sums_before
        last = sums_before.searchsorted(sums_before[-1]) - 1
        nodes: Array = np.minimum(sums_before[1:].searchsorted(numbers, side="right"), last)
        rest = numbers - sums_before[nodes]
        for level in reversed(self._levels[:-1]):
            left, right = level[2 * nodes], level[2 * nodes + 1]
            go_left = (rest >= right) & (left > 0)
            nodes = 2 * nodes + ~go_left
            rest = np.where(go_left, rest - right, rest)
        sums = self._blocks[nodes].cumsum(axis=1)
        last = (sums < sums[:, -1:]).sum(axis=1)
        slots: Array = nodes * BLOCK + np.minimum((sums <= rest[:, None]).sum(axis=1), last)
        return slots

    def _mark_stale(self, blocks: Array) -> None:
        self._stale.append(blocks)
        self._num_stale += len(blocks)
        if self._num_stale > MOST_STALE:
            self._renew_sums()

    def _renew_sums(self) -> None:
        """Bring every sum above a stale block up to date, and the cumulative sum of the top."""
        if not self._num_stale:
            return
        nodes = np.concatenate(self._stale)
        sums = self._renew_blocks(nodes)
        # A node that occurs twice is computed twice, to the same sum; finding duplicates would cost far more.
        for level, parents in pairwise(self._levels):
            if len(parents) <= DENSE * len(nodes):
                np.add(level[0::2], level[1::2], out=parents)
            else:
                sums += level.take(nodes ^ ONE, mode="clip")
                nodes >>= ONE
                parents[nodes] = sums
        np.add.accumulate(self._levels[-1], out=self._sums_before[1:])  # np.cumsum, without its detour of 1 µs
        self._stale.clear()
        self._num_stale = 0

    def _renew_blocks(self, blocks: Array) -> Array:
        """Bring the sums of ``blocks [B]`` up to date, and return them ``[B]``."""
        sums = self._blocks.take(blocks, axis=0, mode="clip").reshape(-1)
        for _ in range(int(BLOCK_BITS)):  # a third of the time of np.add.reduce, which loops over each block
            sums = sums[0::2] + sums[1::2]
        self._levels[0][blocks] = sums
        return sums


class SmallestPositive:
    """Watches an array that its owner changes, and finds the least positive value when asked.

    For each block it keeps a lower bound of the positive values. It also keeps the index that had this value when the
    block was last searched. Writing can only lower a bound or make it too low, which is cheap to record. Only
    the block with the lowest bound matters: if the bound is still a value, it is the least; else the block is searched.
    That is rare, while a tree of minima would cost as much as the sum tree.
    """

    def __init__(self, values: Array) -> None:
        """Watch ``values [N]``, all of them zero now."""
        self._values = values
        blocks = -(-len(values) // BOUND_BLOCK)
        self._bounds = np.full(blocks, np.inf)
        self._places = np.arange(blocks) * BOUND_BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes of the bounds, and of their indices."""
        return self._bounds.nbytes + self._places.nbytes

    def note(self, indices: Array, values: Array) -> None:
        """Note that ``values [B]`` were written at ``indices [B]``; an index may occur twice."""
        blocks = indices >> BOUND_BITS
        lower = values < self._bounds.take(blocks, mode="clip")
        if np.count_nonzero(lower):  # rare: one of a block's values is its least
            np.minimum.at(self._bounds, blocks[lower], _zeros_as_infinity(values[lower]))

    def note_run(self, start: int, values: Array) -> None:
        """Note that ``values [B]``, B > 0, were written from index ``start`` on."""
        bounds = self._bounds[start // BOUND_BLOCK : (start + len(values) - 1) // BOUND_BLOCK + 1]
        np.minimum(bounds, np.minimum.reduce(values) or _zeros_as_infinity(values).min(), out=bounds)

    def find(self) -> float:
        """Return the least positive value held now, exactly; infinity when there is none."""
        while True:
            block = int(self._bounds.argmin())
            bound = self._bounds[block]
            if bound in (np.inf, self._values[self._places[block]]):
                return float(bound)
            self._look_through(block)

    def _look_through(self, block: int) -> None:
        start = block * BOUND_BLOCK
        values = _zeros_as_infinity(self._values[start : start + BOUND_BLOCK])
        place = values.argmin()
        self._bounds[block] = values[place]
        self._places[block] = start + place


def _zeros_as_infinity(values: Array) -> Array:
    return np.where(values > 0, values, np.inf)
