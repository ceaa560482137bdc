"""Training intensity: which side of the data path must wait, so that trained / sampled steps stays where it should."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Pacing:
    """Compares what was sampled with what was trained since the learner began; owned by one optimizer.

    Each side runs until it is a batch ahead of the other, so they can never wait for each other.
    """

    def __init__(self, intensity: float | None, batch_rows: int) -> None:
        """``intensity`` is trained per sampled steps, None for free running; ``batch_rows`` the rows of an update."""
        self._intensity = intensity
        self._batch_rows = batch_rows
        self._origin: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """Whether there is an intensity to hold, and the learner has begun."""
        return self._intensity is not None and self._origin is not None

    def begin(self, num_steps_sampled: int, num_steps_trained: int) -> None:
        """Start to compare here, unless that was done: the learner has its first batch."""
        if self._origin is None:
            self._origin = (num_steps_sampled, num_steps_trained)

    def owed(self, num_steps_sampled: int, num_steps_trained: int) -> float:
        """Return the batches that training is behind sampling; negative where it is ahead, 0 while nothing is held."""
        if self._intensity is None or self._origin is None:
            return 0.0
        sampled, trained = num_steps_sampled - self._origin[0], num_steps_trained - self._origin[1]
        return (self._intensity * sampled - trained) / self._batch_rows

    def state(self) -> dict[str, Any]:
        """Return since when it compares."""
        return {"origin": self._origin}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        origin = state["origin"]
        self._origin = None if origin is None else (origin[0], origin[1])

    def may_train(self, num_steps_sampled: int, num_steps_trained: int, batches_on_their_way: int) -> bool:
        """Whether another batch may be asked for."""
        return not self.holds or self.owed(num_steps_sampled, num_steps_trained) - batches_on_their_way > -1.0

    def may_sample(self, num_steps_sampled: int, num_steps_trained: int) -> bool:
        """Whether more may be sampled."""
        return self.owed(num_steps_sampled, num_steps_trained) < 1.0
