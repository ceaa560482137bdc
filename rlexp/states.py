"""The codec of states: splits nested values and arrays, and joins them again.

Checkpoints write the arrays to files and the values as JSON; a shard in another process sends the values, and its
arrays piece by piece.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlexp.sample_batch import Array

ARRAY: Final = "$array"
"""The only key of the mapping that replaces an array among the values; its value is the array's name."""


@dataclass(frozen=True)
class LazyArray:
    """An array that is not in one piece of memory, or not in this process; it is read when it is used.

    Copying all of a replay at once would take the memory of a second replay.
    """

    shape: tuple[int, ...]
    """Its shape, with at least one dimension."""
    dtype: np.dtype[Any]
    read: Callable[[int, int], Array]
    """A function that returns the rows from one index to before another, until the owner of the state changes."""


AnyArray = Array | LazyArray


def num_bytes(array: AnyArray) -> int:
    """Return the bytes of an array."""
    return math.prod(array.shape) * array.dtype.itemsize


def rows_of(array: AnyArray, start: int, stop: int) -> Array:
    """Return the rows ``start`` to ``stop`` (exclusive) of an array with at least one dimension."""
    return array.read(start, stop) if isinstance(array, LazyArray) else array[start:stop]


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Return the arrays of a ``state`` of mappings and lists by their names, and its values, which name them.

    An entry of ``state`` itself that is an array is named by its key, and not among the values. A deeper one is
    named by its path, and replaced by ``{"$array": path}``. Raises ValueError for two arrays of one name.
    """
    arrays: dict[str, AnyArray] = {name: entry for name, entry in state.items() if _is_array(entry)}
    return arrays, {name: _split(entry, name, arrays) for name, entry in state.items() if name not in arrays}


def join_state(arrays: Mapping[str, AnyArray], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that ``split_state`` split, with lists for tuples; raises KeyError if an array is missing."""
    entries = dict(arrays)
    joined = {name: _join(value, entries) for name, value in values.items()}
    return {**entries, **joined}


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | LazyArray)


def _split(value: Any, path: str, arrays: dict[str, AnyArray]) -> Any:
    if _is_array(value):
        if path in arrays:
            raise ValueError(f"two arrays of a state are called {path!r}")
        arrays[path] = value
        return {ARRAY: path}
    if isinstance(value, Mapping):
        return {key: _split(child, f"{path}.{key}", arrays) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_split(child, f"{path}.{index}", arrays) for index, child in enumerate(value)]
    return value


def _join(value: Any, arrays: dict[str, AnyArray]) -> Any:
    """Return ``value`` with the arrays that it names, which are removed from ``arrays``."""
    if isinstance(value, Mapping):
        if value.keys() == {ARRAY}:
            return arrays.pop(value[ARRAY])
        return {key: _join(child, arrays) for key, child in value.items()}
    if isinstance(value, list):
        return [_join(child, arrays) for child in value]
    return value


PIECE_BYTES: Final = 1 << 24
"""Bytes written at a time: 16 MiB, so that a call for them to another process is worth its cost."""


def pieces(array: AnyArray) -> Iterator[Array]:
    """Yield the rows of ``array`` in order, contiguous and with the format's order of bytes, PIECE_BYTES at a time."""
    dtype = array.dtype.newbyteorder("<")
    if not array.shape:
        assert isinstance(array, np.ndarray)
        yield np.ascontiguousarray(array, dtype)
        return
    count = array.shape[0]
    rows = max(PIECE_BYTES * count // max(num_bytes(array), 1), 1)
    for start in range(0, count, rows):
        yield np.ascontiguousarray(rows_of(array, start, min(start + rows, count)), dtype)
