"""``grid_search: [...]``, and in a sweep samplers, anywhere in an experiment: its axes, and their variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from math import prod
from typing import Any

from rlexp.config.domains import CHOICE, GRID, Domain, Listed, MalformedError, Sampled, read_sampler, sampler_in
from rlexp.config.points import Alternative, Alternatives, columns_of
from rlexp.config.yaml.nodes import Finding, KeyPath, Node, dotted

__all__ = ["GRID", "SEARCH", "Axis", "find_axes", "line_of", "variant_indices", "variants"]

MAX_CHECKED_VARIANTS = 1_000
"""Most variants of a space with samplers that are checked one by one. Above, variants are checked in which at most two
axes have left their first end, which finds errors of any value and any pair of values."""

MAX_CHECKED_ENDS = 32
"""The same for one value of a ``choice`` with samplers inside: all ends of up to five ranges."""

SEARCH = "search"
"""The section that makes an experiment a sweep."""
TRACK = "track"
"""The section of trackers, which are the same for all trials."""

_NEVER_VARIED = ("num_samples", SEARCH, TRACK)


@dataclass(frozen=True)
class Axis:
    """One ``grid_search`` or sampler: its path, and its possible values."""

    path: KeyPath
    """The path in current spelling, after the variants have shown it."""
    choices: tuple[Node, ...]
    """Every value of a list, with the ends of samplers inside; for a range, its two ends."""
    domain: Domain
    makes: tuple[KeyPath, ...] = ()
    """The current keys that its values set, if these are several, or one elsewhere with samplers inside the values;
    empty if the key at ``path`` is the only one."""
    given: KeyPath = ()
    """Its path in the file, if that differs."""

    @property
    def key(self) -> str:
        """The path shown in trials: keys of ``config`` without that word."""
        return dotted(self.path).removeprefix("config.")

    def data(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the axis in the form of a file; for a list, ``values`` may replace its spelling."""
        return {self.domain.sampler: list(values)} if isinstance(self.domain, Listed) else self.domain.data()

    @property
    def is_conditional(self) -> bool:
        """Whether its values hold samplers, so that the value decides which keys are drawn."""
        return isinstance(self.domain, Alternatives)

    @property
    def keeps_spelling(self) -> bool:
        """Whether its values stay as in the file, also if other keys have that place now."""
        return bool(self.makes) or self.is_conditional

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys under which tables show its values: several if mappings hold samplers."""
        if not self.is_conditional:
            return (self.key,)
        return tuple(dict.fromkeys(key for choice in self.choices for key in self.shown(choice.plain())))

    def shown(self, value: Any) -> dict[str, Any]:
        """Return a value by the ``columns`` that it has."""
        return columns_of(self.key, value) if self.is_conditional else {self.key: value}

    @property
    def is_grid(self) -> bool:
        """Whether every value must be tried."""
        return isinstance(self.domain, Listed) and self.domain.sampler == GRID


def find_axes(experiment: Node, most_variants: int) -> tuple[tuple[Axis, ...], tuple[Finding, ...]]:
    """Return the axes in the order of the file, or no axes and findings about them.

    Samplers are axes if the experiment has a ``search`` section.
    """
    reader = _GridReader(SEARCH in experiment.entries())
    findings = list(reader.malformed(experiment, ()))
    if not findings and (size := reader.size(experiment)) > most_variants:
        message = f"the grid has {size} variants, more than {most_variants}"
        findings.append(Finding(experiment.key_place, message, "search fewer values, or fewer keys at once"))
    return (() if findings else tuple(sorted(reader.axes(experiment, ()), key=_position))), tuple(findings)


def _position(axis: Axis) -> tuple[bool, int, int]:
    """Return the position of an axis in its file, whatever its current name; axes of the command line come last."""
    place = axis.choices[0].place
    return place.line == 0, place.line, place.column


def variant_indices(axes: Sequence[Axis], most: int = MAX_CHECKED_VARIANTS) -> list[tuple[int, ...]]:
    """Return, for each checked variant, its choice on every axis; the last axis varies fastest.

    If there are more than ``most``, pairs of axes are checked, but all of grids.
    """
    sizes = [len(axis.choices) for axis in axes]
    if prod(sizes) <= most or all(axis.is_grid for axis in axes):
        return list(product(*map(range, sizes)))
    found = dict.fromkeys([(0,) * len(sizes)])
    for count in (1, 2):
        for numbers in combinations(range(len(sizes)), count):
            for choices in product(*(range(sizes[number]) for number in numbers)):
                taken = dict(zip(numbers, choices, strict=True))
                found[tuple(taken.get(number, 0) for number in range(len(sizes)))] = None
    return list(found)


def line_of(axes: Sequence[Axis], number: int) -> list[int]:
    """For each choice of an axis, return the index of the variant that differs from the first only in it."""
    places = {indices: place for place, indices in enumerate(variant_indices(axes))}
    return [
        places[tuple(choice if other == number else 0 for other in range(len(axes)))]
        for choice in range(len(axes[number].choices))
    ]


def variants(experiment: Node, axes: Sequence[Axis], most: int = MAX_CHECKED_VARIANTS) -> Iterator[Node]:
    """Yield every variant in the order of ``variant_indices``."""
    for indices in variant_indices(axes, most):
        variant = experiment
        for axis, index in zip(axes, indices, strict=True):
            variant = variant.put(axis.path, axis.choices[index])
        yield variant


class _GridReader:
    """Walks an experiment; ``sampling`` says whether samplers have a meaning in it."""

    def __init__(self, sampling: bool) -> None:
        self._sampling = sampling

    def malformed(self, node: Node, path: KeyPath) -> Iterator[Finding]:
        """Yield findings about grids and samplers below a node."""
        where = dotted(path) or "an experiment"
        grid = node.entries().get(GRID)
        if grid is not None:
            if not isinstance(grid.value, tuple) or not grid.value:
                yield Finding(grid.place, f"{where}: {GRID} needs a list of values", f"write {GRID}: [1, 2, 3]")
            if len(node.entries()) > 1:
                yield Finding(grid.key_place, f"{where}: {GRID} must be the only key here", "remove the others")
        sampled = self._sampler(node, path)
        if isinstance(sampled, MalformedError):
            yield Finding(sampled.node.place, f"{where}: {sampled.message}", sampled.hint)
        elif grid is not None or sampled is not None:
            yield from self._wrong_inside(node, where, grid is not None)
        if path[:1] in [(key,) for key in _NEVER_VARIED] and (grid is not None or sampled is not None):
            yield Finding((grid or node).key_place, f"{where} cannot be searched", "write an experiment for each value")
        for key, child in _children(node):
            yield from self.malformed(child, (*path, key))

    def size(self, node: Node) -> int:
        """Return the number of points of the grids below a node, or for samplers the number that they need."""
        grid = node.entries().get(GRID)
        if grid is not None:
            return sum(self.size(choice) for _, choice in _children(grid))
        return prod(self.size(child) for _, child in _children(node))

    def axes(self, node: Node, path: KeyPath) -> Iterator[Axis]:
        """Yield the axes below a node without anything malformed."""
        grid = node.entries().get(GRID)
        sampled = self._sampler(node, path)
        if grid is not None:
            choices = self._expanded(grid)
            yield Axis(path, choices, Listed(GRID, [choice.plain() for choice in choices]))
        elif sampled is not None:
            assert isinstance(sampled, Sampled)
            yield self._conditional(node, path) or Axis(path, sampled.ends, sampled.domain)
        else:
            for key, child in _children(node):
                yield from self.axes(child, (*path, key))

    def _wrong_inside(self, node: Node, where: str, is_grid: bool) -> Iterator[Finding]:
        """Yield samplers inside a grid, and grids inside a ``choice``, which would not be tried as written."""
        for inside in self._nested(node, ()):
            is_grid_inside = GRID in inside.entries()
            if is_grid and not is_grid_inside:
                sampler = next(iter(inside.entries()))
                hint = f"write {CHOICE} in place of {GRID}: it can hold samplers"
                yield Finding(inside.place, f"{where}: {GRID} cannot hold {sampler}", hint)
            if is_grid_inside and not is_grid:
                hint = f"write {CHOICE} in place of {GRID}"
                yield Finding(inside.place, f"{where}: {CHOICE} cannot hold {GRID}", hint)

    def _nested(self, node: Node, path: KeyPath) -> Iterator[Node]:
        """Yield the grids and samplers inside a node, but not inside of them."""
        for key, child in _children(node):
            if GRID in child.entries() or self._sampler(child, (*path, key)) is not None:
                yield child
            else:
                yield from self._nested(child, (*path, key))

    def _expanded(self, values: Node) -> tuple[Node, ...]:
        """Return the values of a list, or the variants of grids inside them."""
        return tuple(
            variant for _, child in _children(values) for variant in variants(child, tuple(self.axes(child, ())))
        )

    def _conditional(self, node: Node, path: KeyPath) -> Axis | None:
        """Return the axis of a ``choice`` whose values hold samplers; None for any other."""
        choice = node.entries().get(CHOICE)
        values = [] if choice is None else [child for _, child in _children(choice)]
        inside = [tuple(self._inside(value, place)) for place, value in enumerate(values)]
        if not any(inside):
            return None
        alternatives = tuple(
            Alternative(value.plain(), {axis.path: axis.domain for axis in axes})
            for value, axes in zip(values, inside, strict=True)
        )
        ends = (variants(value, axes, MAX_CHECKED_ENDS) for value, axes in zip(values, inside, strict=True))
        return Axis(path, tuple(chain.from_iterable(ends)), Alternatives(CHOICE, alternatives))

    def _inside(self, value: Node, place: int) -> Iterator[Axis]:
        """Yield the axes inside the nth value of a list, by their paths from the value; ``()`` is the value itself.

        An error of a key is found once, and not for each end of its range.
        """
        for axis in self.axes(value, (place,)):
            path = axis.path[1:]
            key = (value.find(path) or value).key_place
            yield replace(axis, path=path, choices=tuple(replace(end, key_place=key) for end in axis.choices))

    def _sampler(self, node: Node, path: KeyPath) -> Sampled | MalformedError | None:
        named = sampler_in(node, path) if self._sampling else None
        if named is None:
            return None
        try:
            return read_sampler(*named)
        except MalformedError as error:
            return error


def _children(node: Node) -> Iterator[tuple[str | int, Node]]:
    yield from enumerate(node.value) if isinstance(node.value, tuple) else node.entries().items()
