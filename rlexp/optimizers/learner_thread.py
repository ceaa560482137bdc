"""Stage 4 of the data path: a thread that learns on queued batches, so that no SGD step waits for a message.

A GPU computes beside the thread, so it begins updates whose results it reads later, as ``PendingUpdates``.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from rlexp.policy import Learner, LearnResult, PendingUpdate, PipelinedLearner, Weights
from rlexp.sample_batch import SampleBatch

IDLE_WAIT_S = 0.1
"""Seconds that the thread waits for a batch before it checks whether to stop."""


LEARNER_PARTS = ("wait", "learning", "copying_weights")
"""The parts of the thread's time."""


BUSY_WAIT_SHARE = 0.2
"""A learner is busy if it waits for data during less than this share of the time."""


STOP_TIMEOUT_S = 60.0
"""Most seconds to wait for the update in progress when the thread is stopped."""


OriginT = TypeVar("OriginT")
"""The origin of a batch, to which its results go; a runner only returns it."""


class LearnerOutput(NamedTuple, Generic[OriginT]):
    """A learned batch and the report of its update."""

    origin: OriginT
    num_rows: int
    result: LearnResult


@dataclass(frozen=True)
class WeightsSnapshot:
    """The weights after ``version`` updates."""

    version: int
    weights: Weights


class LearnerRunner(ABC, Generic[OriginT]):
    """Owns a learner and learns on batches: in a thread of its own, or in the optimizer's.

    Nobody else calls the learner, except in the body of ``paused``.
    """

    learns_in_step: ClassVar[bool]
    """Whether it learns in the optimizer's thread, within the step that queues a batch."""

    def __init__(self, learner: Learner, queue_capacity: int, copy_interval: int | None = None) -> None:
        """Let ``queue_capacity`` batches wait, at most.

        Weights are copied every ``copy_interval`` updates too, without a request. A request that comes after the last
        update would wait for the next one, which may never come if workers are held until they get newer weights.
        """
        self._learner = learner
        self._copy_interval = copy_interval
        self.queue_capacity = queue_capacity
        self.last_stats: Mapping[str, float] = {}
        """The learner's own stats, from its last update."""
        self.time_s = dict.fromkeys(LEARNER_PARTS, 0.0)
        """Seconds so far, by LEARNER_PARTS."""
        self._snapshot = self._copied_weights()

    @property
    def num_updates(self) -> int:
        """Number of finished updates, or one fewer."""
        return self._learner.num_updates

    def observe_progress(self, num_steps_sampled: int) -> None:
        """Set the clock of the learner's schedules."""
        self._learner.observe_progress(num_steps_sampled)

    def stats(self) -> dict[str, Any]:
        """Return the learner's counters and the queue's state for the results; ``learner`` has its own stats."""
        return {
            "num_updates": self.num_updates,
            **self._learner.stats(),
            "learner_queue_size": self.queue_size,
            "learner_queue_capacity": self.queue_capacity,
            "learner": dict(self.last_stats),
        }

    def latest_weights(self) -> WeightsSnapshot:
        """Return the newest snapshot."""
        return self._snapshot

    def _copied_weights(self) -> WeightsSnapshot:
        return WeightsSnapshot(self._learner.num_updates, self._learner.get_weights())

    @property
    def _is_copy_due(self) -> bool:
        """Whether weights are to be copied without a request."""
        return self._copy_interval is not None and self.num_updates - self._snapshot.version >= self._copy_interval

    @abstractmethod
    def start(self) -> None:
        """Begin to learn."""

    @abstractmethod
    def put(self, origin: OriginT, batch: SampleBatch) -> None:
        """Queue a batch from ``origin``; the caller keeps within ``queue_capacity``."""

    @property
    @abstractmethod
    def queue_size(self) -> int:
        """Number of batches that wait."""

    @property
    @abstractmethod
    def queue_time_s(self) -> float:
        """Seconds of queued learning, if each batch takes as long as the last one."""

    @abstractmethod
    def wait_for_output(self, timeout: float) -> None:
        """Return when an update ended whose output was not taken yet, or after ``timeout`` seconds."""

    @abstractmethod
    def outputs(self) -> list[LearnerOutput[OriginT]]:
        """Return the outputs of the updates since the last call, in order; raise the error that ended learning."""

    @abstractmethod
    def request_weights(self) -> None:
        """Ask for a snapshot after the next update."""

    @abstractmethod
    def paused(self) -> AbstractContextManager[Learner]:
        """Hold the learner between two updates for the ``with`` body, which may read it, and may pause it again.

        Raises TimeoutError if the update in progress does not end.
        """

    @abstractmethod
    def stop(self) -> None:
        """End after the update in progress; idempotent."""


class LearnerTime:
    """Turns the seconds of a runner into shares of the time since the last call; owned by one optimizer."""

    def __init__(self, runner: LearnerRunner[Any]) -> None:
        self._runner = runner
        self._seen_s = dict.fromkeys(LEARNER_PARTS, 0.0)

    def shares(self, elapsed_s: float) -> dict[str, float]:
        """Return the share of each of LEARNER_PARTS in the ``elapsed_s`` seconds since the last call."""
        now_s = dict(self._runner.time_s)
        seen_s, self._seen_s = self._seen_s, now_s
        return {part: min((now_s[part] - seen_s[part]) / max(elapsed_s, 1e-9), 1.0) for part in now_s}


