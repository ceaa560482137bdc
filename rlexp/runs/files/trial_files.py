"""What the process of a trial does with the run's directory, wherever that is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rlexp.runs.checkpoints import KeptNumber

STOP_FILE: Final = ".stop"
"""In the run's directory: asks every trial to save a checkpoint and end."""
MOVE_FILE: Final = ".move"
"""In the trial's directory: asks the trial to save a checkpoint, as it starts again on another node."""
ERROR_FILE: Final = "error.txt"
"""In the trial's directory: the error in one line, then the traceback."""
STOP_POLL_S: Final = 0.2
"""How often a trial looks whether it must stop."""


class Requests(NamedTuple):
    """What a trial is asked for."""

    stop: bool = False
    move: bool = False


class TrialFiles(Protocol):
    """The files of one trial, from the begin of its process to ``close``; only that process writes checkpoints."""

    @property
    def folder(self) -> Path:
        """Where its process writes checkpoints before ``put_checkpoint``; on this machine."""

    def check(self) -> None:
        """Raise TrialError where the trial's directory was deleted or moved while the trial ran."""

    def write_phase(self, text: str) -> None:
        """Show what the process does now."""

    def end_phases(self) -> None:
        """Show no phase any more."""

    def write_error(self, text: str) -> None:
        """Keep the trial's error, unless its directory was deleted or moved."""

    def stop_requested(self) -> bool:
        """Return whether the run was asked to stop, as of STOP_POLL_S ago or less; never waits."""

    def move_requested(self) -> bool:
        """Return whether the trial was asked to leave its node, as of the same look; never waits."""

    def newest(self) -> tuple[Path | None, list[str]]:
        """Return the trial's newest good checkpoint, on this machine, and a sentence about each damaged one.

        Raises as ``newest_with_damaged_aside`` does.
        """

    def fetch(self, checkpoint: Path) -> Path:
        """Return a checkpoint, which the driver has at a path, on this machine; raises CheckpointError."""

    def put_checkpoint(self, path: Path) -> str:
        """Keep a checkpoint that was written in ``folder``; return its path at the driver.

        Raises TrialError where it cannot be kept.
        """

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        """Delete all but the best checkpoints, as ``runs.checkpoints.keep_best`` does."""

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        """Keep the video that ``write`` writes to the path that it is given."""

    def close(self) -> None:
        """Give up what it holds; idempotent."""


class Poll:
    """Says when it is time for the next look; owns when the last one was."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_look_s = 0.0

    def is_due(self) -> bool:
        """Return whether the last look is ``interval_s`` ago; if so, the caller looks now."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + self._interval_s
        return True


def requests_of(trial_directory: Path) -> Requests:
    """Return what the trial with that directory is asked for."""
    return Requests((trial_directory.parent / STOP_FILE).exists(), (trial_directory / MOVE_FILE).exists())
