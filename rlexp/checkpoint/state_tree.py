"""A state as its owners tell it, values and arrays in each other, and as a checkpoint holds it: apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ARRAY: Final = "$array"
"""The one key of what stands in an array's place: the array's name."""

Array = NDArray[Any]


def taken_apart(tree: Any) -> tuple[dict[str, Array], Any]:
    """Return the arrays of a tree of dicts and lists by their place in it, and the tree with names in their places."""
    arrays: dict[str, Array] = {}
    return arrays, _taken_apart(tree, "", arrays)


def put_together(arrays: Mapping[str, Array], tree: Any) -> Any:
    """Return the tree that ``taken_apart`` took apart, with lists for tuples; its arrays are copies.

    Raises KeyError where one is missing.
    """
    if isinstance(tree, Mapping):
        if tree.keys() == {ARRAY}:
            return np.array(arrays[tree[ARRAY]])
        return {key: put_together(arrays, child) for key, child in tree.items()}
    if isinstance(tree, list):
        return [put_together(arrays, child) for child in tree]
    return tree


def _taken_apart(tree: Any, place: str, arrays: dict[str, Array]) -> Any:
    if isinstance(tree, np.ndarray):
        if place in arrays:
            raise ValueError(f"two arrays of a state are called {place!r}")
        arrays[place] = tree
        return {ARRAY: place}
    if isinstance(tree, Mapping):
        return {key: _taken_apart(child, f"{place}.{key}" if place else key, arrays) for key, child in tree.items()}
    if isinstance(tree, list | tuple):
        return [_taken_apart(child, f"{place}.{index}", arrays) for index, child in enumerate(tree)]
    return tree
