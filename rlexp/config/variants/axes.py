"""The axes of valid variants: their paths in today's spelling, and choices that change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, TypeVar

from rlexp.config.arithmetic import EVAL
from rlexp.config.keys.experiment import Experiment
from rlexp.config.space.domains import Listed
from rlexp.config.space.grid import GRID, SEARCH, Axis, line_of, replaced, variant_indices
from rlexp.config.yaml.nodes import Finding, KeyPath, Node, written

Data = dict[str, Any]
Computed = tuple[tuple[KeyPath, Node], ...]
"""The path of each ``eval`` whose value depends on the variant, and its node."""
_MISSING = object()

T = TypeVar("T")
Kept = tuple[tuple[int, ...], ...]
"""For each axis the choices that are left."""


def computed_values(experiment: Node, variants: Sequence[Experiment]) -> Computed:
    """Return the expressions of an experiment with grids whose values differ between its variants."""
    data = [data_of(variant) for variant in variants] if len(variants) > 1 else []
    return tuple(
        (path, node)
        for path, node in _expressions(experiment, ())
        if any(at(other, path) != at(data[0], path) for other in data[1:])
    )


def _expressions(node: Node, path: KeyPath) -> Iterator[tuple[KeyPath, Node]]:
    """Yield the path of every ``eval`` below a node, and the node."""
    if EVAL in node.entries():
        yield path, node
    elif isinstance(node.value, Mapping):
        for key, child in node.entries().items():
            yield from _expressions(child, (*path, key))


def located(
    axes: Sequence[Axis], variants: Sequence[Experiment], computed: Computed
) -> tuple[tuple[Axis, ...], tuple[Finding, ...]]:
    """Return the axes with the paths at which the variants differ, and what is wrong with ranges that change nothing.

    The values that are ``computed`` are expected to follow from others.
    """
    following = {path for path, _ in computed}
    data = [data_of(variant) for variant in variants]
    found: list[Axis] = []
    lost: list[Finding] = []
    for number, axis in enumerate(axes):
        along = [data[place] for place in line_of(axes, number)]
        paths = {path for other in along[1:] for path in _differences(along[0], other)}.difference(following)
        if all(_overlap(path, axis.path) for path in paths) and at(data[0], axis.path) is not _MISSING:
            found.append(axis)
        elif len(paths) == 1:
            found.append(replace(axis, path=paths.pop()))
        elif paths:
            found.append(replace(axis, makes=tuple(sorted(paths, key=str))))
        elif axis.is_grid:
            found.append(axis)
        else:
            message = f"{axis.key} cannot be searched: it has no effect here"
            lost.append(Finding(axis.choices[0].place, message, "write one value, or leave the key out"))
    return tuple(found), tuple(lost)


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    """Return whether one path leads to the other, or to something inside it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _differences(one: Any, other: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of the keys in which two experiments differ; lists count as one value."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other:
            yield path
        return
    for key in {**one, **other}:
        yield from _differences(one.get(key, _MISSING), other.get(key, _MISSING), (*path, key))


def is_at_a_key(axis: Axis, experiment: Experiment) -> bool:
    """Return whether a located axis is at a key of an experiment, or sets several of them."""
    return bool(axis.makes) or at(data_of(experiment), axis.path) is not _MISSING


def varied_values(axes: Sequence[Axis], variants: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return what located axes vary, by their keys as trials show them, and the values in each variant."""
    return [
        {axis.key: _value_on(axis, data, choice) for axis, choice in zip(axes, point, strict=True)}
        for point, data in zip(variant_indices(axes), map(data_of, variants), strict=True)
    ]


def resolved(axes: Sequence[Axis], variants: Sequence[Experiment], computed: Computed) -> Data:
    """Return the first variant with every key, then each axis put back with its choices, and what depends on them."""
    data = data_of(variants[0])
    for number, axis in enumerate(axes):
        along = [data_of(variants[place]) for place in line_of(axes, number)]
        _put_axis(data, axis, [_value_on(axis, other, choice) for choice, other in enumerate(along)])
    for path, node in computed:
        at(data, path[:-1])[path[-1]] = node.plain()
    return data


def _value_on(axis: Axis, data: Data, choice: int) -> Any:
    """Return the value on a located axis, of an experiment with this data that has its nth choice."""
    return axis.choices[choice].plain() if axis.makes else at(data, axis.path)


def _put_axis(data: Data, axis: Axis, values: Sequence[Any]) -> None:
    """Put a located axis with its values into the data of an experiment, in place of the keys that it sets."""
    for path in axis.makes:
        del at(data, path[:-1])[path[-1]]
    group: Any = data
    for key in axis.path[:-1]:
        group = group.setdefault(key, {}) if isinstance(group, dict) else group[key]
    group[axis.path[-1]] = axis.data(values)


def data_of(experiment: Experiment) -> Data:
    """Return an experiment as plain data, every key filled in, as a file has it; ``search`` where it was given."""
    unwritten = {"name"} if SEARCH in experiment.model_fields_set else {"name", SEARCH}
    return experiment.model_dump(mode="json", by_alias=True, exclude=unwritten)


def without_section(experiment: Experiment) -> Experiment:
    """Return an experiment as one without a ``search`` section."""
    plain = experiment.model_copy()
    plain.model_fields_set.discard(SEARCH)
    return plain


def at(data: Any, path: KeyPath) -> Any:
    """Return what is at a path, the same object ``_MISSING`` each time where there is nothing."""
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return data


def kept_choices(axes: Sequence[Axis], experiments: Sequence[Experiment]) -> tuple[Kept, tuple[Finding, ...]]:
    """Return the choices on each axis without those of grids that change nothing, and a notice of each of these.

    ``experiments`` are those of all variants, in the order of ``variant_indices``.
    """
    indices = variant_indices(axes)
    if len(indices) != prod(len(axis.choices) for axis in axes):
        return tuple(tuple(range(len(axis.choices))) for axis in axes), ()
    kept: list[tuple[int, ...]] = []
    notices: list[Finding] = []
    names = [experiment.essence for experiment in experiments]
    for number, axis in enumerate(axes):
        firsts = _firsts(names, indices, number) if axis.is_grid else list(range(len(axis.choices)))
        kept.append(tuple(choice for choice, first in enumerate(firsts) if choice == first))
        notices += [_notice(axis, first, choice) for choice, first in enumerate(firsts) if choice != first]
    return tuple(kept), tuple(notices)


def _firsts(names: Sequence[str], indices: Sequence[tuple[int, ...]], number: int) -> list[int]:
    """Return for each choice of an axis the first one that gives the same experiments, whatever the other axes are."""
    experiments: dict[int, list[str]] = {}
    for point, name in zip(indices, names, strict=True):
        experiments.setdefault(point[number], []).append(name)
    first_of: dict[tuple[str, ...], int] = {}
    return [first_of.setdefault(tuple(experiments[choice]), choice) for choice in sorted(experiments)]


def _notice(axis: Axis, first: int, choice: int) -> Finding:
    values = (written(axis.choices[place].plain()) for place in (choice, first))
    message = f"{axis.key}: in {GRID}, {' makes the same trial as '.join(values)}, which runs once"
    return Finding(axis.choices[choice].place, message)


def is_left(axis: Axis, choices: Sequence[int], experiment: Experiment) -> bool:
    """Return whether an axis still is one: not where one of several values is left, or where it is no key of ours."""
    return len(choices) > 1 or (len(axis.choices) == 1 and is_at_a_key(axis, experiment))


def cut_axis(axis: Axis, choices: Sequence[int]) -> Axis:
    """Return an axis with some of its choices."""
    left = tuple(axis.choices[choice] for choice in choices)
    if len(left) == len(axis.choices) or not isinstance(axis.domain, Listed):
        return axis
    return replace(axis, choices=left, domain=Listed(axis.domain.sampler, [choice.plain() for choice in left]))


def cut_node(experiment: Node, axes: Sequence[Axis], kept: Kept, are_left: Sequence[bool]) -> Node:
    """Return an experiment whose grids have the kept choices only; of an axis that is none any more, its value."""
    for axis, choices, is_axis in zip(axes, kept, are_left, strict=True):
        left = tuple(axis.choices[choice] for choice in choices)
        if not is_axis:
            experiment = replaced(experiment, axis.path, left[0])
        elif len(left) < len(axis.choices):
            grid = left[0].with_value({GRID: left[0].with_value(left)})
            experiment = replaced(experiment, axis.path, grid)
    return experiment


def cut_corners(axes: Sequence[Axis], kept: Kept, variants: Sequence[T]) -> Iterator[T]:
    """Yield those of the variants of all axes that have kept choices only, in their order."""
    points = set(product(*kept))
    yield from (variant for point, variant in zip(variant_indices(axes), variants, strict=True) if point in points)
