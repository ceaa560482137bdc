"""WeightSyncs: which of the workers that are sent weights are due for newer ones."""

from __future__ import annotations

from rlexp.rollout.worker import RolloutWorker
from rlexp.task_pool import Actor

Worker = Actor[RolloutWorker]


class WeightSyncs:
    """Which workers are due for newer weights: those that have sampled long enough with theirs."""

    def __init__(self, max_delay: int) -> None:
        """A worker is due once it has sampled ``max_delay`` env steps since its last weights."""
        self._max_delay = max_delay
        self._steps: dict[Worker, int] = {}
        self._version_of: dict[Worker, int] = {}
        self._due: dict[Worker, None] = {}
        # Those that may be sent the newest weights: looked at once for each version, not at each step.
        self._candidates: dict[Worker, None] = {}
        self._reading: set[Worker] = set()

    @property
    def has_due(self) -> bool:
        """Whether a worker has sampled for long enough."""
        return bool(self._due)

    def __contains__(self, worker: object) -> bool:
        return worker in self._steps

    def add(self, worker: Worker) -> None:
        """Count what a worker without weights samples from now on."""
        self._candidates[worker] = None
        self._restart(worker)

    def remove(self, worker: Worker) -> None:
        """Forget a worker."""
        self._steps.pop(worker, None)
        self._version_of.pop(worker, None)
        self._due.pop(worker, None)
        self._candidates.pop(worker, None)
        self._reading.discard(worker)

    def reads(self, worker: Worker) -> None:
        """Learn that ``worker`` reads weights from shared memory when it is due: it is sent none from now on."""
        if worker not in self._reading:
            self._reading.add(worker)
            self._due.pop(worker, None)
            self._candidates.pop(worker, None)

    def sampled(self, worker: Worker, num_env_steps: int) -> None:
        """Count env steps that ``worker`` has sampled."""
        self._steps[worker] += num_env_steps
        if self._steps[worker] >= self._max_delay:
            self._due[worker] = self._candidates[worker] = None

    def published(self) -> None:
        """Learn that there are newer weights."""
        self._candidates |= self._due

    def lost(self, worker: Worker) -> None:
        """Learn that weights did not reach ``worker``: it is sent some again."""
        self._version_of.pop(worker, None)
        if worker not in self._reading:
            self._candidates[worker] = None

    def take(self, version: int) -> list[Worker]:
        """Return the workers to which weights of ``version`` are sent now, as if they had them."""
        candidates, self._candidates = self._candidates, {}
        taken = [worker for worker in candidates if self._version_of.get(worker, version - 1) < version]
        for worker in taken:
            self._version_of[worker] = version
            self._restart(worker)
        return taken

    def _restart(self, worker: Worker) -> None:
        self._steps[worker] = 0
        if self._max_delay > 0:
            self._due.pop(worker, None)
        else:
            self._due[worker] = None
