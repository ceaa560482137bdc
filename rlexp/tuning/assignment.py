"""What the process of a trial is sent."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from rlexp.board.messages.address import BoardAddress
from rlexp.board.trainer.trial import AssignedTask, assigned_task
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.runs.checkpoints import starting_point
from rlexp.runs.phase_file import end_phases
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.trial_scheduler import Milestones
from rlexp.search.trial_source import TrialSource

ASSIGNMENT = "assignment"
"""What Tune's config of a trial has: its Assignment."""


@dataclass(frozen=True)
class Assignment:
    """What a trial's process needs to know."""

    trial: Trial
    directory: Path
    """The trial's own directory, absolute: on storage that driver and trial share, or at the driver only."""
    modules: UserModules
    """The user's own modules."""
    restore: Path | None
    """A checkpoint to start from where the trial has none of its own."""
    deadline_s: float | None
    """Time of day (``time.time``) at which the trial ends, by its experiment's ``time_budget_s`` or its sweep's."""
    milestones: Milestones | None = None
    """When it is compared with others."""
    keeper: str | None = None
    """The name of the Keeper's actor that has the trial's directory; None where the trial's process has it too."""
    task: AssignedTask | None = None
    """What the trial is on a board, where actors join it; None: nothing."""


def assignment_of(trial: Trial, directory: RunDirectory, source: TrialSource, keeper: str | None = None) -> Assignment:
    """Return what the process of ``trial`` is sent; its time budget begins now.

    ``keeper`` names the actor that reads and writes the run's directory for trials that do not have it.
    """
    end_phases(directory.trial_directory(trial))  # of a process that was killed
    budget_s = trial.experiment.time_budget_s
    deadlines = [source.deadline_s, None if budget_s is None else time.time() + budget_s]
    return Assignment(
        trial=trial,
        directory=directory.trial_directory(trial).resolve(),
        modules=directory.modules,
        restore=starting_point(trial),
        deadline_s=min((deadline for deadline in deadlines if deadline is not None), default=None),
        milestones=source.milestones,
        keeper=keeper,
        task=assigned_task(directory, trial, source.board if isinstance(source.board, BoardAddress) else None),
    )
