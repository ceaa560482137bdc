"""One iteration of training: its end, its row of results, and the counters over all iterations.

``StallWatch`` ends training that gets no new samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.metrics import AGENT_REWARDS, OWN_METRICS
from rlexp.errors import TrialError
from rlexp.metrics import MetricWindows, RunningClock
from rlexp.optimizers.policy_optimizer import Counters, Figures, PolicyOptimizer
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime


@dataclass(frozen=True)
class IterationBounds:
    """Values of counters at which an iteration ends before its minimum."""

    values: Mapping[str, float] = field(default_factory=dict)
    """Values by the counters' names in a row. Of other columns, only the mean return can end an iteration."""

    @property
    def mean_return(self) -> float:
        """The mean return that ends an iteration which began below it; infinite if none does."""
        return self.values.get("episode_reward_mean", math.inf)

    def reached(self, counters: Mapping[str, float]) -> bool:
        """Return whether one of ``counters``, which count since the training began, has reached its value."""
        return any(metric in counters and counters[metric] >= value for metric, value in self.values.items())


UNBOUNDED = IterationBounds()


class Iteration:
    """Measures one iteration; begins when it is made."""

    def __init__(self, counters: Counters) -> None:
        """Begin; ``counters`` are the optimizer's own, which it changes while the iteration runs."""
        self._started_s = time.monotonic()
        self._counters = counters
        self._before = replace(counters)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._started_s

    @property
    def sampled(self) -> int:
        """Env steps sampled in it."""
        return self._counters.num_steps_sampled - self._before.num_steps_sampled

    @property
    def trained(self) -> int:
        """Rows trained on in it."""
        return self._counters.num_steps_trained - self._before.num_steps_trained

    @property
    def has_progress(self) -> bool:
        """Whether it has sampled or trained; without either, its row would repeat the previous one."""
        return self.sampled + self.trained > 0

    def has_minimum(self, config: CommonConfig) -> bool:
        """Return whether it has the env steps and seconds that ``config`` asks for, and has made progress."""
        steps, seconds = config.timesteps_per_iteration or 0, config.min_iter_time_s or 0.0
        return self.has_progress and self.sampled >= steps and self.elapsed_s >= seconds

    def progress(self, config: CommonConfig, bounds: IterationBounds) -> str:
        """Return how far it is, in words: its env steps and seconds with their minimums, and its speed until now."""
        elapsed_s, seconds = self.elapsed_s, config.min_iter_time_s or 0.0
        left = bounds.values.get("timesteps_total", math.inf) - self._before.num_steps_sampled
        goal = min(config.timesteps_per_iteration or 0, left)
        if not self.sampled:
            return f"no env step yet after {elapsed_s:.0f} s"
        parts = [f"{self.sampled:,}{f' of {goal:,.0f}' if self.sampled < goal else ''} env steps"]
        if self.sampled >= goal and elapsed_s < seconds:
            parts.append(f"{elapsed_s:.0f} of {seconds:g} s")
        parts.append(f"{self.sampled / elapsed_s:,.0f} sampled/s")
        if self.trained:
            parts.append(f"{self.trained / elapsed_s:,.0f} trained/s")
        return ", ".join(parts)


_LEARNING: Final = ("learner", "learning")
"""The parts of ``learner_time_share`` in which an optimizer learns."""


