"""``grid_search: [...]`` anywhere in an experiment: its axes, and every corner of the grid they span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from rlexp.config.nodes import Finding, KeyPath, Node, dotted

GRID = "grid_search"

MAX_TRIALS = 10_000
"""More trials than anyone can want; a grid of seven axes reaches it by accident."""

_NEVER_VARIED = ("num_samples",)


@dataclass(frozen=True)
class Axis:
    """One ``grid_search``: where it stands and what may stand there instead."""

    path: KeyPath
    choices: tuple[Node, ...]

    @property
    def key(self) -> str:
        """The path as trials show it, keys of ``config`` without that word."""
        return dotted(self.path).removeprefix("config.")


def find_axes(experiment: Node) -> tuple[tuple[Axis, ...], tuple[Finding, ...]]:
    """Return the axes in the order of the file, and what is wrong with them; no axes then."""
    findings = list(_malformed(experiment, ()))
    if not findings and (size := _size(experiment)) > MAX_TRIALS:
        message = f"the grid has {size} corners, more than {MAX_TRIALS}"
        findings.append(Finding(experiment.key_place, message, "search fewer values, or fewer keys at once"))
    return (() if findings else tuple(_axes(experiment, ()))), tuple(findings)


def corners(experiment: Node, axes: Sequence[Axis]) -> Iterator[Node]:
    """Yield every corner; the last axis varies fastest."""
    for choices in product(*(axis.choices for axis in axes)):
        corner = experiment
        for axis, choice in zip(axes, choices, strict=True):
            corner = _replaced(corner, axis.path, choice)
        yield corner


def _malformed(node: Node, path: KeyPath) -> Iterator[Finding]:
    grid = node.entries().get(GRID)
    if grid is not None:
        where = dotted(path) or "an experiment"
        if not isinstance(grid.value, tuple) or not grid.value:
            yield Finding(grid.place, f"{where}: {GRID} takes a list of values")
        if len(node.entries()) > 1:
            yield Finding(grid.key_place, f"{where}: nothing else may stand beside {GRID}")
        if path[:1] in [(key,) for key in _NEVER_VARIED]:
            yield Finding(grid.key_place, f"{where} cannot be searched", "write an experiment for each")
    for key, child in _children(node):
        yield from _malformed(child, (*path, key))


def _size(node: Node) -> int:
    grid = node.entries().get(GRID)
    if grid is not None:
        return sum(_size(choice) for _, choice in _children(grid))
    return prod(_size(child) for _, child in _children(node))


def _axes(node: Node, path: KeyPath) -> Iterator[Axis]:
    grid = node.entries().get(GRID)
    if grid is not None:
        yield Axis(path, tuple(choice for _, element in _children(grid) for choice in _expanded(element)))
        return
    for key, child in _children(node):
        yield from _axes(child, (*path, key))


def _expanded(node: Node) -> Iterator[Node]:
    """Yield what a choice stands for: itself, or the corners of the grids inside it."""
    return corners(node, tuple(_axes(node, ())))


def _children(node: Node) -> Iterator[tuple[str | int, Node]]:
    yield from enumerate(node.value) if isinstance(node.value, tuple) else node.entries().items()


def _replaced(node: Node, path: KeyPath, value: Node) -> Node:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if isinstance(node.value, tuple):
        items = (_replaced(child, rest, value) if index == key else child for index, child in enumerate(node.value))
        return node.with_value(tuple(items))
    entries = node.entries()
    return node.with_value({**entries, str(key): _replaced(entries[str(key)], rest, value)})
