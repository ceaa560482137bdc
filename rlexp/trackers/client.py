"""What the command and a tracker's process say to each other, and what that process asks of a library's client.

Messages are a line of JSON each. A file in the trial's directory lets a later command continue its tracker run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from rlexp.files import read_json, replace_json
from rlexp.runs.record import Status


class Kind(StrEnum):
    """The messages to the process (the first four), and those to the command."""

    BEGIN = "begin"
    """A TrackedTrial: it begins, is resumed, or continues with other keys."""
    ROW = "row"
    """A TrackedRow."""
    END = "end"
    """``trial``, ``status`` and ``score``: a trial has ended. Its score can change as long as others train."""
    FINISH = "finish"
    """Nothing more will come."""

    READY = "ready"
    """``places``: where it will record, in words. The answer to the request."""
    REFUSED = "refused"
    """``message`` and ``hint``: why it cannot record. The answer to the request, instead of READY."""
    NOTE = "note"
    """``text``, for the user."""
    HANDLED = "handled"
    """One message more is recorded, or has failed."""
    DONE = "done"
    """Everything is recorded."""


@dataclass(frozen=True)
class TrackedTrial:
    """A trial as a tracker shows it."""

    name: str
    run: str
    """The name of the run of rlexp."""
    agent: str
    env: str
    folder: str
    """The directory of the trial."""
    run_folder: str
    """The directory of the run."""
    config: Mapping[str, Any]
    """Every key with its value, as nested mappings; secrets are masked."""
    varied: Mapping[str, Any]
    """The keys that differ between the trials of the run, with this trial's values."""
    options: Mapping[str, Any]
    """The options of its experiment under ``track.NAME``."""
    versions: Mapping[str, str | None]
    """Versions of rlexp, Python and the packages that decide a result."""
    git_commit: str | None
    """The Git commit of the folder in which the command was started."""


@dataclass(frozen=True)
class TrackedRow:
    """The numbers of a result row."""

    trial: str
    steps: int
    """``timesteps_total``."""
    time_s: float
    """Time of the row, in seconds since 1970."""
    values: Mapping[str, float]
    """The numbers by their flat names: ``info/learner/loss``."""


Note = Callable[[str], None]
"""Tells the user of the command a sentence."""


@dataclass
class TrialState:
    """What a tracker must know of a trial when it is resumed: ``TRIAL/wandb.json``, ``TRIAL/mlflow.json``."""

    id: str = ""
    """The id of its run in the tracker; empty before there is one."""
    rows: int = 0
    """Number of rows that were recorded."""
    best: float | None = None
    """The highest mean episode reward of these rows."""
    sent: dict[str, str] = field(default_factory=dict)
    """The checkpoints and videos that were sent, by name: the SHA-256 of a checkpoint's manifest, empty for a video."""

    @classmethod
    def read(cls, file: Path) -> TrialState:
        """Return the content of ``file``; an empty state if it is missing or damaged."""
        with suppress(OSError, ValueError, TypeError):
            data = read_json(file)
            state = cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})
            has_numbers = isinstance(state.rows, int) and isinstance(state.best, float | int | None)
            if isinstance(state.id, str) and has_numbers and isinstance(state.sent, dict):
                return state
        return cls()

    def write(self, file: Path) -> None:
        """Replace ``file``, unless its directory is gone: then the run was deleted."""
        if file.parent.is_dir():
            replace_json(file, asdict(self))

    def add(self, row: TrackedRow) -> None:
        """Count a row."""
        self.rows += 1
        reward = row.values.get("episode_reward_mean")
        if reward is not None and (self.best is None or reward > self.best):
            self.best = reward


class TrackedRun(Protocol):
    """The run of one trial in a tracker."""

    def update(self, trial: TrackedTrial) -> None:
        """Take the keys of a trial that continues, with other values perhaps."""

    def record(self, row: TrackedRow) -> None:
        """Record numbers at env steps; steps that are not higher than before are allowed."""

    def send_checkpoint(self, path: Path) -> None:
        """Send the directory of a checkpoint."""

    def send_video(self, path: Path, steps: int) -> None:
        """Send a video of an evaluation at about ``steps`` env steps."""

    def end(self, status: Status | None, summary: Mapping[str, float]) -> None:
        """End it with numbers about it as a whole; ``status`` None: the command died."""


class TrackerClient(Protocol):
    """One library; each method may raise anything that the library does."""

    def places(self, options: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return in words where each of the ``track.NAME`` sections records; raises UsageError if one cannot record."""

    def begin(self, trial: TrackedTrial, state: TrialState) -> TrackedRun:
        """Begin the run of a trial, or continue the run of ``state``; ``state`` gets its id."""
