"""The ``search`` section: what a sweep optimises, how it chooses configurations and which of them it stops early."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from rlexp.config.keys.fields import RULE, Conflict, Count, CountOrZero, Fraction, KeyGroup, Positive, Whole
from rlexp.config.keys.metric_names import KNOWN_METRICS

TimeAttribute = Literal["timesteps_total", "training_iteration", "time_total_s"]


def known_metric(metric: str) -> str:
    """Return a metric if results report it."""
    if metric not in KNOWN_METRICS:
        raise PydanticCustomError(RULE, "is not a metric of the results")
    return metric


class SchedulerConfig(KeyGroup):
    """The options of a trial scheduler, and what is to be known of it before a sweep runs; this one is ``fifo``.

    A scheduler is a subclass here with its field and name in ``SearchConfig``, and the file of its RULE.
    """

    RULE: ClassVar[str] = "rlexp.search.trial_scheduler:TrialScheduler"
    """The module and class that judge trials, imported when a sweep begins."""
    INTERVAL_KEY: ClassVar[str | None] = None
    """The key with the time at which it first compares trials; None: it compares none."""
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
        """The part of the limit in ``stop`` for ``time_attr`` that is the default of INTERVAL_KEY."""
        return 0.1

    def interval(self, stop_at: float | None) -> float | None:
        """Return what INTERVAL_KEY says, or its default where ``stop`` has ``stop_at``; None where neither is given."""
        if self.INTERVAL_KEY is None:
            return 0.0
        given: float | None = getattr(self, self.INTERVAL_KEY)
        if given is not None:
            return given
        return None if stop_at is None else max(stop_at * self.share, 1.0)

    def describe(self, interval: str) -> str:
        """Return what it does, as a part of a sentence, where ``interval`` is its interval."""
        return "no trial is ended early"


ReductionFactor = Annotated[float, Field(ge=1.5, le=100)]


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

    Null: chosen such that two rungs are below the limit in ``stop`` for ``time_attr``.
    """

    reduction_factor: ReductionFactor = 4.0
    """One of so many configurations at a rung continues: the best so far. From 1.5 to 100."""

    brackets: Annotated[Whole, Field(ge=1, le=10)] = 1
    """Number of brackets. Each has rungs of its own, the first of them one rung later than in the bracket before.

    Configurations are drawn into the brackets, most of them into the first: a guard against values at the first rung
    that say little about the end.
    """

    @property
    def share(self) -> float:
        return self.reduction_factor**-2

    def describe(self, interval: str) -> str:
        brackets = "" if self.brackets == 1 else f" in {self.brackets} brackets"
        return f"asha after {interval} {self.time_attr}{brackets}"


class HyperbandConfig(SchedulerConfig):
    """HyperBand (Li et al. 2018): brackets in which configurations wait at each rung until all are there."""

    RULE = "rlexp.search.hyperband:HyperBand"
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

    Null: chosen such that three rungs are below the limit in ``stop`` for ``time_attr``.
    """

    reduction_factor: ReductionFactor = 3.0
    """One of so many configurations at a rung continues. From 1.5 to 100."""

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
    """Part of the population that copies from an equal part of the best trials."""

    resample_probability: Fraction = 0.25
    """Probability that a key gets a new random value instead of a perturbed one."""

    perturbation_factor: Annotated[float, Field(gt=1)] = 1.2
    """A number is multiplied or divided by this factor. A value of a list is replaced by the next or previous one."""

    def describe(self, interval: str) -> str:
        return f"pbt every {interval} {self.time_attr}"


class OptunaConfig(KeyGroup):
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011)."""

    n_startup_trials: CountOrZero = 10
    """Number of random configurations before the estimator is used."""


class SearchConfig(KeyGroup):
    """What is under ``search:``. A file that has it is a sweep."""

    metric: Annotated[str, AfterValidator(known_metric)] = "episode_reward_mean"
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
    """Number of trials of each configuration, with different seeds. Configurations are ranked by all of them, and
    compared by their mean where ``scheduler`` ends some early: the trials of a configuration end together."""

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

    asha: AshaConfig = AshaConfig()
    """Options of ``scheduler: asha``."""

    hyperband: HyperbandConfig = HyperbandConfig()
    """Options of ``scheduler: hyperband``."""

    median: MedianConfig = MedianConfig()
    """Options of ``scheduler: median``."""

    pbt: PbtConfig = PbtConfig()
    """Options of ``scheduler: pbt``."""

    optuna: OptunaConfig = OptunaConfig()
    """Options of ``searcher: optuna``."""

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
