"""The keys of agents whose workers and learner never wait for each other, without replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from rlexp.config.keys.common import Caution, CommonConfig, FactLine, keys_without_effect
from rlexp.config.keys.fields import (
    RLEXP_ONLY,
    Conflict,
    Count,
    CountOrZero,
    FragmentLength,
    PositiveOrZero,
)


class AsyncSamplesKeys(CommonConfig):
    """The keys of train batches that are made of fragments as they come."""

    WORKERS_USE_GPUS = False
    SAMPLES_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("info/weight_age", "info/policy_lag/mean", "info/policy_lag/p95", "info/policy_lag/max"),
        *("info/num_steps_dropped", "info/num_fragments_lost", "info/adam_step_share"),
        *("info/learner_queue_size", "info/learner_queue_capacity"),
    )
    """Metrics of the data path, for ``AGENT_COLUMNS``."""
    DISPLAYED = (
        *CommonConfig.DISPLAYED,
        FactLine(
            "data",
            (
                "learner queue {info/learner_queue_size:count}/{info/learner_queue_capacity:count}",
                "policy lag {info/policy_lag/mean:short}, at most {info/policy_lag/max:count}",
                "dropped {info/num_steps_dropped:count}",
            ),
        ),
    )

    sample_batch_size: FragmentLength
    timesteps_per_iteration: CountOrZero | None = 0
    min_iter_time_s: PositiveOrZero | None = 10.0

    train_batch_size: Count
    """Number of env steps in one update of the learner, at least: fragments are joined until they have so many."""

    num_sgd_iter: Count = 1
    """How often the learner trains on each train batch, each time on the whole of it."""

    minibatch_buffer_size: Count = 1
    """Number of train batches between which these passes alternate. Needs ``num_sgd_iter`` above 1."""

    learner_queue_size: Count = 16
    """Most train batches that wait for the learner. Workers are not asked for more while it is full."""

    max_sample_requests_in_flight_per_worker: Count = 2
    """Fragments that are asked for from each worker at a time. With 1, a worker waits for a message after each."""

    broadcast_interval: Count = 1
    """Updates between two versions of the weights that workers get, at least."""

    replay_proportion: PositiveOrZero = 0.0
    """Number of old fragments that are learned beside each new one, on average."""

    replay_buffer_num_slots: CountOrZero = 0
    """Number of newest fragments among which these are drawn. 0: no old ones."""

    max_policy_lag: Annotated[Count | None, RLEXP_ONLY] = None
    """Most updates by which the learner may be ahead of the policy whose steps it learns. Older steps are dropped, and
    counted in ``info/num_steps_dropped`` if they were never learned; workers wait before that happens. Null: no limit.
    """

    @property
    def num_slots(self) -> int:
        """Train batches whose passes alternate."""
        return self.minibatch_buffer_size if self.num_sgd_iter > 1 else 1

    def ineffective_keys(self) -> Iterator[tuple[str, str]]:
        yield from super().ineffective_keys()
        takes_turns = self.num_workers == 0 and "board" not in self.model_fields_set
        yield from keys_without_effect(
            (self.num_sgd_iter == 1, ("minibatch_buffer_size",), "num_sgd_iter is 1"),
            (self.replay_proportion == 0, ("replay_buffer_num_slots",), "replay_proportion is 0"),
            (self.replay_buffer_num_slots == 0, ("replay_proportion",), "replay_buffer_num_slots is 0"),
            (takes_turns, ("learner_queue_size",), "num_workers is 0, so samples and updates take turns"),
            (self.num_workers == 0, ("max_sample_requests_in_flight_per_worker",), "num_workers is 0"),
        )
        if self.learner_processes is not None:
            yield "learner_queue_size", "several learners learn each train batch as soon as it is complete"

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        limit = self.max_policy_lag
        if limit is not None and limit < self.broadcast_interval:
            message = f"max_policy_lag is {limit}, less than broadcast_interval, which is {self.broadcast_interval}"
            hint = f"write max_policy_lag: {self.broadcast_interval} or more; workers get new weights no sooner"
            yield Conflict(("max_policy_lag", "broadcast_interval"), message, hint)
        if limit is not None and self.batch_mode == "complete_episodes":
            given = f"max_policy_lag is given, but {self.stated('batch_mode')}"
            message = f"{given}; an episode has steps of several policies"
            yield Conflict(("max_policy_lag", "batch_mode"), message, "write batch_mode: truncate_episodes")

    def cautions(self) -> Iterator[Caution]:
        yield from super().cautions()
        if self.max_policy_lag is not None and self.max_policy_lag < (self.num_sgd_iter - 1) * self.num_slots:
            most = self.max_policy_lag // self.num_slots + 1
            passes = f"at most {most} of the {self.num_sgd_iter} passes (num_sgd_iter) over a train batch"
            yield Caution("max_policy_lag", f"is {self.max_policy_lag}, so the learner makes {passes}")
