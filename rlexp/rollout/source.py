"""Where an optimizer's samples come from: the protocol of all sources, and workers in the optimizer's own thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.cluster.pool.pool import Ref, TaskPool
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import SentRows


@dataclass(frozen=True)
class Sample:
    """A batch of new transitions, by reference, and the worker's report about it."""

    batch: Ref[SentRows]
    info: SampleInfo


class SampleSource(Protocol):
    """Delivers batches of transitions and takes newer weights; owned by one thread."""

    @property
    def num_weight_syncs(self) -> int:
        """How often a worker was given newer weights."""
        ...

    @property
    def num_worker_restarts(self) -> int:
        """How often a worker was replaced that had died, hung or failed."""
        ...

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        """Return the batches that have arrived, and ask workers for more.

        ``num_steps_sampled`` (env steps of all workers) is what the workers' schedules go by. ``wanted`` is how many
        batches the caller still needs, those in flight and those that this poll returns included: so many calls
        are started that returned and in flight together are ``wanted``, and none where they are that many
        already. Calls are dealt evenly: a worker with fewer of them in flight is asked first, then the one that was
        asked longest ago. The calls of a worker that is lost are no longer in flight, so others are asked. None
        keeps every worker busy.
        """
        ...

    @property
    def num_in_flight(self) -> int:
        """Calls of workers that were started and that no poll has returned yet."""
        ...

    @property
    def has_waiting(self) -> bool:
        """Whether samples have come that no poll has taken: there is nothing to wait for."""
        ...

    def wait(self, timeout: float) -> bool:
        """Return once a sample may have come, or after ``timeout`` seconds.

        A source whose workers are in a task pool returns for any completed call of that pool, those of replay
        too. False, at once, where nothing is in progress.
        """
        ...

    def weights_wanted(self) -> bool:
        """Whether a worker has acted long enough with its weights to be given newer ones."""
        ...

    def publish(self, version: int, weights: Weights) -> None:
        """Offer weights; each worker gets them when it is due. Versions grow."""
        ...

    def set_filter(self, moments: Moments) -> None:
        """Let every worker standardise observations by ``moments``, from one of its next fragments on."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the next samples depend on but weights, as far as that can be read."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what the ``state`` of a source like this one returned; call it before the first ``poll``."""
        ...

    def drain_events(self) -> list[str]:
        """Return what happened to workers since the last call that a user should know, a sentence each."""
        ...

    def stop(self) -> None:
        """Stop the workers; idempotent."""
        ...


class LocalWorkers:
    """A SampleSource that samples when it is polled, each time with the newest weights: deterministic."""

    num_worker_restarts = 0
    num_in_flight = 0
    has_waiting = False

    def __init__(self, pool: TaskPool, workers: Sequence[RolloutWorker]) -> None:
        self.num_weight_syncs = 0
        self._pool = pool
        self._workers = tuple(workers)

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        """Let each worker sample once, or as many of them as are ``wanted``."""
        asked = self._workers if wanted is None else self._workers[: max(wanted, 0)]
        samples = [worker.sample(num_steps_sampled) for worker in asked]
        return [Sample(self._pool.keep(batch), info) for batch, info in samples]

    def wait(self, timeout: float) -> bool:
        return self._pool.wait(timeout)  # replay may be in other processes

    def weights_wanted(self) -> bool:
        return True

    def publish(self, version: int, weights: Weights) -> None:
        for worker in self._workers:
            worker.set_weights(version, weights)
        self.num_weight_syncs += len(self._workers)

    def set_filter(self, moments: Moments) -> None:
        for worker in self._workers:
            worker.set_filter(moments)

    def state(self) -> dict[str, Any]:
        return {
            "num_weight_syncs": self.num_weight_syncs,
            "workers": [worker.state() for worker in self._workers],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.num_weight_syncs = state["num_weight_syncs"]
        for worker, worker_state in zip(self._workers, state["workers"], strict=True):
            if worker_state is not None:
                worker.load(worker_state)

    def drain_events(self) -> list[str]:
        return []

    def stop(self) -> None:
        workers, self._workers = self._workers, ()
        for worker in workers:
            worker.stop()
