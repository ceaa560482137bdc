"""Where the axes of a grid are once every variant is in today's spelling; some old keys set other ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.config.space.expressions import EVAL
from rlexp.config.space.grid import SEARCH, Axis, line_of, variant_indices
from rlexp.config.yaml.nodes import MISSING, Finding, KeyPath, Node, at

Data = dict[str, Any]
Computed = tuple[tuple[KeyPath, Node], ...]
"""The path of each ``eval`` whose value depends on the variant, and its node."""


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
        if all(_overlap(path, axis.path) for path in paths) and at(data[0], axis.path) is not MISSING:
            found.append(axis)
        elif len(paths) == 1 and not axis.is_conditional:
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
        yield from _differences(one.get(key, MISSING), other.get(key, MISSING), (*path, key))


def is_at_a_key(axis: Axis, experiment: Experiment) -> bool:
    """Return whether a located axis is at a key of an experiment, or sets several of them."""
    return bool(axis.makes) or at(data_of(experiment), axis.path) is not MISSING


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
    return axis.choices[choice].plain() if axis.keeps_spelling else at(data, axis.path)


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