@dataclass(frozen=True)
class IterationReport:
    """Everything that the row of one iteration is computed from."""

    elapsed_s: float
    sampled: int
    trained: int
    counters: Counters
    num_workers: int
    infos: Sequence[SampleInfo]
    figures: Figures
    """Stats of the agent and its optimizer."""

    def row(self, progress: Progress) -> dict[str, Any]:
        """Return the iteration's row of results; ``progress`` already counts the iteration."""
        reported, all_episodes = progress.summaries()
        return {
            "training_iteration": progress.iteration,
            "timesteps_total": self.counters.num_steps_sampled,
            "timesteps_this_iter": self.sampled,
            "time_total_s": progress.time_total_s,
            "time_this_iter_s": self.elapsed_s,
            "episodes_total": progress.episodes_total,
            "episodes_this_iter": sum(len(info.episodes.returns) for info in self.infos),
            "episode_reward_mean": reported["returns_mean"],
            "episode_reward_min": reported["returns_min"],
            "episode_reward_max": reported["returns_max"],
            "episode_reward_mean_all": all_episodes["returns_mean"],
            "episode_len_mean": reported["lengths_mean"],
            "policy_reward_mean": {},  # by policy, as with several policies; there is one
            "policy_reward_min": {},
            "policy_reward_max": {},
            "info": self.info(),
            "timers": self.timers(),
            **progress.agent_rewards(),
            **progress.own_metrics(),
        }

    def info(self) -> dict[str, Any]:
        """Return all stats, under RLlib's names if it had them."""
        seconds = max(self.elapsed_s, 1e-9)
        worker_time_share = self._worker_time_share(seconds * self.num_workers)
        learner: Mapping[str, Any] = self.figures.get("learner", {})
        return {
            "num_steps_sampled": self.counters.num_steps_sampled,
            "num_steps_trained": self.counters.num_steps_trained,
            "sample_throughput": self.sampled / seconds,
            "train_throughput": self.trained / seconds,
            "trained_per_sampled": self.trained / self.sampled if self.sampled else 0.0,
            "worker_wait_share": worker_time_share["wait"],
            "worker_time_share": worker_time_share,
            **self.figures,
            **({"learner": {**learner, "cur_lr": learner["lr"]}} if "lr" in learner else {}),
        }

    def timers(self) -> dict[str, float]:
        """Return steps and rows per second of their own time, as in RLlib's group of this name."""
        share: Mapping[str, float] = self.figures.get("learner_time_share", {})
        busy = {
            "sample_throughput": (self.sampled, share.get("workers", 1.0)),
            "learn_throughput": (self.trained, sum(share.get(part, 0.0) for part in _LEARNING)),
        }
        return {name: count / max(part * self.elapsed_s, 1e-9) for name, (count, part) in busy.items() if part}

    def _worker_time_share(self, seconds: float) -> dict[str, float]:
        """Return the share of each activity in ``seconds``, the time of all workers together."""
        spent = SampleTime.sum(info.time for info in self.infos)
        return {
            "acting": spent.acting_s / seconds,
            "stepping": spent.stepping_s / seconds,
            "folding": spent.folding_s / seconds,
            "wait": max(1.0 - spent.total_s / seconds, 0.0),
        }


