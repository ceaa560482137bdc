"""The ``search`` section: what a sweep looks for, how it picks configurations and which of them it stops early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from rlexp.config.fields import RULE, Conflict, Count, CountOrZero, Fraction, KeyGroup, Positive
from rlexp.config.metric_names import KNOWN_METRICS

TimeAttribute = Literal["timesteps_total", "training_iteration", "time_total_s"]


def known_metric(metric: str) -> str:
    """Return a metric if results report it."""
    if metric not in KNOWN_METRICS:
        raise PydanticCustomError(RULE, "is not a metric that results report")
    return metric


class AshaConfig(KeyGroup):
    """Asynchronous successive halving (Li et al. 2020): few of those that reach a rung go on to the next."""

    time_attr: TimeAttribute = "timesteps_total"
    """What rungs are counted in."""

    grace_period: Positive | None = None
    """Where the first rung is; the others follow at ``reduction_factor`` times the one before.

    Null: so that two rungs lie below what ``stop`` has for ``time_attr``.
    """

    reduction_factor: Annotated[float, Field(gt=1)] = 4.0
    """Of so many trials at a rung one goes on, the best so far."""


class MedianConfig(KeyGroup):
    """Median stopping (Golovin et al. 2017): a trial worse than the median of the others' averages ends."""

    time_attr: TimeAttribute = "timesteps_total"
    """What time is counted in."""

    grace_period: Positive | None = None
    """No trial ends before. Null: a tenth of what ``stop`` has for ``time_attr``."""

    min_samples_required: Count = 3
    """Other trials that must have come as far before one is judged."""


class PbtConfig(KeyGroup):
    """Population based training (Jaderberg et al. 2017): the worst take over the best's weights, with keys moved."""

    time_attr: TimeAttribute = "timesteps_total"
    """What ``perturbation_interval`` is counted in."""

    perturbation_interval: Positive | None = None
    """Between two looks at a trial. Null: a tenth of what ``stop`` has for ``time_attr``."""

    quantile_fraction: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """The part of the population that takes over from the same part at its other end."""

    resample_probability: Fraction = 0.25
    """How likely a key is drawn anew instead of moved."""

    perturbation_factor: Annotated[float, Field(gt=1)] = 1.2
    """A number is moved by this factor or its inverse; a value of a list to the next or the one before."""


class OptunaConfig(KeyGroup):
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011)."""

    n_startup_trials: CountOrZero = 10
    """Configurations that are drawn at random before the estimator has a say."""


class SearchConfig(KeyGroup):
    """What is under ``search:``; a file that has it is a sweep."""

    metric: Annotated[str, AfterValidator(known_metric)] = "episode_reward_mean"
    """What makes a trial better: its mean over the last tenth of the steps that all completed trials have."""

    mode: Literal["max", "min"] = "max"
    """Whether more of ``metric`` is better, or less."""

    searcher: Literal["grid", "random", "optuna"] | None = None
    """``grid``: every point. ``random``: points drawn at random. ``optuna``: each one chosen by what is known so far.

    Null: ``grid`` where there are no samplers, else ``random``.
    """

    scheduler: Literal["fifo", "asha", "median", "pbt"] = "fifo"
    """Whether trials end early: never, by ``asha``, by ``median``; or learn from each other, by ``pbt``."""

    num_samples: Count = 1
    """Configurations that are tried; with a grid beside samplers, at each of its points."""

    num_seeds: Count = 1
    """Trials of each configuration, with other seeds; it is ranked by what they say together."""

    rank_by: Literal["mean", "iqm"] = "mean"
    """What stands for the seeds of a configuration: their mean, or the mean of their middle half."""

    max_concurrent: Count | None = None
    """Trials that run at a time at most. Null: as many as the machine has room for."""

    time_budget_s: Positive | None = None
    """Seconds after which no trial begins and those that run end. Null: no limit."""

    hang_timeout_s: Positive = 300.0
    """Seconds without a result after which a trial is taken for hung and ended.

    An env that hangs in ``step`` would keep its place for ever. A process that starts, the longest iteration and
    its evaluation must fit.
    """

    asha: AshaConfig = AshaConfig()
    """Of ``scheduler: asha``."""

    median: MedianConfig = MedianConfig()
    """Of ``scheduler: median``."""

    pbt: PbtConfig = PbtConfig()
    """Of ``scheduler: pbt``."""

    optuna: OptunaConfig = OptunaConfig()
    """Of ``searcher: optuna``."""

    def conflicts(self) -> Iterator[Conflict]:
        """Yield searchers and schedulers that do not go together."""
        yield from super().conflicts()
        if self.searcher == "grid" and self.num_samples > 1:
            message = f"num_samples is {self.num_samples}, but searcher is grid, which tries every point once"
            yield Conflict(("num_samples",), message, "num_seeds repeats each point with other seeds")
        if self.scheduler == "pbt" and self.searcher == "optuna":
            hint = "leave searcher out: the first population is drawn at random"
            yield Conflict(("searcher",), "searcher is optuna, but pbt moves keys by itself", hint)
        if self.scheduler == "pbt" and self.num_seeds > 1:
            message = f"num_seeds is {self.num_seeds}, but with pbt each trial ends with keys of its own"
            yield Conflict(("num_seeds",), message, "num_samples is the size of the population")

    def interval(self, stop_at: float | None) -> float | None:
        """Return the first rung, grace period or perturbation interval, given what ``stop`` has for its time attribute.

        None where there is neither a number of its own nor one in ``stop``; 0 for ``fifo``.
        """
        if self.scheduler == "fifo":
            return 0.0
        given, share = {
            "asha": (self.asha.grace_period, self.asha.reduction_factor**-2),
            "median": (self.median.grace_period, 0.1),
            "pbt": (self.pbt.perturbation_interval, 0.1),
        }[self.scheduler]
        if given is not None:
            return given
        return None if stop_at is None else max(stop_at * share, 1.0)

    @property
    def time_attr(self) -> TimeAttribute:
        """What the scheduler counts time in."""
        known: dict[str, TimeAttribute] = {
            "asha": self.asha.time_attr,
            "median": self.median.time_attr,
            "pbt": self.pbt.time_attr,
        }
        return known.get(self.scheduler, "timesteps_total")
