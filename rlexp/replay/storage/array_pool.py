"""LentArrays: memory for the large arrays that a storage hands out, used again when their last reader is gone."""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

import numpy as np

from rlexp.sample_batch import Array

LEAST_BYTES = 1 << 20
"""Smaller arrays are plain ones: what the C library keeps free of that size is as quick."""
MOST_IDLE = 4
"""Pieces of memory kept though nobody reads them; 4 are four batches of image stacks, 116 MB."""


class Loan(NamedTuple):
    """A piece of memory, and the array through which it was last handed out."""

    memory: bytearray
    array: weakref.ref[Array]


class LentArrays:
    """Hands out arrays that their readers may keep as long as they like; a storage owns it.

    A new array of many megabytes costs more than to fill it: the operating system zeroes every
    page of it on first use, and takes them all back with the array. Two columns of 512 image
    stacks take 5.4 ms to read into new arrays, and 2.7 ms here.

    Memory is lent again only when the array it was lent as does not exist any more. That cannot
    be too early: a view, a tensor or a buffer made of an array keeps the array alive, and NumPy
    goes no further than to it when it looks for the owner of a view's memory, because what lies
    below is not an array.
    """

    def __init__(self) -> None:
        """Start without any memory."""
        self._loans: list[Loan] = []

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Return an array that shares memory with no other one in use; it holds anything."""
        size = math.prod(shape) * dtype.itemsize
        if size < LEAST_BYTES:
            return np.empty(shape, dtype)
        memory = self._idle_memory(size) or bytearray(size)
        array: Array = np.ndarray(shape, dtype, memory)
        self._loans.append(Loan(memory, weakref.ref(array)))
        return array

    def _idle_memory(self, size: int) -> bytearray | None:
        """Take ``size`` bytes that nobody reads any more from the list, if there are; forget idle ones beyond the most.

        Looks at each loan once: a reader may go at any moment, in another thread.
        """
        lent: list[Loan] = []
        idle: list[Loan] = []
        for loan in self._loans:
            (idle if loan.array() is None else lent).append(loan)
        found = next((loan for loan in idle if len(loan.memory) == size), None)
        self._loans = lent + [loan for loan in idle if loan is not found][:MOST_IDLE]
        return None if found is None else found.memory