def agent_rewards(summary: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the group of a row with mean returns, from a summary of returns by agent; nothing without agents."""
    means = {name.removesuffix("_mean"): value for name, value in summary.items() if name.endswith("_mean")}
    return {AGENT_REWARDS: means} if means else {}


class Progress:
    """Counts totals and stores the newest episodes; part of every checkpoint. Owned by one agent."""

    def __init__(self, smoothing_episodes: int, own_metrics: Sequence[str] = ()) -> None:
        """Begin now; results average ``smoothing_episodes``. ``own_metrics`` are the names known beforehand."""
        self.iteration = 0
        self.episodes_total = 0
        self._all, self._reported = (MetricWindows(smoothing_episodes, ("returns", "lengths")) for _ in range(2))
        self._own_metrics = MetricWindows(smoothing_episodes, own_metrics)
        self._of_agents = MetricWindows(smoothing_episodes, ())
        self._started_s = time.monotonic()
        self._time_before_s = 0.0

    @property
    def time_total_s(self) -> float:
        """Seconds since the beginning, without the time between two processes."""
        return self._time_before_s + time.monotonic() - self._started_s

    def counters(self, optimizer: PolicyOptimizer, num_weight_syncs: int) -> dict[str, float]:
        """Return the counters known at every step of the optimizer, by their names in a row."""
        steps = optimizer.counters
        return {
            "timesteps_total": steps.num_steps_sampled,
            "time_total_s": self.time_total_s,
            "episodes_total": self.episodes_total,
            "info/num_steps_sampled": steps.num_steps_sampled,
            "info/num_steps_trained": steps.num_steps_trained,
            "info/num_updates": optimizer.num_updates,
            "info/num_weight_syncs": num_weight_syncs,
        }

    def add(self, episodes: Episodes) -> None:
        """Count episodes that ended."""
        reported = episodes.reported
        self.episodes_total += len(episodes.returns)
        self._all.extend({"returns": episodes.returns, "lengths": episodes.lengths})
        self._reported.extend({"returns": episodes.returns[reported], "lengths": episodes.lengths[reported]})
        self._own_metrics.extend(episodes.own_metrics)
        self._of_agents.extend(episodes.of_agents)

    @property
    def mean_return(self) -> float:
        """The mean return that a row would report now; minus infinity until it has as many episodes as it averages."""
        return self._reported.mean_if_full("returns")

    def summaries(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return mean, min and max of returns and lengths of the newest episodes: reported ones, and all."""
        return self._reported.summary(), self._all.summary()

    def agent_rewards(self) -> dict[str, dict[str, float]]:
        """Return the row's part with the mean return of each agent by its name; empty for envs of one agent."""
        return agent_rewards(self._of_agents.summary())

    def own_metrics(self) -> dict[str, dict[str, float]]:
        """Return the row's part with the metrics of the user's callbacks; empty if there are none."""
        summary = self._own_metrics.summary()
        return {OWN_METRICS: summary} if summary else {}

    def state(self) -> dict[str, Any]:
        """Return its whole state for JSON."""
        return {
            "iteration": self.iteration,
            "time_total_s": self.time_total_s,
            "episodes_total": self.episodes_total,
            "episodes": {"reported": self._reported.state(), "everybody": self._all.state()},
            "own_metrics": self._own_metrics.state(),
            "of_agents": self._of_agents.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned; older checkpoints have no ``episodes``."""
        self.iteration, self.episodes_total = state["iteration"], state["episodes_total"]
        self._time_before_s = state["time_total_s"]
        if "episodes" in state:
            self._reported.load(state["episodes"]["reported"])
            self._all.load(state["episodes"]["everybody"])
        self._own_metrics.load(state.get("own_metrics", {}))
        self._of_agents.load(state.get("of_agents", {}))


class ReturnGoal:
    """Says whether the mean return has come from below to the one that ends an iteration; begins with the iteration.

    So a goal that is passed amid a long iteration is not lost. If an evaluation does not confirm it, the next
    iterations have their usual length.
    """

    def __init__(self, progress: Progress, bounds: IterationBounds) -> None:
        self._progress = progress
        self._goal = bounds.mean_return if progress.mean_return < bounds.mean_return else math.inf
        self._num_episodes = progress.episodes_total

    def is_reached(self) -> bool:
        """Return whether it is; computed only if episodes have ended since the last call."""
        if math.isinf(self._goal) or self._progress.episodes_total == self._num_episodes:
            return False
        self._num_episodes = self._progress.episodes_total
        return self._progress.mean_return >= self._goal


STALL_TIMEOUT_S: Final = 600.0
"""Seconds without a new sample after which training is given up, as every worker hangs."""


class StallWatch:
    """Raises TrialError if training gets no samples. Owned by one agent, which passes it each step's samples."""

    def __init__(self, *, is_patient: bool) -> None:
        """Initialise. With ``is_patient``, actors may join at any time, so training is never given up."""
        self._is_patient = is_patient
        self._clock = RunningClock()
        self._last_sample_s = math.inf

    def begin(self) -> None:
        """Start the time of an iteration."""
        self._last_sample_s = self._clock()

    def look(self, infos: Sequence[SampleInfo]) -> None:
        """Check the samples of a step; TrialError if there were none for STALL_TIMEOUT_S."""
        now = self._clock()
        if infos:
            self._last_sample_s = now
        elif now - self._last_sample_s > STALL_TIMEOUT_S and not self._is_patient:
            raise TrialError(
                f"no worker delivered a sample for {STALL_TIMEOUT_S:.0f} s",
                "the env hangs in reset or step, or sample_batch_size is far too large for it",
            )
