"""The ``search`` section: what a sweep optimises, how it chooses configurations and which of them it stops early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from rlexp.config.keys.fields import RULE, Conflict, Count, CountOrZero, KeyGroup, Positive, Whole, defaults_of
from rlexp.config.keys.metric_names import is_known
from rlexp.config.keys.optuna import OptunaConfig
from rlexp.config.keys.trial_schedulers import (
    AshaConfig,
    HyperbandConfig,
    MedianConfig,
    PbtConfig,
    SchedulerConfig,
    TimeAttribute,
)


def known_metric(metric: str) -> str:
    """Return a metric if results report it."""
    if not is_known(metric):
        raise PydanticCustomError(RULE, "is not a metric of the results")
    return metric


class ConfirmConfig(KeyGroup):
    """The best configurations are trained again, with seeds that the search did not use: a good score may be luck."""

    top: CountOrZero = 0
    """Number of the best completed configurations that are confirmed. 0: none."""

    num_seeds: Annotated[Whole, Field(ge=2)] = 5
    """Number of trials of each, to the ``stop``. ``best.yaml`` is then the configuration whose 95 % interval over
    these has the highest lower end (``mode: min``: the lowest upper end)."""


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
