"""The ``search`` section: what a sweep optimises, how Optuna or chance chooses configurations, and early stopping."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from rlexp.config.keys.fields import (
    Conflict,
    Count,
    CountOrZero,
    Fraction,
    FreeForm,
    KeyGroup,
    Positive,
    Whole,
    defaults_of,
    rule,
)
from rlexp.config.keys.metrics import is_known

DATABASES: Final = ("sqlite", "mysql", "postgresql")
"""Databases in which Optuna can store a study by URL, with any driver: ``postgresql+psycopg2``."""
_SCHEME: Final = re.compile(r"(?P<database>[A-Za-z0-9]+)(\+\w+)?://")
_DATABASE_FILE: Final = (".db", ".db3", ".sqlite", ".sqlite3")
_OWN_KEYS: Final = {
    "seed": "config.seed is the seed of the search",
    "n_startup_trials": "write it beside sampler_kwargs",
}
"""Arguments of samplers that ``sampler_kwargs`` cannot have, and what to write."""


class OptunaConfig(KeyGroup):
    """The options of ``searcher: optuna``."""

    sampler: Literal["tpe", "random", "cmaes", "gp", "qmc", "nsgaii"] = "tpe"
    """Which sampler of Optuna chooses points: ``tpe`` (tree-structured Parzen estimator, Bergstra et al. 2011),
    ``random``, ``cmaes`` (CMA-ES, for numbers), ``gp`` (Gaussian process), ``qmc`` (Sobol sequence), ``nsgaii``
    (genetic). ``cmaes`` needs the package cmaes; ``gp`` and ``qmc`` need scipy."""

    sampler_kwargs: FreeForm = Field(default_factory=dict)
    """Other arguments of the sampler, by their names in Optuna: ``{multivariate: true}`` for ``tpe``."""

    n_startup_trials: CountOrZero = 10
    """Number of random configurations before the estimator is used; only for ``tpe``, ``gp`` and ``cmaes``."""

    storage: Annotated[str, Field(min_length=1)] | None = None
    """Where the study is stored, for optuna-dashboard and for other sweeps that join it: the URL of a database
    (``sqlite:///study.db``), or the path of a journal file of Optuna. Null: in memory only."""

    study_name: Annotated[str, Field(min_length=1)] | None = None
    """Name of the study in ``storage``; a sweep joins the study of this name. Null: the name of the experiment."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield arguments that have keys of their own, and storages that Optuna does not have or that are not safe."""
        yield from super().conflicts()
        for name in self.sampler_kwargs.keys() & _OWN_KEYS.keys():
            yield Conflict((f"sampler_kwargs.{name}",), f"sampler_kwargs cannot have {name}", _OWN_KEYS[name])
        if self.storage is None and self.study_name is not None:
            yield Conflict(("study_name",), "study_name is given without storage", "write storage: sqlite:///study.db")
        if self.storage is not None:
            yield from self._wrong_storage(self.storage)
        if self.storage is not None and self.sampler == "cmaes":
            why = "Optuna keeps its state in the study as a pickle, which could run code of anyone who can write there"
            message = f"sampler: cmaes cannot be used with storage: {why}"
            yield Conflict(("sampler",), message, "use another sampler, or leave storage out")

    def _wrong_storage(self, storage: str) -> Iterator[Conflict]:
        scheme = _SCHEME.match(storage)
        if scheme is None and storage.endswith(_DATABASE_FILE):
            message = "storage is a path, so it would be a journal file of Optuna, but it has the name of a database"
            yield Conflict(("storage",), message, "write sqlite:/// before it, or end the name with .log")
        elif scheme is None and "://" in storage:
            yield Conflict(("storage",), "storage is not a URL of a database", "write sqlite:///study.db")
        elif scheme is not None and scheme["database"].lower() not in DATABASES:
            message = f"storage must be the URL of {', '.join(DATABASES)}, or a path; it begins with {scheme[0]}"
            yield Conflict(("storage",), message, "write sqlite:///study.db")


TimeAttribute = Literal["timesteps_total", "training_iteration", "time_total_s"]
ReductionFactor = Annotated[float, Field(ge=1.5, le=100)]


class SchedulerConfig(KeyGroup):
    """The options of a trial scheduler, and its properties before a sweep runs; this one is ``fifo``.

    A scheduler is a subclass here with its field and name in ``SearchConfig``, and the file of its RULE.
    """

    RULE: ClassVar[str] = "rlexp.search.trial_scheduler:TrialScheduler"
    """The module and class that judge trials, imported when a sweep begins."""
    INTERVAL_KEY: ClassVar[str | None] = None
    """The key for the time of its first comparison of trials; None: it compares none."""
    NEEDS_STOP: ClassVar[bool] = False
    """Whether it needs a limit for its ``time_attr`` in ``stop``."""
    COPIES_TRIALS: ClassVar[bool] = False
    """Whether trials copy each other's weights and change their keys."""
    EXAMPLE: ClassVar[str] = "search: {scheduler: fifo}"
    MEANING: ClassVar[str] = "Trains every trial to its stop."

    time_attr: TimeAttribute = "timesteps_total"
    """Unit of time."""

    @property
    def share(self) -> float:
        """The share of the limit in ``stop`` for ``time_attr`` that is the default of INTERVAL_KEY."""
        return 0.1

    def interval(self, stop_at: float | None) -> float | None:
        """Return the value of INTERVAL_KEY, or its default for a ``stop`` at ``stop_at``; None without both."""
        if self.INTERVAL_KEY is None:
            return 0.0
        given: float | None = getattr(self, self.INTERVAL_KEY)
        if given is not None:
            return given
        return None if stop_at is None else max(stop_at * self.share, 1.0)

    def describe(self, interval: str) -> str:
        """Return what it does, as a part of a sentence; ``interval`` is its interval."""
        return "no trial is ended early"


class AshaConfig(SchedulerConfig):
    """Asynchronous successive halving (Li et al. 2020): only the best trials at a rung continue to the next rung."""

    RULE = "rlexp.search.early_stopping:Asha"
    INTERVAL_KEY = "grace_period"
    EXAMPLE = "search: {scheduler: asha, asha: {grace_period: 10000}}"
    MEANING = (
        "Asynchronous successive halving (Li et al. 2020): at each rung only the best 1 / reduction_factor of the "
        "trials that reached it continue; the others end early."
    )

    time_attr: TimeAttribute = "timesteps_total"
    """Unit in which rungs are counted."""

    grace_period: Positive | None = None
    """Position of the first rung. Each later rung is at ``reduction_factor`` times the one before.

    Null: chosen so that two rungs are below the limit in ``stop`` for ``time_attr``.
    """

    reduction_factor: ReductionFactor = 4.0
    """Each rung keeps the top 1 / ``reduction_factor`` of the configurations that reached it. From 1.5 to 100."""

    brackets: Annotated[Whole, Field(ge=1, le=10)] = 1
    """Number of brackets. Each has rungs of its own; its first rung is one rung later than in the bracket before.

    Configurations are drawn into the brackets, most of them into the first. This guards against values at the first
    rung that say little about the end.
    """

    @property
    def share(self) -> float:
        return self.reduction_factor**-2

    def describe(self, interval: str) -> str:
        brackets = "" if self.brackets == 1 else f" in {self.brackets} brackets"
        return f"asha after {interval} {self.time_attr}{brackets}"


class HyperbandConfig(SchedulerConfig):
    """HyperBand (Li et al. 2018): brackets in which configurations wait at each rung until all are there."""

    RULE = "rlexp.search.early_stopping:HyperBand"
    INTERVAL_KEY = "grace_period"
    NEEDS_STOP = True
    EXAMPLE = "search: {scheduler: hyperband, num_samples: 49}"
    MEANING = (
        "HyperBand (Li et al. 2018): brackets of configurations; at each rung a bracket pauses until all of it are "
        "there, then the best 1 / reduction_factor continue and the others end early."
    )

    time_attr: TimeAttribute = "timesteps_total"
    """Unit in which rungs are counted."""

    grace_period: Positive | None = None
    """Position of the first rung of the first bracket. Each later rung is at ``reduction_factor`` times the one
    before.

    Null: chosen so that three rungs are below the limit in ``stop`` for ``time_attr``.
    """

    reduction_factor: ReductionFactor = 3.0
    """Each rung keeps the top 1 / ``reduction_factor`` of its configurations. From 1.5 to 100."""

    @property
    def share(self) -> float:
        return self.reduction_factor**-3

    def number_of_rungs(self, first: float, limit: float) -> int:
        """Return how many rungs are below ``limit``, from the one at ``first``."""
        return max(math.ceil(math.log(limit / first, self.reduction_factor) - 1e-9), 0)

    def describe(self, interval: str) -> str:
        return f"hyperband after {interval} {self.time_attr}"


class MedianConfig(SchedulerConfig):
    """Median stopping (Golovin et al. 2017): a trial that is worse than the median of the others' averages ends."""

    RULE = "rlexp.search.early_stopping:MedianStopping"
    INTERVAL_KEY = "grace_period"
    EXAMPLE = "search: {scheduler: median}"
    MEANING = (
        "Median stopping (Golovin et al. 2017): a trial that is worse than the median of the others at the same "
        "time ends early."
    )

    time_attr: TimeAttribute = "timesteps_total"
    """Unit in which time is counted."""

    grace_period: Positive | None = None
    """Time before which no trial is ended. Null: a tenth of the limit in ``stop`` for ``time_attr``."""

    min_samples_required: Count = 3
    """Number of other trials that must have reached the same time before a trial is compared with them."""

    def describe(self, interval: str) -> str:
        return f"median rule after {interval} {self.time_attr}"


class PbtConfig(SchedulerConfig):
    """Population based training (Jaderberg et al. 2017): the worst trials copy the best ones, and change keys."""

    RULE = "rlexp.search.population:Population"
    INTERVAL_KEY = "perturbation_interval"
    COPIES_TRIALS = True
    EXAMPLE = "search: {scheduler: pbt, num_samples: 8}"
    MEANING = (
        "Population based training (Jaderberg et al. 2017): every perturbation_interval the worst trials copy the "
        "weights of the best, and their keys with small changes."
    )

    time_attr: TimeAttribute = "timesteps_total"
    """Unit of ``perturbation_interval``."""

    perturbation_interval: Positive | None = None
    """Time between two comparisons of a trial with the others. Null: a tenth of the limit in ``stop`` for
    ``time_attr``."""

    quantile_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """Share of the trials at a milestone, rounded up, that copy from an equally large share of the best ones there; at
    most a half."""

    synch: bool = False
    """Whether trials wait for each other: each pauses at every milestone until all have reached it.

    False: trials continue meanwhile. One of the worst copies a better one after its next row, and loses its own
        training since the milestone.
    """

    resample_probability: Fraction = 0.25
    """Probability that a key gets a new random value instead of a perturbed one."""

    perturbation_factor: Annotated[float, Field(gt=1)] = 1.2
    """How far a key moves if it is not drawn again: up or down at random, and inwards at an end of its range.

    A number moves by ``perturbation_factor - 1`` of the width of its range, a fifth with 1.2, at most by a half; the
    width of ``randn`` counts as four standard deviations. In a logarithmic range, a number is multiplied or divided by
    the factor if that is less. A value of a list is replaced by the next or previous one.
    """

    def describe(self, interval: str) -> str:
        return f"{'synchronous ' if self.synch else ''}pbt every {interval} {self.time_attr}"


MetricName = Annotated[str, rule(is_known, "is not a metric of the results")]


class ConfirmConfig(KeyGroup):
    """The best configurations are trained again, with seeds that the search did not use: a score may be luck."""

    top: CountOrZero = 0
    """Number of the best completed configurations that are confirmed. 0: none."""

    num_seeds: Annotated[Whole, Field(ge=2)] = 5
    """Number of trials of each, to the ``stop``. ``best.yaml`` gets the configuration whose 95 % interval over these
    has the highest lower end (``mode: min``: the lowest upper end)."""


class SearchConfig(KeyGroup):
    """The keys under ``search:``. A file with this section is a sweep."""

    metric: MetricName = "episode_reward_mean"
    """The metric that is optimised. A trial's score is its mean over the last tenth of the steps that all completed
    trials have."""

    mode: Literal["max", "min"] = "max"
    """Whether a higher ``metric`` is better (``max``) or a lower one (``min``)."""

    searcher: Literal["grid", "random", "optuna"] | None = None
    """``grid``: all points of the grid. ``random``: random points. ``optuna``: points chosen from the results so far.

    Null: ``grid`` if there are no samplers, else ``random``.
    """

    scheduler: Literal["fifo", "asha", "hyperband", "median", "pbt"] = "fifo"
    """Whether trials are stopped early: never (``fifo``), by ``asha``, ``hyperband`` or ``median``. ``pbt``: trials
    copy from each other instead."""

    num_samples: Count = 1
    """Number of configurations; with a grid beside samplers, per point of the grid."""

    num_seeds: Count = 1
    """Number of trials of each configuration, with different seeds. Configurations are ranked by all of them. If
    ``scheduler`` ends some early, they are compared by their mean, and the trials of a configuration end together."""

    rank_by: Literal["mean", "iqm"] = "mean"
    """How the scores of a configuration's seeds are combined: mean, or interquartile mean (``iqm``)."""

    max_concurrent: Count | None = None
    """Maximum number of trials that run at the same time. Null: as many as fit on the machine."""

    time_budget_s: Positive | None = None
    """Seconds after which running trials end and no new one begins. Null: no limit."""

    hang_timeout_s: Positive = 300.0
    """Seconds without a result after which a trial counts as hung and is ended.

    Must be longer than the start of a process, and than the longest iteration with its evaluation.
    """

    asha: AshaConfig = defaults_of(AshaConfig)
    """Options of ``scheduler: asha``."""

    hyperband: HyperbandConfig = defaults_of(HyperbandConfig)
    """Options of ``scheduler: hyperband``."""

    median: MedianConfig = defaults_of(MedianConfig)
    """Options of ``scheduler: median``."""

    pbt: PbtConfig = defaults_of(PbtConfig)
    """Options of ``scheduler: pbt``."""

    optuna: OptunaConfig = defaults_of(OptunaConfig)
    """Options of ``searcher: optuna``."""

    confirm: ConfirmConfig = defaults_of(ConfirmConfig)
    """Whether the best configurations are trained again with fresh seeds before ``best.yaml`` is written."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield searchers and schedulers that cannot be combined."""
        yield from super().conflicts()
        if self.searcher == "grid" and self.num_samples > 1:
            message = f"num_samples is {self.num_samples}, but searcher: grid tries every point once"
            yield Conflict(("num_samples",), message, "use num_seeds to repeat each point with other seeds")
        copies = self.scheduler_options.COPIES_TRIALS
        if copies and self.searcher == "optuna":
            hint = "leave searcher out; the first population is random"
            message = f"searcher is optuna, but scheduler: {self.scheduler} chooses keys itself"
            yield Conflict(("searcher",), message, hint)
        if copies and self.num_seeds > 1:
            message = f"num_seeds is {self.num_seeds}, but with scheduler: {self.scheduler} each trial changes its keys"
            yield Conflict(("num_seeds",), message, "use num_samples, the size of the population")
        if copies and self.confirm.top:
            message = (
                f"confirm.top is {self.confirm.top}, but with scheduler: {self.scheduler} trials change their keys"
            )
            yield Conflict(("confirm.top",), message, "leave confirm out; rlexp run best.yaml trains the last keys")

    @property
    def scheduler_options(self) -> SchedulerConfig:
        """The options of the scheduler that was chosen."""
        return getattr(self, self.scheduler, SchedulerConfig())

    @property
    def time_attr(self) -> TimeAttribute:
        """The unit in which the scheduler counts time."""
        return self.scheduler_options.time_attr


SCHEDULERS: Final[Mapping[str, type[SchedulerConfig]]] = {"fifo": SchedulerConfig} | {
    name: field.annotation
    for name, field in SearchConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, SchedulerConfig)
}
"""The schedulers by name."""
