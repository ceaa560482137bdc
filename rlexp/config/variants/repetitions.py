"""Values of a grid that make the same trials as another one: named in a notice, and run once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TypeVar

from rlexp.config.keys.experiment import Experiment
from rlexp.config.space.domains import Listed
from rlexp.config.space.grid import GRID, Axis, replaced, variant_indices
from rlexp.config.variants.axis_paths import is_at_a_key
from rlexp.config.yaml.nodes import Finding, Node, written

T = TypeVar("T")
Kept = tuple[tuple[int, ...], ...]
"""For each axis the choices that are left."""


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
