"""The ends of iterations and trials, the fields of rows beside metrics, and evaluations of checkpoints.

A training reward is from exploring policies, with weights of many versions, over the last episodes. A user keeps one
version that acts greedily, which may be far better or worse. So a trial does not end at a reward that its weights do
not reach, and an evaluated checkpoint is ranked by its evaluation.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from rlexp.agents.iteration import IterationBounds
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.metrics import EVALUATION_METRICS, GROWING_METRICS, is_own_metric
from rlexp.config.keys.search import TimeAttribute
from rlexp.errors import RlexpError
from rlexp.runs.rows import flatten
from rlexp.search.trial_scheduler import Milestones
from rlexp.text import exact, score

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent
    from rlexp.rollout.evaluation import ReportProgress, ShouldStop

STEPS_OF_AN_ENV: Final = 5000
"""Steps without the end of an episode after which a note says so; the episodes of most envs are shorter."""


def row_notes(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return sentences about ``row``, each once in a trial; ``before`` is its last row, empty if there is none."""
    return [*_unreported_metrics(experiment, row, before), *_endless_episodes(experiment, row, before)]


def _unreported_metrics(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each own metric that ``row`` lacks, the first one with episodes; none for other rows.

    Most likely a name is misspelt. It is not an error, as a metric may come later.
    """
    if not row["episodes_total"] or before.get("episodes_total"):
        return []
    values = flatten(row)
    has_evaluation = EVALUATION_METRICS[0] in values
    missing = (
        (key, metric)
        for key, metric in _named(experiment)
        if is_own_metric(metric) and metric not in values and (has_evaluation or not metric.startswith("evaluation/"))
    )
    return [_sentence(key, metric, [name for name in values if is_own_metric(name)]) for key, metric in missing]


def _named(experiment: Experiment) -> Iterator[tuple[str, str]]:
    yield from (("stop", metric) for metric in experiment.stop)
    yield "checkpoint_score_attr", experiment.checkpoint_score_attr.removeprefix("min-")
    yield "search.metric", experiment.search.metric


def _sentence(key: str, metric: str, reported: list[str]) -> str:
    close = get_close_matches(metric, reported, n=1)
    remedy = f"is {close[0]} meant?" if close else f"they report {', '.join(reported) or 'none'}"
    what = f"{key} names {metric}, which the callbacks have not reported in the first iteration with episodes"
    return f"{what}; {remedy}"


def _endless_episodes(experiment: Experiment, row: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
    """Return a sentence, once: in the first row after many steps without the end of an episode, or in the last one."""
    config = experiment.config
    if row["episodes_total"] or config.horizon is not None:
        return []
    num_steps = STEPS_OF_AN_ENV * max(config.num_workers, 1) * config.num_envs_per_worker
    steps = row["timesteps_total"]
    is_first = before.get("timesteps_total", 0) < num_steps <= steps
    if not is_first and not (row["done"] and steps < num_steps):
        return []
    return [
        f"no episode has ended in {steps:,} env steps, so there is no episode_reward_mean; "
        "if none ends by itself, config.horizon cuts episodes"
    ]


_EXPERIMENT_ID: Final = re.compile("[0-9a-f]{32}")


class RowOrigin:
    """Knows the process that makes a trial's rows, and the row of the checkpoint from which it began."""

    def __init__(self, trial_name: str, restored: Mapping[str, Any] | None) -> None:
        """Begin from the checkpoint with the row ``restored``; its experiment_id is kept if it is the trial's own."""
        self._restored = restored or {}
        from ray.util import get_node_ip_address

        is_own = self._restored.get("trial_name") == trial_name
        known = str(self._restored.get("experiment_id")) if is_own else ""
        self._process = {
            "trial_name": trial_name,
            "experiment_id": known if _EXPERIMENT_ID.fullmatch(known) else uuid4().hex,
            "hostname": socket.gethostname(),
            "node_ip": get_node_ip_address(),  # type: ignore[no-untyped-call]
            "pid": os.getpid(),
        }

    def facts(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a row that is made now."""
        now = datetime.now().astimezone()
        return {
            "date": now.isoformat(timespec="seconds"),
            "timestamp": int(now.timestamp()),
            **self._process,
            "time_since_restore": row["time_total_s"] - self._restored.get("time_total_s", 0.0),
            "timesteps_since_restore": row["timesteps_total"] - self._restored.get("timesteps_total", 0),
            "iterations_since_restore": row["training_iteration"] - self._restored.get("training_iteration", 0),
        }


PLAYED: Final = ("episode_reward_mean", "episode_reward_min", "episode_reward_max", "episode_reward_mean_all")
"""Metrics of training episodes, which weights of many versions have played; an evaluation must confirm them."""


@dataclass(frozen=True)
class Reached:
    """A value of ``stop`` that a row has reached."""

    metric: str
    value: float
    goal: float

    @property
    def needs_evaluation(self) -> bool:
        """Whether it is a training reward."""
        return self.metric in PLAYED

    def __str__(self) -> str:
        """Return it as a sentence."""
        # A counter ends a little beyond its goal, which is of no interest.
        shown = "" if self.metric in GROWING_METRICS else f" {score(self.value)}"
        return f"{self.metric}{shown} reached {exact(self.goal)}"


def reached(stop: Mapping[str, float], row: Mapping[str, Any]) -> Reached | None:
    """Return which of the ``stop`` values a row has reached, one without need of evaluation first; NaN reaches none."""
    values = flatten(row)
    found = [
        Reached(metric, values[metric], goal)
        for metric, goal in stop.items()
        if values.get(metric) is not None and values[metric] >= goal
    ]
    return min(found, key=lambda each: each.needs_evaluation, default=None)


def ended_by(stop: Mapping[str, float], row: Mapping[str, Any]) -> bool:
    """Return whether a trial is over by its last row: by a counter, or by the reason that ended it at that row.

    A reward in a row may not be confirmed, or may be from a checkpoint's evaluation, which ends no trial.
    """
    found = reached(stop, row)
    return found is not None and (found.metric in GROWING_METRICS or row.get("done") is True)


LastRow = Mapping[str, Any] | Mapping[TimeAttribute, float]
"""The last row of a trial, or its progress from it; empty if it has none."""


def iteration_bounds(stop: Mapping[str, float], milestones: Milestones | None, before: LastRow) -> IterationBounds:
    """Return what ends a trial's next iteration: its next milestone or a value of ``stop``, whichever is first."""
    values = dict(stop)
    if milestones is not None:
        metric = milestones.metric
        values[metric] = min(milestones.after(before.get(metric, 0.0)), stop.get(metric, math.inf))
    return IterationBounds(values)


def writes_checkpoint(milestones: Milestones | None, before: LastRow, row: Mapping[str, Any]) -> bool:
    """Return whether a row passes a milestone at which its trial writes a checkpoint."""
    if milestones is None or not milestones.writes_checkpoint:
        return False
    return milestones.passed(before.get(milestones.metric, 0.0), row[milestones.metric])


SHARE: Final = 0.05
"""Largest share of a trial's time for evaluations: of checkpoints, and again of a reward that was not confirmed."""


class CheckpointEvaluation:
    """Owned by a trial's process. After an evaluation, the learner is held until ``release``.

    So a checkpoint that is written before that has the evaluated weights.
    """

    def __init__(
        self,
        agent: Agent[Any],
        num_episodes: int,
        should_stop: ShouldStop,
        report: ReportProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Play ``num_episodes`` each time; with 0 there are no evaluations, and every reward ends the trial."""
        self._agent = agent
        self._num_episodes = num_episodes
        self._should_stop = should_stop
        self._report = report
        self._clock = clock
        self._held = ExitStack()
        self._last_end_s = clock()
        self._refused_s: float | None = None
        """When a reward was last not confirmed; None: never."""
        self._cost_s = 0.0
        """Seconds of the last evaluation, or the seconds that a cut-off one might have taken."""

    def end_reason(self, stop: Mapping[str, float], row: dict[str, Any]) -> str | None:
        """Return which value of ``stop`` ends the trial; a training reward only if the weights have it too."""
        found = reached(stop, row)
        ends = found is not None and (not found.needs_evaluation or self.confirms(found, row))
        return str(found) if ends else None

    def confirms(self, goal: Reached, row: dict[str, Any]) -> bool:
        """Return whether the weights also reach a goal that the training reward in ``row`` has reached.

        Also False if it is too soon to play again after a reward was not confirmed. The stats of the evaluation are
        added to ``row``.
        """
        if not self._num_episodes:
            return True
        if self._refused_s is not None and self._cost_s > SHARE * (self._clock() - self._refused_s):
            return False
        figures = self._play(self._agent.config.evaluation_timeout_s)
        if figures is None:
            return self._counts_alone(goal)
        row["evaluation"] = figures
        played = figures[goal.metric.removesuffix("_all")]
        if played >= goal.goal:
            return True
        self._refused_s = self._last_end_s
        self._agent.add_event(
            f"{goal}, but {self._num_episodes} episodes of an evaluation had {score(played)}: training continues"
        )
        return False

    def add_figures(self, row: dict[str, Any]) -> None:
        """Add the stats of an evaluation to the ``row`` of a checkpoint, unless it has some or there is no time."""
        limit_s = SHARE * (self._clock() - self._last_end_s)
        if not self._num_episodes or "evaluation" in row or self._cost_s > limit_s:
            return
        figures = self._play(limit_s)
        if figures is not None:
            row["evaluation"] = figures

    def release(self) -> None:
        """Let the learner continue."""
        self._held.close()

    def _counts_alone(self, goal: Reached) -> bool:
        """Return whether a reward ends the trial without a finished evaluation; not if that was cut off to stop."""
        if self._should_stop():
            return False
        if self._num_episodes:
            self._agent.add_event(f"{goal}; its evaluation was not over in time, so the reward alone counts")
        return True

    def _play(self, limit_s: float) -> Mapping[str, Any] | None:
        """Return the stats of an evaluation; None if it was cut off or failed. The learner is held from now on."""
        from rlexp.agents.evaluation import evaluation_figures  # it loads Gymnasium, and the command needs none

        def is_over() -> bool:
            return self._should_stop() or self._clock() >= end_s

        try:
            self._agent.prepare_evaluation(self._should_stop)
            self._held.enter_context(self._agent.optimizer.paused())
            began_s = self._clock()
            end_s = began_s + limit_s
            played = self._agent.evaluate(self._num_episodes, is_over, self._report)
        except RlexpError as error:  # training can continue in an env that cannot be played twice
            self._agent.add_event(f"checkpoints are not evaluated any more: {error.message}")
            self._num_episodes = 0
            return None
        self._last_end_s = self._clock()
        # For a cut-off one, only a lower bound is known: with twice as much time it may succeed.
        self._cost_s = (self._last_end_s - began_s) * (1 if played.is_complete else 2)
        return evaluation_figures(played) if played.is_complete else None