class LearnerThread(LearnerRunner[OriginT]):
    """A LearnerRunner with a thread, which owns the learner from ``start`` to ``stop``.

    Batches wait in a bounded in-queue; TD errors come back through an out-queue. Requested weights are copied on this
    thread, between two updates: nobody reads a network during an update, and no update waits for a reader. Updates
    whose results a PipelinedLearner has not delivered yet are neither waiting nor reported; before a pause and at the
    end all results are read.
    """

    learns_in_step = False

    def __init__(self, learner: Learner, queue_capacity: int, copy_interval: int | None = None) -> None:
        """Let ``queue_capacity`` batches wait; they hide the latency of replay calls."""
        super().__init__(learner, queue_capacity, copy_interval)
        self._pending: PendingUpdates[OriginT] = PendingUpdates(learner)
        self._last_update_s = 0.0
        self._in_queue: queue.Queue[tuple[OriginT, SampleBatch]] = queue.Queue()
        self._out_queue: queue.SimpleQueue[LearnerOutput[OriginT]] = queue.SimpleQueue()
        self._has_output = threading.Event()
        self._weights_requested = threading.Event()
        self._stopping = threading.Event()
        self._turnstile = threading.Condition()
        self._num_pauses = 0
        self._parked = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, origin: OriginT, batch: SampleBatch) -> None:
        self._in_queue.put((origin, batch))

    @property
    def queue_size(self) -> int:
        return self._in_queue.qsize()

    @property
    def queue_time_s(self) -> float:
        return self.queue_size * self._last_update_s

    def wait_for_output(self, timeout: float) -> None:
        self._has_output.wait(timeout)

    def outputs(self) -> list[LearnerOutput[OriginT]]:
        if self._error is not None:
            raise self._error
        self._has_output.clear()
        done = []
        while not self._out_queue.empty():
            done.append(self._out_queue.get())
        return done

    def request_weights(self) -> None:
        self._weights_requested.set()

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        try:
            with self._turnstile:
                self._num_pauses += 1
                if not self._turnstile.wait_for(lambda: self._parked or not self._thread.is_alive(), STOP_TIMEOUT_S):
                    raise TimeoutError(f"an update of the learner has not ended within {STOP_TIMEOUT_S:.0f} s")
            yield self._learner
        finally:
            with self._turnstile:
                self._num_pauses -= 1
                self._turnstile.notify_all()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._park_when_paused()
                self._learn_once()
            self._report(self._pending.collect())
        except BaseException as error:  # handed to the owner's thread by outputs()
            self._error = error
            self._has_output.set()
        finally:
            with self._turnstile:
                self._parked = True
                self._turnstile.notify_all()

    def _park_when_paused(self) -> None:
        with self._turnstile:
            if self._num_pauses:
                self._report(self._pending.collect())
                self._parked = True
                self._turnstile.notify_all()
                self._turnstile.wait_for(lambda: not self._num_pauses)
                self._parked = False

    def _learn_once(self) -> None:
        waited_from = time.perf_counter()
        try:
            origin, batch = self._in_queue.get(timeout=0.0 if self._pending else IDLE_WAIT_S)
        except queue.Empty:
            self._read_oldest_result()
            return
        finally:
            learned_from = time.perf_counter()
            self.time_s["wait"] += learned_from - waited_from
        learned = self._pending.learn(origin, batch)
        self._last_update_s = time.perf_counter() - learned_from
        self.time_s["learning"] += self._last_update_s
        self._report(learned)
        self._copy_weights_if_due()

    def _read_oldest_result(self) -> None:
        """Wait for one update, if any is pending. A batch may arrive meanwhile, and the next wait hides its update."""
        if self._pending:
            read_from = time.perf_counter()
            self._report(self._pending.collect(len(self._pending) - 1))
            self.time_s["learning"] += time.perf_counter() - read_from

    def _report(self, learned: Iterable[LearnerOutput[OriginT]]) -> None:
        for output in learned:
            self.last_stats = output.result.stats
            self._out_queue.put(output)
            self._has_output.set()

    def _copy_weights_if_due(self) -> None:
        if self._is_copy_due or self._weights_requested.is_set():
            copied_from = time.perf_counter()
            self._weights_requested.clear()
            self._snapshot = self._copied_weights()
            self.time_s["copying_weights"] += time.perf_counter() - copied_from


class PendingUpdates(Generic[OriginT]):
    """Owns the results that are not read yet, oldest first; a LearnerThread calls it, in its thread.

    With ``max_pending_updates`` n, the result of an update is read after n later ones have begun, or when no batch
    waits. Any other learner does one update after another, as with n = 0.
    """

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._pipelined: PipelinedLearner | None = None
        if isinstance(learner, PipelinedLearner) and learner.max_pending_updates:
            self._pipelined = learner
        self._pending: deque[tuple[OriginT, int, PendingUpdate]] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def learn(self, origin: OriginT, batch: SampleBatch) -> list[LearnerOutput[OriginT]]:
        """Begin an update; return the batches whose results are due now, at most one."""
        if self._pipelined is None:
            return [LearnerOutput(origin, batch.count, self._learner.learn_on_batch(batch))]
        self._pending.append((origin, batch.count, self._pipelined.submit(batch)))
        return self.collect(self._pipelined.max_pending_updates)

    def collect(self, left: int = 0) -> list[LearnerOutput[OriginT]]:
        """Wait for the oldest updates until ``left`` are pending; return their batches in order."""
        learned = []
        while len(self._pending) > left:
            origin, num_rows, update = self._pending.popleft()
            learned.append(LearnerOutput(origin, num_rows, update.result()))
        return learned
