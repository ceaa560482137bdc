"""TrialFiles: the protocol by which a trial's process uses the run's directory, wherever that is.

Also what both implementations share: requests to stop or move, the phase that is shown before the first result, as Tune
reports results only, and videos of evaluation episodes, which need the extra ``[video]``. SharedFiles is for a process
that has the directory, on its own or a shared disk; ``keeper`` is for a process without it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np

from rlexp.errors import TrialError, UsageError
from rlexp.files import read_regular, refuse_other_than_file
from rlexp.processes.locks import OpenFolder
from rlexp.runs.checkpoints import newest_with_damaged_aside
from rlexp.runs.kept_checkpoints import KeptNumber, keep_best
from rlexp.sample_batch import Array

STOP_FILE: Final = ".stop"
"""File in the run's directory that asks every trial to save a checkpoint and end."""
MOVE_FILE: Final = ".move"
"""File in the trial's directory that asks the trial to save a checkpoint, as it starts again on another node."""
ERROR_FILE: Final = "error.txt"
"""File in the trial's directory: the error in one line, then the traceback."""
STOP_POLL_S: Final = 0.2
"""Seconds between a trial's checks for a stop."""


class Requests(NamedTuple):
    """The requests to a trial: to stop with its run, and to leave its node."""

    stop: bool = False
    move: bool = False


class TrialFiles(Protocol):
    """The files of one trial, from the start of its process to ``close``; only that process writes checkpoints."""

    @property
    def folder(self) -> Path:
        """Local folder in which its process writes checkpoints before ``put_checkpoint``."""

    def check(self) -> None:
        """Raise TrialError if the trial's directory was deleted or moved while the trial ran."""

    def write_phase(self, text: str) -> None:
        """Show the current phase of the process."""

    def end_phases(self) -> None:
        """Stop to show phases."""

    def write_error(self, text: str) -> None:
        """Store the trial's error, unless its directory was deleted or moved."""

    def requests(self) -> Requests:
        """Return what the trial was asked to do, at most STOP_POLL_S ago; never waits."""

    def newest(self) -> tuple[Path | None, list[str]]:
        """Return the trial's newest valid checkpoint, on this machine, and a sentence about each damaged one."""

    def fetch(self, checkpoint: Path) -> Path:
        """Return a local copy of a checkpoint at a path of the driver; raises CheckpointError."""

    def put_checkpoint(self, path: Path) -> str:
        """Store a checkpoint that was written in ``folder``; return its path at the driver.

        Raises TrialError if it cannot be stored.
        """

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        """Delete all but the best checkpoints, as ``kept_checkpoints.keep_best`` does."""

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        """Store the video that ``write`` writes to a given path."""

    def close(self) -> None:
        """Release its resources; idempotent."""


class Poll:
    """Tells when the next check is due; owns the time of the last one."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_look_s = 0.0

    def is_due(self) -> bool:
        """Return whether the last check is ``interval_s`` ago; if so, the caller checks now."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + self._interval_s
        return True


def requests_of(trial_directory: Path) -> Requests:
    """Return the requests to the trial with that directory."""
    return Requests((trial_directory.parent / STOP_FILE).exists(), (trial_directory / MOVE_FILE).exists())


_PHASE_FILE: Final = ".phase"
_LONGEST: Final = 200
_MOST_BYTES: Final = 1 << 16
_SECONDS_BETWEEN_LOOKS: Final = 0.2

TRAINING: Final = "waiting for the first result"
"""The phase from which on a trial's process trains, and saves a checkpoint if asked to stop."""
PROGRESS: Final = "iteration "
"""How the phases begin that say how far an iteration is; see ``is_progress``."""


def is_progress(phase: str) -> bool:
    """Return whether a phase says how far an iteration is; each later one replaces it."""
    return phase.startswith(PROGRESS)


def write_phase(trial_directory: Path, text: str) -> None:
    """Write the current phase of the trial's process; it is for display only."""
    with suppress(OSError):
        new = trial_directory / f"{_PHASE_FILE}.new"  # so that a reader never sees an empty file
        new.write_text(text, encoding="utf-8")
        new.replace(trial_directory / _PHASE_FILE)


