"""TrialSource: where the trials of a command come from, and the decisions about them while they report.

A searcher gets the end of each configuration as an Outcome.
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
    """Higher is better; None if it failed."""
    time: float = 0.0
    """For an early end, the rung at which it has that value, in the unit of the scheduler's ``time_attr``."""


@dataclass(frozen=True)
class Decision:
    """The decision about a trial after a result."""

    verdict: Verdict
    changed: Trial | None = None
    """The trial with its new keys, for EXPLOIT; name and seed are the same."""
    problem: str | None = None
    """Why the trial has failed; None if it has not."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    message: str | None = None
    """The reason, if its status alone does not say it."""
    score: float | None = None
    """Its rank criterion; None if it is not ranked."""


CONTINUE = Decision(Verdict.CONTINUE)
_ROUNDING = 1e-4
"""Parts in which Ray counts CPUs and GPUs."""


class JoinPlace(Protocol):
    """A board without its password; only those who train know the rest."""

    @property
    def server(self) -> str:
        """Its address."""


class TrialSource:
    """Gives trials and decides on their results; called in one thread. Sources override what they need."""

    milestones: Milestones | None = None
    """When trials are compared: iterations end there, with a checkpoint if trials are paused or copied."""
    deadline_s: float | None = None
    """Time of day at which all trials end."""
    hparams_metrics: Sequence[str] = ()
    """The tags for TensorBoard's HParams tab; empty: all."""
    hang_timeout_s: float | None = None
    """Seconds without a result after which a trial's process is killed."""
    reuses_processes: bool
    """Whether a process may train one trial after another."""
    board: JoinPlace | None = None
    """The board at which actors can join the trial; None: none."""

    def next(self) -> Trial | None:
        """Return a trial to start; None if there is none at the moment."""
        return None

    @property
    def finished(self) -> bool:
        """Whether no more trials will come."""
        return True

    def on_start(self, trial: Trial) -> None:
        """Record that a trial's process has begun."""

    def on_result(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Decision:
        """Record a row and return the decision about its trial, which ends anyway if the row is ``done``.

        ``checkpoint`` is a milestone's.
        """
        return CONTINUE

    def next_paused(self, paused: Sequence[Trial]) -> Trial | None:
        """Return the paused trial that continues now, if any."""
        return None

    def stopped(self, paused: Sequence[Trial]) -> list[Trial]:
        """Return the paused trials that end early."""
        return []

    def drain_notes(self) -> list[str]:
        """Return the events between trials since the last call, a sentence each."""
        return []

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return the values of a trial for TensorBoard's HParams tab."""
        return trial_parameters(trial)

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        """Record that a trial ended, by its own ``stop`` (``finished``) or not; return how."""
        if error is not None:
            return Ending(Status.ERROR)
        return Ending(Status.TERMINATED if finished else Status.STOPPED)

    def conclude(self, status: Status) -> Status:
        """Write the remaining files after all has ended; return how the run as a whole ended."""
        return status


class FixedTrials(TrialSource):
    """The trials of ``rlexp run`` and of its ``resume``: known beforehand and independent of each other.

    Each starts when the machine has room for it and all before it have started, so they begin in order.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        cpus: float = math.inf,
        gpus: float = math.inf,
        board: JoinPlace | None = None,
    ) -> None:
        """Initialise; ``cpus`` and ``gpus`` are the most that running trials may reserve; with ``board``, one trial."""
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

    def on_end(self, trial: Trial, finished: bool, error: RecordedError | None) -> Ending:
        self._given.pop(trial.name, None)
        return super().on_end(trial, finished, error)

    def _has_room(self, trial: Trial) -> bool:
        experiments = [each.experiment for each in (trial, *self._given.values())]
        return not self._given or all(
            sum(map(required, experiments)) <= available + _ROUNDING for required, available in self._room.items()
        )
