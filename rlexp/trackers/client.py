"""The protocol of a tracker's client, which its process calls; and what is kept of a trial in its directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from rlexp.files import read_json, replace_json
from rlexp.runs.record import Status
from rlexp.trackers.messages import TrackedRow, TrackedTrial

Note = Callable[[str], None]
"""Tells the user of the command a sentence."""


class TrackerError(Exception):
    """A tracker cannot record; the user can correct that."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass
class TrialState:
    """What a tracker must know of a trial when it is resumed: ``TRIAL/wandb.json``, ``TRIAL/mlflow.json``."""

    id: str = ""
    """That of its run in the tracker; empty: it has none yet."""
    rows: int = 0
    """Number of rows that were recorded."""
    best: float | None = None
    """The highest mean episode reward of them."""
    sent: dict[str, str] = field(default_factory=dict)
    """The checkpoints and videos that were sent, by name: the SHA-256 of a checkpoint's manifest, empty for a video."""

    @classmethod
    def read(cls, file: Path) -> TrialState:
        """Return what ``file`` has; an empty one where there is none, or it is damaged."""
        with suppress(OSError, ValueError, TypeError):
            data = read_json(file)
            kinds: dict[str, type | tuple[type, ...]] = {
                "id": str,
                "rows": int,
                "best": (float, int, type(None)),
                "sent": dict,
            }
            known = {each.name: data[each.name] for each in fields(cls)}
            if all(isinstance(value, kinds[name]) for name, value in known.items()):
                return cls(**known)
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
        """Return in words where each of the ``track.NAME`` sections records; raises TrackerError where none can."""

    def begin(self, trial: TrackedTrial, state: TrialState) -> TrackedRun:
        """Begin the run of a trial, or continue that of ``state``; ``state`` gets its id."""
