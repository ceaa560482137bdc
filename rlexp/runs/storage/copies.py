"""CheckpointCopies: copies the checkpoints of a run to its storage, in a thread, while the run goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rlexp.checkpoint import list_checkpoints
from rlexp.checkpoint.contents import MANIFEST
from rlexp.files import read_regular
from rlexp.runs.storage.place import StoragePlace, said

RETRY_S: Final = 5.0
"""How long a storage is left alone after a failure."""
FINISH_TIMEOUT_S: Final = 60.0
"""How long the end of a run waits for copies."""
OpenPlace = Callable[[str], StoragePlace]


class CheckpointCopies:
    """Makes the storage have the checkpoints that the trials' directories have; owns a thread until ``close``.

    What waits to be copied is the directories that have changed, at most one entry a trial. Errors become notes: a
    run does not end because its storage cannot be reached, and copies are made when it can be.
    """

    def __init__(self, folder: str, retry_s: float = RETRY_S, open_place: OpenPlace = StoragePlace.at) -> None:
        """``folder`` is that of the run, in the storage."""
        self._folder = folder
        self._retry_s = retry_s
        self._open_place = open_place
        self._places: dict[str, StoragePlace] = {}
        self._copied: dict[Path, dict[str, bytes]] = {}
        """The manifests of the checkpoints that are there, by trial and name."""
        self._changed: dict[Path, str] = {}
        """Directories of trials that have changed since they were looked at, with the URL of their storage."""
        self._notes: list[str] = []
        self._is_failing = False
        self._is_closed = False
        self._is_busy = False
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None

    def follow(self, trial_directory: Path, url: str) -> None:
        """Copy what is new in the directory of a trial, and remove what was copied and is no longer there."""
        with self._state:
            self._changed[trial_directory] = url
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="storage copies", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def drain_notes(self) -> list[str]:
        """Return what there is to say since the last call."""
        with self._state:
            notes, self._notes = self._notes, []
            return notes

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> list[str]:
        """Wait for the copies that are not made yet, but no longer; return the notes, also of missing ones."""
        deadline_s = time.monotonic() + timeout_s
        with self._state:
            while (self._changed or self._is_busy) and (remaining_s := deadline_s - time.monotonic()) > 0:
                self._state.wait(remaining_s)
            missing = [path.name for path in self._changed]
        if not missing and not self._is_busy:
            return self.drain_notes()
        trials = ", ".join(missing[:3]) + (" and others" if len(missing) > 3 else "")
        what = f"not every checkpoint of {trials or 'the run'} was copied to its storage within {timeout_s:g} s"
        return [*self.drain_notes(), f"{what}; the run's own directory has them"]

    def close(self) -> None:
        """Let the thread end; a copy that waits for a silent server is left alone. Idempotent."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)

    def _serve(self) -> None:
        while (task := self._next()) is not None:
            directory, url = task
            try:
                self._copy_changes(directory, url)
            except Exception as error:  # of any kind of file system
                self._failed(directory, url, error)
            else:
                self._succeeded()

    def _next(self) -> tuple[Path, str] | None:
        """Wait for a directory that has changed; None after ``close``."""
        with self._state:
            while not self._changed and not self._is_closed:
                self._state.wait()
            if self._is_closed:
                return None
            directory = next(iter(self._changed))
            self._is_busy = True
            return directory, self._changed.pop(directory)

    def _succeeded(self) -> None:
        with self._state:
            if self._is_failing:
                self._notes.append("the storage works again: checkpoints are copied to it")
            self._is_failing = self._is_busy = False
            self._state.notify_all()

    def _failed(self, directory: Path, url: str, error: Exception) -> None:
        """Note the first failure of a row, and try again after a while."""
        with self._state:
            if not self._is_failing:
                what = f"cannot copy checkpoints of {directory.name} to its storage: {said(error, url)}"
                self._notes.append(f"{what}; it is tried again every {self._retry_s:g} s")
            self._is_failing = True
            self._changed.setdefault(directory, url)
            self._is_busy = False
            retry_at_s = time.monotonic() + self._retry_s
            while not self._is_closed and (remaining_s := retry_at_s - time.monotonic()) > 0:
                self._state.wait(remaining_s)

    def _copy_changes(self, directory: Path, url: str) -> None:
        if url not in self._places:
            self._places[url] = self._open_place(url)
        trial = self._places[url].below(self._folder, directory.name)
        copied = self._copied.setdefault(directory, {})
        for path in list_checkpoints(directory):
            if not self._is_closed:
                _copy_checkpoint(path, trial.below(path.name), copied)
        local = {path.name for path in list_checkpoints(directory)}
        if not local:  # a trial keeps its newest one: somebody has deleted them, and these copies are all there is
            return
        for name in copied.keys() - local:
            trial.below(name).remove()
            del copied[name]


def _copy_checkpoint(path: Path, place: StoragePlace, copied: dict[str, bytes]) -> None:
    """Copy a checkpoint unless that was done; one that is deleted meanwhile is removed by the caller."""
    try:
        manifest = read_regular(path / MANIFEST)
    except FileNotFoundError:
        return
    if copied.get(path.name) == manifest:
        return
    if place.manifest() != manifest:
        copied[path.name] = b""
        try:
            place.put(path)
        except FileNotFoundError:
            if path.exists():
                raise
            return
    copied[path.name] = manifest
