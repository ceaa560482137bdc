"""Sweep: the trials of an experiment with a ``search`` section; Space: what it varies, and the variant of a point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from random import Random
from typing import Any

from rlexp.config.command_line import LoadOptions
from rlexp.config.domains import Domain, Normal
from rlexp.config.grid import SEARCH, Axis
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.search import ConfirmConfig, SearchConfig
from rlexp.config.keys.trial import Trial, sample_seed, trial_of
from rlexp.config.points import TriedPoints, column_domains, domains_in, every_value, is_continuous, number_of_points
from rlexp.config.rllib.ages import Age
from rlexp.config.translation import node_of
from rlexp.config.variants import Variant, data_of, variant_of
from rlexp.config.yaml.nodes import Finding, Node, Place, at
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError
from rlexp.schedules import derive_seed

Point = Mapping[str, Any]
"""A value for each axis, by its key; for a ``choice`` with samplers, the drawn value with its samplers drawn."""

CONTINUOUS_FROM = 10_000
"""Least points of a space with a range of numbers to be called continuous, as they differ by rounding."""


@dataclass(frozen=True)
class Space:
    """The axes of one experiment, whose variants are all valid."""

    name: str
    run: str
    node: Node
    """The experiment with its axes, in the spelling of its file if that is older."""
    axes: tuple[Axis, ...]
    age: Age | None
    """The releases of RLlib to which its spelling belongs, if any."""
    options: LoadOptions

    @property
    def keys(self) -> tuple[str, ...]:
        """The axes' keys, as trials show them."""
        return tuple(axis.key for axis in self.axes)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys shown in tables: for values that hold samplers, also the keys inside."""
        return tuple(column for axis in self.axes for column in axis.columns)

    def column_data(self) -> dict[str, Any]:
        """Return the columns' values in the form of a file: ``{"lr": {"uniform": [0, 1]}}``; see ``column_domains``."""
        found = (column_domains(axis.key, axis.domain) for axis in self.axes)
        return {column: domain.data() for domains in found for column, domain in domains.items()}

    def searcher(self, search: SearchConfig) -> str:
        """Return the searcher, also if the section leaves it open."""
        return search.searcher or ("grid" if all(axis.is_grid for axis in self.axes) and self.axes else "random")

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The domain of each axis, by its key."""
        return {axis.key: axis.domain for axis in self.axes}

    def number_of_distinct_points(self) -> int | None:
        """Return how many points differ; None if there is no bound."""
        return number_of_points(axis.domain for axis in self.axes)

    @property
    def is_continuous(self) -> bool:
        """Whether its points are too close to each other for their number to matter."""
        number = self.number_of_distinct_points()
        is_large = number is None or number >= CONTINUOUS_FROM
        return is_large and any(is_continuous(axis.domain) for axis in self.axes)

    def number_of_configurations(self, search: SearchConfig) -> int:
        """Return the most configurations that a sweep tries: each once, except in a population."""
        grid = number_of_points(axis.domain for axis in self.axes if axis.is_grid) or 0
        if self.searcher(search) == "grid":
            return grid
        drawn = number_of_points(axis.domain for axis in self.axes if not axis.is_grid)
        if drawn is None or search.scheduler_options.COPIES_TRIALS:
            return grid * search.num_samples
        return grid * min(search.num_samples, drawn)

    def repetition(self, search: SearchConfig) -> Finding | None:
        """Return that ``num_samples`` asks for more configurations than there are; None if it does not."""
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
        for axis in self.axes:
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
            set_by_it = [".".join(map(str, path)) for path in axis.makes or (axis.path,)]
            if search.scheduler_options.COPIES_TRIALS and any(f"{path}.".startswith(fixed) for path in set_by_it):
                copied = "weights" if experiment.config.replay is None else "weights and replay"
                why = f"whose trials copy each other's {copied}"
                message = f"{axis.key} cannot be searched with scheduler: {search.scheduler}, {why}"
                yield Finding(place, message, "use another scheduler, or write one value")

    def notices(self, experiment: Experiment) -> Iterator[Finding]:
        """Yield what the scheduler can do with an experiment's checkpoints only with a loss."""
        needs, replay = experiment.config.replay, self.node.find(("config", "checkpoint_replay"))
        is_left_out = needs is not None and needs.in_checkpoints is False
        if experiment.search.scheduler_options.COPIES_TRIALS and is_left_out and replay is not None:
            message = f"with scheduler: {experiment.search.scheduler} a trial that copies another one starts with an"
            yield Finding(replay.place, f"checkpoint_replay is false: {message} empty replay; write true")

    def grid(self) -> list[Point]:
        """Return the points of the grid axes alone, the last axis fastest; one empty point if there are none."""
        values = {axis.key: every_value(axis.domain) for axis in self.axes if axis.is_grid}
        return [dict(zip(values, point, strict=True)) for point in product(*values.values())]

    def variant(self, point: Point) -> Variant:
        """Return the experiment at a point, without its ``search`` section, or the findings there."""
        node = self.node.without(SEARCH)
        for axis in self.axes:
            node = node.put(axis.given or axis.path, node_of(point[axis.key], axis.choices[0]))
        return variant_of(self.name, node, self.run, self.age, self.options)

    @property
    def _section(self) -> Node:
        return self.node.child(SEARCH) or self.node


