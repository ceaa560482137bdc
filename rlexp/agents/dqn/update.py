"""What a DQN learner reports about an update, once its figures are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from rlexp.errors import TrialError
from rlexp.policy import LearnResult
from rlexp.sample_batch import Array


class FigureReader(Protocol):
    """The figures of an update, and its TD errors."""

    def read(self) -> Sequence[Array]:
        """Wait for loss, mean action value, mean TD error and gradient norm ``[4]``, and TD errors ``[B]``."""
        ...


class ReadyFigures:
    """A FigureReader of what NumPy computed."""

    def __init__(self, figures: Array, td_errors: Array) -> None:
        self._arrays = figures, td_errors

    def read(self) -> Sequence[Array]:
        return self._arrays


class DQNUpdate:
    """A PendingUpdate of a DQNLearner: its figures and TD errors, on their way from the device."""

    def __init__(self, number: int, lr: float, reader: FigureReader) -> None:
        """Take what update ``number`` reports."""
        self._number = number
        self._lr = lr
        self._reader = reader

    def result(self) -> LearnResult:
        figures, td_errors = self._reader.read()
        loss, mean_q, mean_td_error, grad_norm = figures.tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise TrialError(
                f"the loss is {loss:g} and its gradient {grad_norm:g} at update {self._number:,}",
                "training diverged: lower lr, set grad_norm_clipping or clip_rewards",
            )
        stats = {"loss": loss, "mean_q": mean_q, "mean_td_error": mean_td_error, "grad_norm": grad_norm, "lr": self._lr}
        return LearnResult(stats, td_errors)