def read_phase(trial_directory: Path) -> str | None:
    """Return the phase of the trial's process; None if it has not started, or is training."""
    try:
        return read_regular(trial_directory / _PHASE_FILE, _MOST_BYTES).decode()[:_LONGEST]
    except (OSError, ValueError):
        return None


class PhaseWatch:
    """Reads the phases of trials without results yet; owns which of them are known already."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}
        self.is_due = Poll(_SECONDS_BETWEEN_LOOKS).is_due
        """A function that returns whether another check is due."""

    def news(self, trial_directory: Path) -> str | None:
        """Return a trial's phase if it changed since the last check."""
        phase = read_phase(trial_directory)
        if phase is None:
            self._known.pop(trial_directory, None)
        elif phase != self._known.get(trial_directory):
            self._known[trial_directory] = phase
            return phase
        return None

    def forget(self, trial_directory: Path) -> None:
        """Forget the phase of a trial whose process is about to start, also a phase that another process left."""
        end_phases(trial_directory)
        self._known.pop(trial_directory, None)


def end_phases(trial_directory: Path) -> None:
    """Remove the file of ``write_phase``."""
    with suppress(OSError):
        (trial_directory / _PHASE_FILE).unlink(missing_ok=True)


FOLDER = "videos"
"""Folder in the trial's directory."""
BLOCK = 2
"""The codec needs widths and heights that are multiples of this."""


def require_video_extra(asked_by: str = "monitor: true") -> None:
    """Raise UsageError if the videos that ``asked_by`` asks for cannot be written."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(f"{asked_by} writes videos, and imageio-ffmpeg is not installed", "pip install 'rlexp[video]'")


def write_video(path: Path, pictures: Iterable[Array], fps: float) -> None:
    """Write pictures ``[H, W, 3]`` (uint8) as an mp4; the file appears whole under its name, or not at all."""
    import imageio_ffmpeg

    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_other_than_file(path)
    unfinished = path.with_name(f".{path.name}")
    unfinished.unlink(missing_ok=True)  # the encoder would follow a link
    with _closed(iter(pictures)) as remaining:
        first = next(remaining)
        height, width = (side - side % BLOCK for side in first.shape[:2])
        writer = imageio_ffmpeg.write_frames(
            str(unfinished), (width, height), fps=fps, macro_block_size=BLOCK, output_params=["-f", "mp4"]
        )
        writer.send(None)
        try:
            for picture in chain([first], remaining):
                writer.send(np.ascontiguousarray(picture[:height, :width]))
        except BaseException:
            writer.close()
            unfinished.unlink(missing_ok=True)
            raise
        writer.close()
    unfinished.replace(path)


@contextmanager
def _closed(pictures: Iterator[Array]) -> Iterator[Iterator[Array]]:
    """Close ``pictures`` at the end if it is a generator, which also closes its env."""
    try:
        yield pictures
    finally:
        if isinstance(pictures, Generator):
            pictures.close()


class SharedFiles:
    """The files of a trial in its own directory; owns a descriptor of it."""

    def __init__(self, directory: Path) -> None:
        """Open ``directory``; raises OSError if it does not exist."""
        self.folder = directory
        self._open_folder = OpenFolder(directory)
        self._stop_poll = Poll(STOP_POLL_S)
        self._requests = Requests()

    def check(self) -> None:
        if not self._open_folder.is_in_place:  # another run may be at its path
            raise TrialError(f"{self.folder} was deleted or moved while the trial ran")

    def write_phase(self, text: str) -> None:
        write_phase(self.folder, text)

    def end_phases(self) -> None:
        end_phases(self.folder)

    def write_error(self, text: str) -> None:
        if self._open_folder.is_in_place:
            (self.folder / ERROR_FILE).write_text(text, encoding="utf-8")

    def requests(self) -> Requests:
        if not self._requests.stop and self._stop_poll.is_due():
            self._requests = requests_of(self.folder)
        return self._requests

    def newest(self) -> tuple[Path | None, list[str]]:
        return newest_with_damaged_aside(self.folder)

    def fetch(self, checkpoint: Path) -> Path:
        return checkpoint

    def put_checkpoint(self, path: Path) -> str:
        return str(path)

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        keep_best(self.folder, count, score_attribute)

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        folder = self.folder / FOLDER
        folder.mkdir(exist_ok=True)
        write(folder / name)

    def close(self) -> None:
        self._open_folder.close()
