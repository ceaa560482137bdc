"""Where the trials of a command come from, and who decides about them while they report."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from rlexp.config.keys.trial import Trial
from rlexp.runs.run_directory import trial_parameters
from rlexp.runs.run_record import Status, TrialError
from rlexp.search.checkpoint_milestones import Milestones


class Action(Enum):
    """What becomes of a trial after a result."""

    GO_ON = "go on"
    END = "end"
    PAUSE = "pause"
    """Its process ends; it goes on later from its newest checkpoint."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a trial after a result."""

    action: Action
    changed: Trial | None = None
    """Of a paused one, the trial as it goes on where its keys are other ones then; name and seed are the same."""


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    status: Status
    message: str | None = None
    """Why, where its status alone does not say it."""
    score: float | None = None
    """What it is ranked by; None where it is not."""


GO_ON = Verdict(Action.GO_ON)


class TrialSource(Protocol):
    """Gives trials and judges their results; the runner asks it, in one thread."""

    milestones: Milestones | None
    """When trials write a checkpoint for ``judge`` beside those that their experiments ask for."""
    deadline_s: float | None
    """Time of day at which all trials end."""
    hparams_metrics: Sequence[str]
    """The tags that TensorBoard's HParams tab is to show; none: all."""
    hang_timeout_s: float | None
    """Seconds without a result after which a trial's process is killed."""

    def next(self) -> Trial | None:
        """Return a trial to be started, or None where there is none at the moment."""

    @property
    def finished(self) -> bool:
        """Whether no more trials will come."""

    def judge(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Verdict:
        """Return what becomes of a trial after a row that is not its last; ``checkpoint`` is that of a milestone."""

    def waits(self, paused: Sequence[Trial]) -> Trial | None:
        """Return which of the paused trials is to go on now, if any."""

    def on_start(self, trial: Trial) -> None:
        """Take over that a trial's process has begun."""

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take over a row."""

    def problem(self, trial: Trial, row: Mapping[str, Any]) -> str | None:
        """Return why a trial with such a row has failed, None where it has not."""

    def drain_notes(self) -> list[str]:
        """Return what happened between trials since the last call, a sentence each."""

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        """Return what TensorBoard's HParams tab is to show of a trial."""

    def on_end(self, trial: Trial, finished: bool, error: TrialError | None) -> Ending:
        """Take over that a trial ended, by its own ``stop`` (``finished``) or not."""

    def conclude(self, status: Status) -> Status:
        """Write what is left to be written once nothing runs any more; return how the run as a whole ended."""


class FixedTrials:
    """The feed of ``rlexp run`` and ``resume``: trials that are known, none of which hears of the others."""

    milestones: Milestones | None = None
    deadline_s: float | None = None
    hang_timeout_s: float | None = None
    hparams_metrics: Sequence[str] = ()

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = deque(trials)

    def next(self) -> Trial | None:
        return self._trials.popleft() if self._trials else None

    @property
    def finished(self) -> bool:
        return not self._trials

    def judge(self, trial: Trial, row: Mapping[str, Any], checkpoint: Path | None) -> Verdict:
        return GO_ON

    def waits(self, paused: Sequence[Trial]) -> Trial | None:
        return None

    def on_start(self, trial: Trial) -> None:
        return None

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        return None

    def problem(self, trial: Trial, row: Mapping[str, Any]) -> str | None:
        return None

    def drain_notes(self) -> list[str]:
        return []

    def hyperparameters(self, trial: Trial) -> Mapping[str, Any]:
        return trial_parameters(trial)

    def on_end(self, trial: Trial, finished: bool, error: TrialError | None) -> Ending:
        if error is not None:
            return Ending(Status.ERROR)
        return Ending(Status.TERMINATED if finished else Status.STOPPED)

    def conclude(self, status: Status) -> Status:
        return status
