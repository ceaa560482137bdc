"""StallWatch: notices training that gets no new sample any more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rlexp.errors import TrialError
from rlexp.metrics.timers import RunningClock
from rlexp.rollout.fragment import SampleInfo

STALL_TIMEOUT_S: Final = 600.0
"""Training that gets no new sample for so long is given up: every worker hangs."""


class StallWatch:
    """Owned by one agent, which shows it what each step of its optimizer has brought."""

    def __init__(self, *, is_patient: bool) -> None:
        """``is_patient``: actors may join at any time, so nothing is given up."""
        self._is_patient = is_patient
        self._clock = RunningClock()
        self._last_sample_s = math.inf

    def begin(self) -> None:
        """Count from now on: an iteration begins."""
        self._last_sample_s = self._clock()

    def look(self, infos: Sequence[SampleInfo]) -> None:
        """Take note of the samples that have come; raises TrialError where none has for STALL_TIMEOUT_S."""
        now = self._clock()
        if infos:
            self._last_sample_s = now
        elif now - self._last_sample_s > STALL_TIMEOUT_S and not self._is_patient:
            raise TrialError(
                f"no worker delivered a sample for {STALL_TIMEOUT_S:.0f} s",
                "the env hangs in reset or step, or sample_batch_size is far too large for it",
            )
