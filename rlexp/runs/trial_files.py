"""What the process of a trial does with the run's directory, wherever that is: the protocol TrialFiles.

Beside it what both implementations do: requests to stop or move, the phase that is shown before the first result, as
Tune reports results only, and videos of evaluation episodes, which need the extra ``[video]``. SharedFiles is for a
process that has the directory, on its own disk or on one that is shared; ``keeper`` is for one that has not.
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
from rlexp.runs.checkpoints.kept import KeptNumber, keep_best
from rlexp.runs.checkpoints.trial import newest_with_damaged_aside
from rlexp.sample_batch import Array

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
        """Delete all but the best checkpoints, as ``runs.checkpoints.kept.keep_best`` does."""

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
        self.is_due = Poll(_SECONDS_BETWEEN_LOOKS).is_due
        """Returns whether it is time for another look."""

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


FOLDER = "videos"
"""In the trial's directory."""
BLOCK = 2
"""The codec takes widths and heights that are multiples of this."""


def require_video_extra(asked_by: str = "monitor: true") -> None:
    """Raise UsageError where the videos that ``asked_by`` asks for cannot be written."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(f"{asked_by} writes videos, and imageio-ffmpeg is not installed", "pip install 'rlexp[video]'")


def write_video(path: Path, pictures: Iterable[Array], fps: float) -> None:
    """Write pictures ``[H, W, 3]`` (uint8) as an mp4; the file appears whole, under its name, or not at all."""
    import imageio_ffmpeg

    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_other_than_file(path)
    unfinished = path.with_name(f".{path.name}")
    unfinished.unlink(missing_ok=True)  # the encoder would write through a link
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
    """Close ``pictures`` at the end, if it is a generator: then what it films is closed too."""
    try:
        yield pictures
    finally:
        if isinstance(pictures, Generator):
            pictures.close()


class SharedFiles:
    """The files of a trial in its own directory; owns a descriptor of it."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where there is no such directory."""
        self.folder = directory
        self._open_folder = OpenFolder(directory)
        self._stop_poll = Poll(STOP_POLL_S)
        self._requests = Requests()

    def check(self) -> None:
        if not self._open_folder.is_in_place:  # another run's may be at its path
            raise TrialError(f"{self.folder} was deleted or moved while the trial ran")

    def write_phase(self, text: str) -> None:
        write_phase(self.folder, text)

    def end_phases(self) -> None:
        end_phases(self.folder)

    def write_error(self, text: str) -> None:
        if self._open_folder.is_in_place:
            (self.folder / ERROR_FILE).write_text(text, encoding="utf-8")

    def stop_requested(self) -> bool:
        return self._look().stop

    def move_requested(self) -> bool:
        return self._look().move

    def _look(self) -> Requests:
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
