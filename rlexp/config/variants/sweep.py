"""Sweep: what one experiment with a ``search`` section varies, and the trials of any of its configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from random import Random
from typing import Any

from rlexp.config.command_line import LoadOptions
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.search import SearchConfig
from rlexp.config.keys.trial import Trial, sample_seed, trial_of
from rlexp.config.rllib_compat.ages import Age
from rlexp.config.space.alternatives import column_domains, domains_in
from rlexp.config.space.domains import Listed, Normal
from rlexp.config.space.grid import SEARCH, Axis, replaced
from rlexp.config.translation import node_of
from rlexp.config.variants.axes import data_of
from rlexp.config.variants.variant import Variant, variant_of
from rlexp.config.yaml.nodes import Finding, Node, Place, at
from rlexp.config.yaml.writer import to_yaml
from rlexp.errors import ConfigError
from rlexp.seeding import derive_seed

Point = Mapping[str, Any]
"""A value for each axis, by the axis's key; of a ``choice`` that holds samplers, the drawn value with these drawn."""


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

    def number_of_configurations(self, search: SearchConfig) -> int:
        """Return how many configurations a sweep tries at most."""
        grid = prod(len(axis.choices) for axis in self.axes if axis.is_grid)
        return grid * (1 if self.searcher(search) == "grid" else search.num_samples)

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
                why = "whose trials copy each other's weights"
                message = f"{axis.key} cannot be searched with scheduler: {search.scheduler}, {why}"
                yield Finding(place, message, "use another scheduler, or write one value")

    def grid(self) -> list[Point]:
        """Return the points of the grid axes alone, the last axis fastest; one empty point where there are none."""
        axes = [axis for axis in zip(self.axes, self.keys, strict=True) if axis[0].is_grid]
        values = [axis.domain.values for axis, _ in axes if isinstance(axis.domain, Listed)]
        return [dict(zip([key for _, key in axes], point, strict=True)) for point in product(*values)]

    def drawn(self, rng: Random, grid_point: Point) -> Point:
        """Return a point with its grid axes at ``grid_point`` and a draw for every other one."""
        return {
            key: grid_point[key] if key in grid_point else axis.domain.draw(rng)
            for axis, key in zip(self.axes, self.keys, strict=True)
        }

    def variant(self, point: Point) -> Variant:
        """Return the experiment at a point, without its ``search`` section, or what is wrong with it there."""
        node = self.node.without(SEARCH)
        for axis, key in zip(self.axes, self.keys, strict=True):
            node = replaced(node, axis.path, node_of(point[key], axis.choices[0]))
        return variant_of(self.name, node, self.run, self.age, self.options)

    @property
    def _section(self) -> Node:
        return self.node.child(SEARCH) or self.node


@dataclass(frozen=True)
class Sweep:
    """What one sweep tries, and from which seed it draws. Trials are numbered configuration by configuration."""

    space: Space
    search: SearchConfig
    variants: tuple[Experiment, ...]
    """Experiments at the ends of the space: a machine that can hold them can hold every trial."""
    seed: int
    """Of the search, and of the first trial of configurations that name none."""
    is_seeded: bool
    """Whether its user gave that seed; else it is another one for each command."""
    place: Place
    """The place of its section."""

    @property
    def name(self) -> str:
        """The experiment's."""
        return self.space.name

    @property
    def searcher(self) -> str:
        """``grid``, ``random`` or ``optuna``."""
        return self.space.searcher(self.search)

    @property
    def number_of_configurations(self) -> int:
        """How many are tried at most."""
        return self.space.number_of_configurations(self.search)

    @property
    def stop_interval(self) -> float:
        """The first rung, grace period or perturbation interval of the scheduler; 0 where it has none."""
        return self.search.scheduler_options.interval(self.stop_limit) or 0.0

    @property
    def stop_limit(self) -> float | None:
        """The limit in ``stop`` for the time that the scheduler counts; None where there is none."""
        return self.variants[0].stop.get(self.search.time_attr)

    def with_axes_in_order(self, keys: Sequence[str]) -> Sweep:
        """Return the sweep with its axes in the order of ``keys``: by it points are counted, drawn and named.

        A file with every key filled in has them in the order in which the keys are declared.
        """
        places = [self.space.keys.index(key) for key in keys]
        axes = tuple(self.space.axes[place] for place in places)
        located = tuple(self.space.located[place] for place in places)
        return replace(self, space=replace(self.space, axes=axes, located=located))

    def planned_points(self) -> tuple[Point, ...] | None:
        """Return the points in the order in which they are tried; None where each depends on those before."""
        grid = self.space.grid()
        if self.searcher == "grid":
            return tuple(grid)
        if self.searcher == "optuna":
            return None
        return tuple(
            self.space.drawn(self.rng("point", sample * len(grid) + number), point)
            for sample in range(self.search.num_samples)
            for number, point in enumerate(grid)
        )

    def rng(self, *stream: str | int) -> Random:
        """Return the generator of one of the search's own random streams."""
        return Random(derive_seed(self.seed, "search", *stream))

    def trials(self, configuration: int, point: Point) -> tuple[Trial, ...]:
        """Return the trials of a configuration, one a seed; raises ConfigError where its point is not right."""
        experiment = self._experiment(point)
        count = self.search.num_seeds
        return tuple(self._trial(configuration * count + sample, sample, experiment, point) for sample in range(count))

    def changed(self, trial: Trial, point: Point) -> Trial:
        """Return a trial under its name and seed, at another point; raises ConfigError where that is not right."""
        experiment = self._experiment(point).with_seed(trial.experiment.config.seed or 0)
        return replace(trial, experiment=experiment, varied=self._shown(self._current(experiment, point)))

    def current_point(self, trial: Trial, point: Point) -> Point:
        """Return the point of a trial in today's spelling, where a resolved file has it so."""
        return self._current(trial.experiment, point)

    def best_yaml(self, point: Point, comment: str) -> str:
        """Return the file with its axes at a point: an experiment for ``rlexp run``, without the section."""
        written = self.space.variant(point).written.plain()
        entry = {"run": self.space.run, **written}
        return f"# {comment}\n{to_yaml({self.name: entry})}"

    def _experiment(self, point: Point) -> Experiment:
        variant = self.space.variant(point)
        if variant.experiment is None:
            raise ConfigError([finding.problem() for finding in variant.problems])
        adjust = self.space.options.adjust
        return variant.experiment if adjust is None else adjust(variant.experiment)[0]

    def _trial(self, index: int, sample: int, experiment: Experiment, point: Point) -> Trial:
        own = experiment.config.seed
        seeded = experiment.with_seed(sample_seed(self.seed if own is None else own, sample))
        current = self._current(seeded, point)
        return replace(trial_of(index, seeded, current, sample), varied=self._shown(current))

    def _current(self, experiment: Experiment, point: Point) -> Point:
        data = data_of(experiment)
        located = self.space.located
        return {axis.key: point[axis.key] if axis.keeps_spelling else at(data, axis.path) for axis in located}

    def _shown(self, current: Point) -> Mapping[str, Any]:
        """Return the values of a point by the columns of the space; those that were not drawn are not there."""
        columns = (axis.shown(current[axis.key]) for axis in self.space.located)
        return {column: value for shown in columns for column, value in shown.items()}
