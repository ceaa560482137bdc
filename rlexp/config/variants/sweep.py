"""Sweep: the trials of any configuration of an experiment with a ``search`` section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.search import ConfirmConfig, SearchConfig
from rlexp.config.keys.trial import Trial, sample_seed, trial_of
from rlexp.config.variants.axes import data_of
from rlexp.config.variants.space import Point, Space
from rlexp.config.variants.tried_points import TriedPoints
from rlexp.config.yaml.nodes import Place, at
from rlexp.config.yaml.writer import to_yaml
from rlexp.errors import ConfigError
from rlexp.seeding import derive_seed


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
    points: tuple[Point, ...] | None = None
    """The points to try, in place of those of the searcher."""
    first_index: int = 0
    """The number of its first trial."""
    first_sample: int = 0
    """The number of the first seed of each configuration."""

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
        points = self.planned_points()
        return self.space.number_of_configurations(self.search) if points is None else len(points)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of the trials of each configuration, where its point has no seed."""
        own = self.variants[0].config.seed
        return tuple(sample_seed(self.seed if own is None else own, sample) for sample in self._samples)

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
        """Return a random point that was not tried, None where there is none; any one for a population."""
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
        """Return the trials of a configuration, one a seed; raises ConfigError where its point is not right."""
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
        located = self.space.located
        return {axis.key: point[axis.key] if axis.keeps_spelling else at(data, axis.path) for axis in located}

    def _shown(self, current: Point) -> Mapping[str, Any]:
        """Return the values of a point by the columns of the space; those that were not drawn are not there."""
        columns = (axis.shown(current[axis.key]) for axis in self.space.located)
        return {column: value for shown in columns for column, value in shown.items()}
