"""TrialSource: where the trials of a command come from, and what decides about them while they report.

A searcher gets how each configuration ended as an Outcome.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.keys.trial import Trial, required_cpus, required_gpus
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.run_directory import trial_parameters
from rlexp.search.trial_scheduler import Milestones, Verdict


class OutcomeStatus(Enum):
    """How a configuration ended."""

    FINISHED = "finished"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """The result of a configuration."""

    status: OutcomeStatus
    value: float | None
    """Of which more is better; None for one that failed."""
    time: float = 0.0
    """Of one that ended early: the rung at which it has that value, in the unit of the scheduler's ``time_attr``."""


@dataclass(frozen=True)
class Decision:
    """What becomes of a trial after a result."""

    verdict: Verdict
    changed: Trial | None = None
    """With EXPLOIT: the trial with its new keys; name and seed are the same."""
    problem: str | None = None
    """Why the trial has failed, None where it has not."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    message: str | None = None
    """Why, where its status alone does not say it."""
    score: float | None = None
    """What it is ranked by; None where it is not."""


CONTINUE = Decision(Verdict.CONTINUE)
_ROUNDING = 1e-4
"""Ray counts CPUs and GPUs in these parts."""


class JoinPlace(Protocol):
    """A board without its password; what else it is only those know who train."""

    @property
    def server(self) -> str:
        """Its address."""
        ...


class TrialSource(Protocol):
    """Gives trials and decides on their results; called in one thread."""

    @property
    def milestones(self) -> Milestones | None:
        """When trials are compared: iterations end there, with a checkpoint where trials are paused or copied."""

    @property
    def deadline_s(self) -> float | None:
        """Time of day at which all trials end."""

    @property
    def hparams_metrics(self) -> Sequence[str]:
        """The tags that TensorBoard's HParams tab is to show; none: all."""

    @property
    def hang_timeout_s(self) -> float | None:
        """Seconds without a result after which a trial's process is killed."""

    @property
    def reuses_processes(self) -> bool:
        """Whether a process may train one trial after another."""

    @property
    def board(self) -> JoinPlace | None:
        """Where actors can join the trial; None: nowhere."""

    def next(self) -> Trial | None:
        """Return a trial to be started, or None where there is none at the moment."""

    @property
    def finished(self) -> bool:
        """Whether no more trials will come."""

    def on_start(self, trial: Trial) -> None:
        """Record that a trial's process has begun."""

    def on_result(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        """Record a row and return what becomes of its trial, which ends anyway where the row is ``done``.

        ``checkpoint`` is that of a milestone.
        """

    def next_paused(self, paused: Sequence[Trial]) -> Trial | None:
        """Return which of the paused trials continues now, if any."""

    def stopped(self, paused: Sequence[Trial]) -> list[Trial]:
        """Return which of the paused trials end early."""

    def drain_notes(self) -> list[str]:
        """Return what happened between trials since the last call, a sentence each."""

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return what TensorBoard's HParams tab is to show of a trial."""

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        """Record that a trial ended, by its own ``stop`` (``finished``) or not; return how."""

    def conclude(self, status: Status) -> Status:
        """Write what is left to be written once nothing runs any more; return how the run as a whole ended."""


class FixedTrials:
    """The trials of ``rlexp run`` and of its ``resume``: known beforehand and independent of each other.

    Each is given when the machine has room for it and all before it were given: so they begin in their order.
    """

    milestones: Milestones | None = None
    deadline_s: float | None = None
    hang_timeout_s: float | None = None
    hparams_metrics: Sequence[str] = ()

    def __init__(
        self,
        trials: Sequence[Trial],
        cpus: float = math.inf,
        gpus: float = math.inf,
        board: JoinPlace | None = None,
    ) -> None:
        """``cpus`` and ``gpus`` are what all trials that run together may reserve; with ``board``, one trial."""
        self.board = board
        self.reuses_processes = all(trial.experiment.reuse_actors for trial in trials)
        self._trials = deque(trials)
        self._room = {required_cpus: cpus, required_gpus: gpus}
        self._given: dict[str, Trial] = {}

    def next(self) -> Trial | None:
        if not self._trials or not self._has_room(self._trials[0]):
            return None
        trial = self._trials.popleft()
        self._given[trial.name] = trial
        return trial

    @property
    def finished(self) -> bool:
        return not self._trials

    def on_start(self, trial: Trial) -> None:
        return None

    def on_result(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        return CONTINUE

    def next_paused(self, paused: Sequence[Trial]) -> Trial | None:
        return None

    def stopped(self, paused: Sequence[Trial]) -> list[Trial]:
        return []

    def drain_notes(self) -> list[str]:
        return []

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        return trial_parameters(trial)

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        self._given.pop(trial.name, None)
        if error is not None:
            return Ending(Status.ERROR)
        return Ending(Status.TERMINATED if finished else Status.STOPPED)

    def _has_room(self, trial: Trial) -> bool:
        experiments = [each.experiment for each in (trial, *self._given.values())]
        return not self._given or all(
            sum(map(required, experiments)) <= available + _ROUNDING for required, available in self._room.items()
        )

    def conclude(self, status: Status) -> Status:
        return status
