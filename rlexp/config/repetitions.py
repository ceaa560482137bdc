"""Variants that make the same trial as others: values of a grid that change nothing are named and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import TypeVar

from rlexp.config.keys.experiment import Experiment
from rlexp.config.parsed_experiment import ParsedExperiment
from rlexp.config.space.domains import Listed
from rlexp.config.space.grid import GRID, Axis, replaced, variant_indices
from rlexp.config.variants.axes import is_at_a_key
from rlexp.config.yaml.nodes import Finding, Node, written

T = TypeVar("T")
_Kept = tuple[tuple[int, ...], ...]
"""For each axis the choices that are left."""


def without_repetitions(parsed: ParsedExperiment) -> ParsedExperiment:
    """Return the experiment without the values of its grids that change nothing, and notices of them."""
    kept, notices = _kept_choices(parsed.axes, parsed.variants)
    are_left = [_is_left(axis, choices, parsed.variants[0]) for axis, choices in zip(parsed.axes, kept, strict=True)]
    if not notices and all(are_left):
        return parsed

    def cut(axes: Sequence[Axis]) -> tuple[Axis, ...]:
        left = zip(axes, kept, are_left, strict=True)
        return tuple(_cut_axis(axis, choices) for axis, choices, is_axis in left if is_axis)

    space = replace(
        parsed.space,
        node=_cut_node(parsed.space.node, parsed.space.axes, kept, are_left),
        axes=cut(parsed.space.axes),
        located=cut(parsed.axes),
    )
    return replace(
        parsed,
        axes=space.located,
        variants=tuple(_cut_variants(parsed.axes, kept, parsed.variants)),
        written=tuple(_cut_variants(parsed.axes, kept, parsed.written)),
        space=space,
        notices=(*parsed.notices, *notices),
    )


def _kept_choices(axes: Sequence[Axis], experiments: Sequence[Experiment]) -> tuple[_Kept, tuple[Finding, ...]]:
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


def _is_left(axis: Axis, choices: Sequence[int], experiment: Experiment) -> bool:
    """Return whether an axis remains: several of its values are left, or it had one, and at a key that rlexp has."""
    return len(choices) > 1 or (len(axis.choices) == 1 and is_at_a_key(axis, experiment))


def _cut_axis(axis: Axis, choices: Sequence[int]) -> Axis:
    """Return an axis with some of its choices."""
    left = tuple(axis.choices[choice] for choice in choices)
    if len(left) == len(axis.choices) or not isinstance(axis.domain, Listed):
        return axis
    return replace(axis, choices=left, domain=Listed(axis.domain.sampler, [choice.plain() for choice in left]))


def _cut_node(experiment: Node, axes: Sequence[Axis], kept: _Kept, are_left: Sequence[bool]) -> Node:
    """Return an experiment whose grids have the kept choices only, and values in place of axes that do not remain."""
    for axis, choices, is_axis in zip(axes, kept, are_left, strict=True):
        left = tuple(axis.choices[choice] for choice in choices)
        if not is_axis:
            experiment = replaced(experiment, axis.path, left[0])
        elif len(left) < len(axis.choices):
            grid = left[0].with_value({GRID: left[0].with_value(left)})
            experiment = replaced(experiment, axis.path, grid)
    return experiment


def _cut_variants(axes: Sequence[Axis], kept: _Kept, variants: Sequence[T]) -> Iterator[T]:
    """Yield those of the variants of all axes that have kept choices only, in their order."""
    points = set(product(*kept))
    yield from (variant for point, variant in zip(variant_indices(axes), variants, strict=True) if point in points)
