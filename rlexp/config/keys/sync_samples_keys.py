"""The keys of agents that learn from samples of their newest weights: a train batch, and epochs over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rlexp.config.keys.common import CommonConfig, FactLine
from rlexp.config.keys.fields import Conflict, Count, CountOrZero, FragmentLength, PositiveOrZero


class SyncSamplesKeys(CommonConfig):
    """The keys of a train batch."""

    WORKERS_USE_GPUS = False
    JOINABLE_INSTEAD: ClassVar[str] = "APPO"
    """An agent of the same kind that actors can join over a board."""
    DISPLAYED = (
        *CommonConfig.DISPLAYED,
        FactLine(
            "time",
            (
                "sampling {info/learner_time_share/workers:percent}",
                "learning {info/learner_time_share/learner:percent}",
                "weight age {info/weight_age:count}",
            ),
        ),
    )

    sample_batch_size: FragmentLength
    timesteps_per_iteration: CountOrZero | None = 0
    min_iter_time_s: PositiveOrZero | None = 0.0

    sample_async: bool = False
    """Sample the next train batch while the learner trains on the last one. The weights that sample it are then one
    train batch old. Has no effect with ``num_workers: 0``."""

    train_batch_size: Count
    """Number of env steps that workers sample, with the same weights, for each update of the policy. They send whole
    fragments, so a batch may have more."""

    @property
    def workers_sample_ahead(self) -> bool:
        """False: workers wait for new weights after each train batch; ``sample_async`` is about whole batches."""
        return False

    @property
    def board_obstacle(self) -> str | None:
        """Why actors cannot join, and the agent to use instead."""
        return f"{super().board_obstacle}; use {self.JOINABLE_INSTEAD}, which can be joined"

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        if self.num_workers == 0:
            yield "sample_async", "num_workers is 0, so nothing samples beside the learner"


class EpochKeys(SyncSamplesKeys):
    """The keys of epochs over a train batch, in minibatches."""

    sgd_minibatch_size: Count
    """Number of transitions in one step of SGD, for all learners together. An epoch divides a train batch into parts of
    about this size."""

    num_sgd_iter: Count
    """Number of epochs: how often SGD uses each transition of a train batch, each time in a new order."""

    @property
    def whole_minibatch(self) -> int:
        """``sgd_minibatch_size`` of all workers together."""
        return self.sgd_minibatch_size

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.sgd_minibatch_size > self.train_batch_size:
            stated = self.stated("sgd_minibatch_size")
            message = f"{stated}, more than train_batch_size, which is {self.train_batch_size}"
            hint = "lower sgd_minibatch_size or raise train_batch_size"
            yield Conflict(("sgd_minibatch_size", "train_batch_size"), message, hint)
