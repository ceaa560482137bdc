"""SharedFiles: the trial's process has the run's directory, on its own disk or on one that is shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlexp.checkpoint import newest_with_damaged_aside
from rlexp.errors import TrialError
from rlexp.processes.locks import OpenFolder
from rlexp.runs.checkpoints import KeptNumber, keep_best
from rlexp.runs.files.trial_files import ERROR_FILE, STOP_POLL_S, Poll, Requests, requests_of
from rlexp.runs.phase_file import end_phases, write_phase
from rlexp.runs.videos import FOLDER


class SharedFiles:
    """The files of a trial in its own directory; owns a descriptor of it."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError where there is no such directory."""
        self._directory = directory
        self._open_folder = OpenFolder(directory)
        self._stop_poll = Poll(STOP_POLL_S)
        self._requests = Requests()

    @property
    def folder(self) -> Path:
        return self._directory

    def check(self) -> None:
        if not self._open_folder.is_in_place:  # another run's may be at its path
            raise TrialError(f"{self._directory} was deleted or moved while the trial ran")

    def write_phase(self, text: str) -> None:
        write_phase(self._directory, text)

    def end_phases(self) -> None:
        end_phases(self._directory)

    def write_error(self, text: str) -> None:
        if self._open_folder.is_in_place:
            (self._directory / ERROR_FILE).write_text(text, encoding="utf-8")

    def stop_requested(self) -> bool:
        return self._look().stop

    def move_requested(self) -> bool:
        return self._look().move

    def _look(self) -> Requests:
        if not self._requests.stop and self._stop_poll.is_due():
            self._requests = requests_of(self._directory)
        return self._requests

    def newest(self) -> tuple[Path | None, list[str]]:
        return newest_with_damaged_aside(self._directory)

    def fetch(self, checkpoint: Path) -> Path:
        return checkpoint

    def put_checkpoint(self, path: Path) -> str:
        return str(path)

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        keep_best(self._directory, count, score_attribute)

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        folder = self._directory / FOLDER
        folder.mkdir(exist_ok=True)
        write(folder / name)

    def close(self) -> None:
        self._open_folder.close()
