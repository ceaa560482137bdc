"""The protocol of an optimizer's sources of samples, and workers in the optimizer's own thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.cluster.pool.pool import Ref, TaskPool
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import SamplingWorker
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
        """Number of times that a worker was given newer weights."""

    @property
    def num_worker_restarts(self) -> int:
        """Number of replacements of workers that died, hung or failed."""

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        """Return the batches that have arrived, and ask workers for more.

        ``num_steps_sampled`` (env steps of all workers) is the clock of the workers' schedules. ``wanted`` is the
        number of batches that the caller still needs. Calls are started until the returned batches and the calls in
        flight are ``wanted`` together; None keeps every worker busy. The worker with the fewest calls in flight is
        asked first, then the one asked longest ago. Calls of a lost worker are not in flight any more, so other workers
        are asked.
        """

    @property
    def num_in_flight(self) -> int:
        """Number of started calls that no poll has returned yet."""

    @property
    def has_waiting(self) -> bool:
        """Whether samples have arrived that no poll has returned, so that nothing needs to be waited for."""

    def wait(self, timeout: float) -> bool:
        """Return once a sample may have come, or after ``timeout`` seconds.

        A source with workers in a task pool returns for any completed call of that pool, with calls of replay. Returns
        False at once if no call is in progress.
        """

    def weights_wanted(self) -> bool:
        """Whether a worker has sampled long enough with its weights to be given newer ones."""

    def publish(self, version: int, weights: Weights) -> None:
        """Offer weights; each worker gets them when it is due. Versions must grow."""

    def set_filter(self, moments: Moments) -> None:
        """Let every worker standardise observations by ``moments``, within its next fragments."""

    def state(self) -> dict[str, Any]:
        """Return everything except weights on which the next samples depend, as far as it can be read."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from the ``state`` of a source like this one; call it before the first ``poll``."""

    def drain_events(self) -> list[str]:
        """Return the workers' events since the last call that a user should know, a sentence each."""

    def stop(self) -> None:
        """Stop the workers; idempotent."""


class LocalWorkers:
    """A SampleSource that samples when it is polled, each time with the newest weights: deterministic."""

    num_worker_restarts = 0
    num_in_flight = 0
    has_waiting = False

    def __init__(self, pool: TaskPool, workers: Sequence[SamplingWorker]) -> None:
        self.num_weight_syncs = 0
        self._pool = pool
        self._workers = tuple(workers)

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        """Let each worker sample once, or only ``wanted`` of them."""
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
