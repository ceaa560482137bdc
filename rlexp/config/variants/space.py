"""Space: what one experiment with a ``search`` section varies, and its variant at any point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from rlexp.config.command_line import LoadOptions
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.search import SearchConfig
from rlexp.config.rllib_compat.ages import Age
from rlexp.config.space.alternatives import column_domains, domains_in
from rlexp.config.space.distinct import every_value, is_continuous, number_of_values
from rlexp.config.space.domains import Domain, Normal
from rlexp.config.space.grid import SEARCH, Axis, replaced
from rlexp.config.translation import node_of
from rlexp.config.variants.variant import Variant, variant_of
from rlexp.config.yaml.nodes import Finding, Node

Point = Mapping[str, Any]
"""A value for each axis, by the axis's key; of a ``choice`` that holds samplers, the drawn value with these drawn."""

CONTINUOUS_FROM = 10_000
"""A space with a range of numbers is called continuous if it has so many points: they differ by rounding."""


@dataclass(frozen=True)
class Space:
    """The axes of one experiment, all of whose variants are right."""

    name: str
    run: str
    node: Node
    """The experiment, in the spelling of its file where that is older, with its axes."""
    axes: tuple[Axis, ...]
    located: tuple[Axis, ...]
    """The same axes, at their current keys."""
    age: Age | None
    """The releases of RLlib that its spelling belongs to, if any."""
    options: LoadOptions

    @property
    def keys(self) -> tuple[str, ...]:
        """The axes' keys, as trials show them."""
        return tuple(axis.key for axis in self.located)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys as tables show them: for values that hold samplers, those inside these too."""
        return tuple(column for axis in self.located for column in axis.columns)

    def column_data(self) -> dict[str, Any]:
        """Return what the columns can be, as a file has it: ``{"lr": {"uniform": [0, 1]}}``; see ``column_domains``."""
        found = (column_domains(axis.key, axis.domain) for axis in self.located)
        return {column: domain.data() for domains in found for column, domain in domains.items()}

    def searcher(self, search: SearchConfig) -> str:
        """Return the searcher, also where the section leaves it open."""
        return search.searcher or ("grid" if all(axis.is_grid for axis in self.axes) and self.axes else "random")

    @property
    def domains(self) -> Mapping[str, Domain]:
        """What each axis can be, by its key."""
        return {key: axis.domain for axis, key in zip(self.axes, self.keys, strict=True)}

    def number_of_distinct_points(self) -> int | None:
        """Return how many points differ, None where there is no bound on their number."""
        return _product(self.axes)

    @property
    def is_continuous(self) -> bool:
        """Whether its points are too close to each other for their number to matter."""
        number = self.number_of_distinct_points()
        is_large = number is None or number >= CONTINUOUS_FROM
        return is_large and any(is_continuous(axis.domain) for axis in self.axes)

    def number_of_configurations(self, search: SearchConfig) -> int:
        """Return how many configurations a sweep tries at most: none twice, except in a population."""
        grid = _product([axis for axis in self.axes if axis.is_grid]) or 0
        if self.searcher(search) == "grid":
            return grid
        drawn = _product([axis for axis in self.axes if not axis.is_grid])
        if drawn is None or search.scheduler_options.COPIES_TRIALS:
            return grid * search.num_samples
        return grid * min(search.num_samples, drawn)

    def repetition(self, search: SearchConfig) -> Finding | None:
        """Return that ``num_samples`` asks for more configurations than there are, None where it does not."""
        tried = self.number_of_configurations(search)
        grid = len(self.grid())
        if self.searcher(search) == "grid" or tried >= grid * search.num_samples:
            return None
        points = f"{tried // grid} distinct points" + (" beside its grid" if grid > 1 else "")
        message = f"search.num_samples is {search.num_samples}, but {self.name} has only {points}: each is tried once"
        node = self._section.child("num_samples") or self._section
        return Finding(node.key_place, f"{message}; search.num_seeds repeats them with other seeds")

    def findings(self, experiment: Experiment) -> Iterator[Finding]:
        """Yield what the searcher or scheduler of an experiment's section cannot do with these axes."""
        search, searcher = experiment.search, self.searcher(experiment.search)
        fixed = ("env.", "run.", *(f"config.{key}." for key in experiment.config.KEPT_BY_PBT))
        if not self.axes:
            hint = "write a value as {loguniform: [1e-4, 1e-2]} or {grid_search: [...]}, or use --sweep lr=1e-3,1e-4"
            yield Finding(self._section.key_place, f"{self.name} has nothing to search", hint)
        for axis, located in zip(self.axes, self.located, strict=True):
            place = axis.choices[0].place
            if searcher == "grid" and not axis.is_grid:
                sampler = next(iter(axis.domain.data()))
                message = f"{axis.key}: {sampler} cannot be used with search.searcher: grid"
                yield Finding(place, message, "write grid_search: [...], or searcher: random")
            if searcher == "optuna" and axis.is_grid:
                message = f"{axis.key}: grid_search cannot be used with search.searcher: optuna"
                yield Finding(place, message, "write choice: [...]")
            if searcher == "optuna" and any(isinstance(domain, Normal) for domain in domains_in(axis.domain)):
                message = f"{axis.key}: randn cannot be used with search.searcher: optuna"
                yield Finding(place, message, "write uniform: [low, high]")
            set_by_it = [".".join(map(str, path)) for path in located.makes or (located.path,)]
            if search.scheduler_options.COPIES_TRIALS and any(f"{path}.".startswith(fixed) for path in set_by_it):
                copied = "weights" if experiment.config.replay is None else "weights and replay"
                why = f"whose trials copy each other's {copied}"
                message = f"{axis.key} cannot be searched with scheduler: {search.scheduler}, {why}"
                yield Finding(place, message, "use another scheduler, or write one value")

    def notices(self, experiment: Experiment) -> Iterator[Finding]:
        """Yield what the scheduler can do with an experiment's checkpoints, but with a loss."""
        needs, replay = experiment.config.replay, self.node.find(("config", "checkpoint_replay"))
        is_left_out = needs is not None and needs.in_checkpoints is False
        if experiment.search.scheduler_options.COPIES_TRIALS and is_left_out and replay is not None:
            message = f"with scheduler: {experiment.search.scheduler} a trial that copies another one starts with an"
            yield Finding(replay.place, f"checkpoint_replay is false: {message} empty replay; write true")

    def grid(self) -> list[Point]:
        """Return the points of the grid axes alone, the last axis fastest; one empty point where there are none."""
        axes = {key: axis for axis, key in zip(self.axes, self.keys, strict=True) if axis.is_grid}
        values = [every_value(axis.domain) for axis in axes.values()]
        return [dict(zip(axes, point, strict=True)) for point in product(*values)]

    def variant(self, point: Point) -> Variant:
        """Return the experiment at a point, without its ``search`` section, or what is wrong with it there."""
        node = self.node.without(SEARCH)
        for axis, key in zip(self.axes, self.keys, strict=True):
            node = replaced(node, axis.path, node_of(point[key], axis.choices[0]))
        return variant_of(self.name, node, self.run, self.age, self.options)

    @property
    def _section(self) -> Node:
        return self.node.child(SEARCH) or self.node


def _product(axes: Sequence[Axis]) -> int | None:
    """Return how many combinations of values some axes have, None where there is no bound on their number."""
    numbers = [number_of_values(axis.domain) for axis in axes]
    return None if None in numbers else prod(number for number in numbers if number is not None)