@dataclass(frozen=True)
class Sweep:
    """What one sweep tries, and its seed. Trials are numbered configuration by configuration."""

    space: Space
    search: SearchConfig
    variants: tuple[Experiment, ...]
    """Experiments at the ends of the space: a machine that can hold them can hold every trial."""
    seed: int
    """Seed of the search, and of the first trial of configurations without a seed."""
    is_seeded: bool
    """Whether its user gave that seed; otherwise each command has another one."""
    place: Place
    """The place of its section."""
    points: tuple[Point, ...] | None = None
    """Points to try in place of the searcher's."""
    first_index: int = 0
    """The number of its first trial."""
    first_sample: int = 0
    """The number of each configuration's first seed."""

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
        """The most configurations that are tried."""
        points = self.planned_points()
        return self.space.number_of_configurations(self.search) if points is None else len(points)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the trials of each configuration, if its point has no seed."""
        own = self.variants[0].config.seed
        return tuple(sample_seed(self.seed if own is None else own, sample) for sample in self._samples)

    @property
    def stop_interval(self) -> float:
        """The first rung, grace period or perturbation interval of the scheduler; 0 if it has none."""
        return self.search.scheduler_options.interval(self.stop_limit) or 0.0

    @property
    def stop_limit(self) -> float | None:
        """The limit in ``stop`` for the scheduler's time; None if there is none."""
        return self.variants[0].stop.get(self.search.time_attr)

    def with_axes_in_order(self, keys: Sequence[str]) -> Sweep:
        """Return the sweep with its axes in the order of ``keys``, by which points are counted, drawn and named.

        A file with every key filled in has them in the order in which the keys are declared.
        """
        axes = {axis.key: axis for axis in self.space.axes}
        return replace(self, space=replace(self.space, axes=tuple(axes[key] for key in keys)))

    def planned_points(self) -> tuple[Point, ...] | None:
        """Return the points in the order in which they are tried; None if each depends on earlier ones."""
        if self.points is not None:
            return self.points
        return None if self.searcher == "optuna" else self._planned

    @cached_property
    def _planned(self) -> tuple[Point, ...]:
        grid = self.space.grid()
        if self.searcher == "grid":
            return tuple(grid)
        tried = TriedPoints(self.space.domains)
        drawn = (
            self._drawn(sample * len(grid) + number, point, tried)
            for sample in range(self.space.number_of_configurations(self.search) // len(grid))
            for number, point in enumerate(grid)
        )
        return tuple(point for point in drawn if point is not None)

    def _drawn(self, number: int, grid_point: Point, tried: TriedPoints) -> Point | None:
        """Return a random point that was not tried; None if there is none; for a population, any point."""
        rng = self.rng("point", number)
        if self.search.scheduler_options.COPIES_TRIALS:
            return tried.drawn(rng, grid_point)
        point = tried.new(rng, grid_point)
        if point is not None:
            tried.add(point)
        return point

    def rng(self, *stream: str | int) -> Random:
        """Return the generator of one of the search's own random streams."""
        return Random(derive_seed(self.seed, "search", *stream))

    def trials(self, configuration: int, point: Point) -> tuple[Trial, ...]:
        """Return the trials of a configuration, one per seed; raises ConfigError if its point is not valid."""
        experiment = self._experiment(point)
        first = self.first_index + configuration * self.search.num_seeds
        return tuple(
            self._trial(index, sample, experiment, point) for index, sample in enumerate(self._samples, start=first)
        )

    def confirmation(self, points: Sequence[Point]) -> Sweep:
        """Return the sweep that tries points of this one again, each with ``confirm.num_seeds`` other seeds."""
        own = {"scheduler": "fifo", "num_seeds": self.search.confirm.num_seeds, "num_samples": len(points)}
        others = {"searcher": "random", "time_budget_s": None, "confirm": ConfirmConfig()}
        return replace(
            self,
            search=self.search.model_copy(update=own | others),
            points=tuple(points),
            first_index=self.number_of_configurations * self.search.num_seeds,
            first_sample=self.search.num_seeds,
        )

    def changed(self, trial: Trial, point: Point) -> Trial:
        """Return a trial under its name and seed, at another point; raises ConfigError if that is not valid."""
        experiment = self._experiment(point).with_seed(trial.experiment.config.seed or 0)
        return replace(trial, experiment=experiment, varied=self._shown(self._current(experiment, point)))

    def current_point(self, trial: Trial, point: Point) -> Point:
        """Return the point of a trial in current spelling, if a resolved file has it so."""
        return self._current(trial.experiment, point)

    def best_yaml(self, point: Point, comment: str) -> str:
        """Return the file with its axes at a point: an experiment for ``rlexp run``, without the section."""
        written = self.space.variant(point).written.plain()
        entry = {"run": self.space.run, **written}
        return f"# {comment}\n{to_yaml({self.name: entry})}"

    @property
    def _samples(self) -> range:
        return range(self.first_sample, self.first_sample + self.search.num_seeds)

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
        axes = self.space.axes
        return {axis.key: point[axis.key] if axis.keeps_spelling else at(data, axis.path) for axis in axes}

    def _shown(self, current: Point) -> Mapping[str, Any]:
        """Return the values of a point by the columns of the space, without values that were not drawn."""
        columns = (axis.shown(current[axis.key]) for axis in self.space.axes)
        return {column: value for shown in columns for column, value in shown.items()}
