"""Sweep: one experiment with a ``search`` section, ready to give the trials of any of its configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.search import SearchConfig
from rlexp.config.keys.trial import Trial, sample_seed, trial_name
from rlexp.config.variants.axis_paths import at, data_of
from rlexp.config.variants.search_space import Point, Space
from rlexp.config.yaml.nodes import Place
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
        stop = self.variants[0].stop.get(self.search.time_attr)
        return self.search.scheduler_options.interval(stop) or 0.0

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
        experiment = _with_seed(self._experiment(point), trial.experiment.config.seed or 0)
        return Trial(trial.index, trial.name, experiment, self._varied(experiment, point), trial.sample)

    def point_of(self, trial: Trial) -> Point:
        """Return the point of a trial, in today's spelling."""
        return dict(trial.varied)

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
        seeded = _with_seed(experiment, sample_seed(self.seed if own is None else own, sample))
        varied = self._varied(seeded, point)
        name = trial_name(index, seeded.run, seeded.env, varied, sample)
        return Trial(index, name, seeded.model_copy(update={"num_samples": 1}), varied, sample)

    def _varied(self, experiment: Experiment, point: Point) -> Mapping[str, Any]:
        data = data_of(experiment)
        return {axis.key: point[axis.key] if axis.makes else at(data, axis.path) for axis in self.space.located}


def _with_seed(experiment: Experiment, seed: int) -> Experiment:
    return experiment.model_copy(update={"config": experiment.config.model_copy(update={"seed": seed})})
