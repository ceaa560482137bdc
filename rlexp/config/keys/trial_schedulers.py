"""The options of the trial schedulers: when trials are compared, and which of them end or copy others."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rlexp.config.keys.fields import Count, Fraction, KeyGroup, Positive, Whole

TimeAttribute = Literal["timesteps_total", "training_iteration", "time_total_s"]
ReductionFactor = Annotated[float, Field(ge=1.5, le=100)]


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
    """Part of the trials at a milestone, rounded up, that copies from an equally large part of the best ones there; at
    most a half."""

    synch: bool = False
    """Whether trials wait for each other: each pauses at every milestone until all have reached it.

    False: trials continue meanwhile, and one of the worst copies a better one after its next row; what it did since the
    milestone is lost.
    """

    resample_probability: Fraction = 0.25
    """Probability that a key gets a new random value instead of a perturbed one."""

    perturbation_factor: Annotated[float, Field(gt=1)] = 1.2
    """How far a key moves that is not drawn again: up or down at random, and inwards at an end of its range.

    A number moves by ``perturbation_factor - 1`` of the width of its range, a fifth with 1.2, at most by a half; the
    width of ``randn`` counts as four standard deviations. In a logarithmic range a number is multiplied or divided by
    the factor where that is less. A value of a list is replaced by the next or previous one.
    """

    def describe(self, interval: str) -> str:
        return f"{'synchronous ' if self.synch else ''}pbt every {interval} {self.time_attr}"
