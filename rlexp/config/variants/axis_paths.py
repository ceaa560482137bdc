"""Where the axes of a grid are once every variant is in today's spelling; some old keys set other ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.config.space.grid import SEARCH, Axis, line_of
from rlexp.config.yaml.nodes import Finding, KeyPath

Data = dict[str, Any]
_MISSING = object()


def located(
    axes: Sequence[Axis], variants: Sequence[Experiment], computed: Collection[KeyPath]
) -> tuple[tuple[Axis, ...], tuple[Finding, ...]]:
    """Return the axes with the paths at which the variants differ, and what is wrong with ranges that change nothing.

    Values at the paths ``computed`` are expected to follow from others.
    """
    data = [data_of(variant) for variant in variants]
    found: list[Axis] = []
    lost: list[Finding] = []
    for number, axis in enumerate(axes):
        along = [data[place] for place in line_of(axes, number)]
        paths = {path for other in along[1:] for path in _differences(along[0], other)}.difference(computed)
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


def value_on(axis: Axis, data: Data, choice: int) -> Any:
    """Return the value on a located axis, of an experiment with this data that has its nth choice."""
    return axis.choices[choice].plain() if axis.makes else at(data, axis.path)


def with_axis(data: Data, axis: Axis, values: Sequence[Any]) -> None:
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
