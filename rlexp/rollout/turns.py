"""Turns: which of many workers is asked next."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import Actor

Worker = Actor[RolloutWorker]


class Turns:
    """Which worker is asked next: the one with the fewest calls in flight, then the one asked longest ago.

    A heap, so that a turn costs the logarithm of the number of workers.
    """

    def __init__(self, queue_depth: int) -> None:
        """No worker has more than ``queue_depth`` calls in flight."""
        self.num_in_flight = 0
        self._queue_depth = queue_depth
        self._turn = 0
        # Of each worker the calls in flight, the turn in which it was asked last, and a number that breaks ties.
        self._entries: dict[Worker, tuple[int, int, int]] = {}
        self._workers: dict[int, Worker] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._num_added = 0

    def add(self, worker: Worker) -> None:
        """Let a new worker take turns."""
        self._num_added += 1
        self._workers[self._num_added] = worker
        self._set(worker, (0, 0, self._num_added))

    def remove(self, worker: Worker) -> None:
        """Forget a worker, and its calls in flight."""
        entry = self._entries.pop(worker, None)
        if entry is not None:
            self.num_in_flight -= entry[0]
            del self._workers[entry[2]]

    def next(self) -> Worker | None:
        """Return the worker that is asked now, and count its call; None where every queue is full."""
        while self._heap:
            entry = heappop(self._heap)
            worker = self._workers.get(entry[2])
            if worker is None or self._entries[worker] != entry:
                continue  # an entry from before
            self._turn += 1
            self.num_in_flight += 1
            self._set(worker, (entry[0] + 1, self._turn, entry[2]))
            return worker
        return None

    def ended(self, worker: Worker) -> None:
        """Count a call of ``worker`` as no longer in flight."""
        in_flight, turn, number = self._entries[worker]
        self.num_in_flight -= 1
        self._set(worker, (in_flight - 1, turn, number))

    def in_flight(self, worker: Worker) -> int:
        """Return how many calls of ``worker`` are in flight."""
        return self._entries[worker][0]

    def _set(self, worker: Worker, entry: tuple[int, int, int]) -> None:
        self._entries[worker] = entry
        if entry[0] < self._queue_depth:
            heappush(self._heap, entry)
        if len(self._heap) > 4 * len(self._entries) + 64:  # mostly entries from before
            self._heap = [each for each in self._entries.values() if each[0] < self._queue_depth]
            heapify(self._heap)
