"""One iteration of training: what it has done so far, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rlexp.config.keys.common import CommonConfig
from rlexp.optimizers.policy_optimizer import Counters


@dataclass(frozen=True)
class IterationBounds:
    """Values of counters at which an iteration ends, although it is shorter than its minimum."""

    values: Mapping[str, float] = field(default_factory=dict)
    """By the names that the counters have in a row. Others, such as rewards, do not end an iteration."""

    def reached(self, counters: Mapping[str, float]) -> bool:
        """Return whether one of ``counters``, which count since the training began, has reached its value."""
        return any(metric in counters and counters[metric] >= value for metric, value in self.values.items())


UNBOUNDED = IterationBounds()


class Iteration:
    """Measures one iteration; begins when it is made."""

    def __init__(self, counters: Counters) -> None:
        """``counters`` are the optimizer's own, which it changes while the iteration runs."""
        self._started_s = time.monotonic()
        self._counters = counters
        self._before = replace(counters)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started_s

    @property
    def sampled(self) -> int:
        """Env steps that it has sampled."""
        return self._counters.num_steps_sampled - self._before.num_steps_sampled

    @property
    def trained(self) -> int:
        """Rows that it has trained on."""
        return self._counters.num_steps_trained - self._before.num_steps_trained

    @property
    def has_progress(self) -> bool:
        """Whether it has sampled or trained something: without that, its row would be that of the iteration before."""
        return self.sampled + self.trained > 0

    def has_minimum(self, config: CommonConfig) -> bool:
        """Return whether it has the env steps and seconds that ``config`` asks for, and has done something."""
        steps, seconds = config.timesteps_per_iteration or 0, config.min_iter_time_s or 0.0
        return self.has_progress and self.sampled >= steps and self.elapsed_s >= seconds
