"""What a trial's process does between two results, in a file of its directory: Tune reports results only."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from rlexp.files import read_regular

_PHASE_FILE: Final = ".phase"
_LONGEST: Final = 200
_MOST_BYTES: Final = 1 << 16
_SECONDS_BETWEEN_LOOKS: Final = 0.2


TRAINING: Final = "waiting for the first result"
"""The phase from which on a trial's process trains, and saves a checkpoint when it is asked to stop."""


def write_phase(trial_directory: Path, text: str) -> None:
    """Write what the trial's process does now; it is for display only."""
    with suppress(OSError):
        new = trial_directory / f"{_PHASE_FILE}.new"  # a reader never sees a file without its text
        new.write_text(text, encoding="utf-8")
        new.replace(trial_directory / _PHASE_FILE)


def read_phase(trial_directory: Path) -> str | None:
    """Return what the trial's process does, None if it has not started, or is training."""
    try:
        return read_regular(trial_directory / _PHASE_FILE, _MOST_BYTES).decode()[:_LONGEST]
    except (OSError, ValueError):
        return None


class PhaseWatch:
    """Reads the phases of trials that have not reported yet; owns which of them are known already."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}
        self._next_look_s = 0.0

    def is_due(self) -> bool:
        """Return whether it is time for another look."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + _SECONDS_BETWEEN_LOOKS
        return True

    def news(self, trial_directory: Path) -> str | None:
        """Return a trial's phase if it is not the same as at the last look."""
        phase = read_phase(trial_directory)
        if phase is None:
            self._known.pop(trial_directory, None)
        elif phase != self._known.get(trial_directory):
            self._known[trial_directory] = phase
            return phase
        return None

    def forget(self, trial_directory: Path) -> None:
        """Forget the phase of a trial whose process is about to begin it, also one that another process left."""
        end_phases(trial_directory)
        self._known.pop(trial_directory, None)


def end_phases(trial_directory: Path) -> None:
    """Remove what ``write_phase`` left."""
    with suppress(OSError):
        (trial_directory / _PHASE_FILE).unlink(missing_ok=True)
