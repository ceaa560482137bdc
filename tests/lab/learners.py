"""Several learners in threads of one process, which share each train batch as those in processes do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from rlexp.agents.torch.learner_process import Shard
from rlexp.policy import LearnResult
from rlexp.sample_batch import SampleBatch

LATEST_S = 60.0
"""The longest wait of a learner for the others."""


class LearnersInThreads:
    """Learners that add up gradients in the order of their ranks."""

    def __init__(self, make: Callable[[str, Shard], Any], number: int = 2) -> None:
        self._addends: list[Tensor] = [Tensor()] * number
        self._barrier = threading.Barrier(number, timeout=LATEST_S)
        self.learners = [make("cpu", Shard(rank, number, self._add_up_of(rank))) for rank in range(number)]

    def learn_on_batch(self, batch: SampleBatch) -> LearnResult:
        """Let all learn on a train batch; return the first one's result."""
        with ThreadPoolExecutor(len(self.learners)) as threads:
            results = [threads.submit(learner.learn_on_batch, batch) for learner in self.learners]
        first: LearnResult
        first, *_ = [result.result() for result in results]
        return first

    def _add_up_of(self, rank: int) -> Callable[[Tensor], None]:
        def add_up(tensor: Tensor) -> None:
            self._addends[rank] = tensor.clone()
            self._barrier.wait()
            first, *others = self._addends
            tensor.copy_(sum(others, start=first))
            self._barrier.wait()

        return add_up
