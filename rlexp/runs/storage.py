"""The second place of a run's checkpoints: the folder of a file system that a URL names.

StoragePlace is such a folder. CheckpointCopies copies the checkpoints of a run there, in a thread, while the run
continues. If the run's own directory has none left, they are fetched back; every byte is verified.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlexp.errors import CheckpointError, DamagedCheckpointError, ResourceError, ResumeError, RlexpError, UsageError
from rlexp.files import open_regular, read_regular
from rlexp.processes.threads import Progress, bounded
from rlexp.runs.checkpoint_contents import MANIFEST, is_file_of_checkpoint
from rlexp.runs.checkpoints import hidden_folder, is_checkpoint_name, iteration_of, list_checkpoints, publish_verified
from rlexp.runs.record import RESOLVED_FILE, RunRecord, TrialRecord
from rlexp.text import MASK, masked

PIECE_BYTES: Final = 16 << 20
"""Bytes of a file that are copied, and in memory, at a time."""
CHECK_TIMEOUT_S: Final = 15.0
"""Most seconds of a server for each step of the check before a run."""
_LEADS_OUT: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]|%(2e|2f|5c|[01][0-9a-f]|7f)", re.IGNORECASE)
"""A separator or control character, also in URLs."""
_WHOSE_NAME: Final = "it is the name of a run or trial in run.json: restore that file from a copy"
_EXAMPLES: Final = "write it as s3://bucket/folder, gs://bucket/folder or file:///folder"


@dataclass(frozen=True)
class StoragePlace:
    """A folder of a file system; every function may wait for its server, and raises OSError."""

    shown: str
    """The URL without its secrets."""
    files: Any
    """The ``pyarrow.fs.FileSystem``."""
    root: str

    @classmethod
    def at(cls, url: str) -> StoragePlace:
        """Open a URL; raises UsageError if it is not valid, ResourceError if it cannot be opened now."""
        from pyarrow.fs import FileSystem  # it takes a moment, and most runs do not need it

        shown = masked(url)
        try:
            files, root = FileSystem.from_uri(url)
        except (ValueError, NotImplementedError, KeyError) as error:
            raise UsageError(f"storage {shown} cannot be opened: {_first_line(error, url)}", _EXAMPLES) from None
        except OSError as error:
            raise _unreachable(shown, error, url) from None
        if not root.strip("/"):
            raise UsageError(f"storage {shown} names no folder", _EXAMPLES)
        return cls(shown, files, root.rstrip("/"))

    def below(self, *names: str) -> StoragePlace:
        """Return a folder in it; raises ResumeError for a name that would lead out of it."""
        for name in names:
            if name in ("", ".", "..") or _LEADS_OUT.search(name):
                raise ResumeError(f"{name!r} is not a valid name of a folder in the storage {self.shown}", _WHOSE_NAME)
        return StoragePlace(self.shown, self.files, "/".join((self.root, *names)))

    def names(self) -> list[str]:
        """Return the names in it; empty if it does not exist."""
        from pyarrow.fs import FileSelector

        found = self.files.get_file_info(FileSelector(self.root, allow_not_found=True))
        return [each.base_name for each in found]

    def manifest(self) -> bytes | None:
        """Return the manifest of the checkpoint here; None if there is none, as the checkpoint is then incomplete."""
        try:
            with self.files.open_input_stream(f"{self.root}/{MANIFEST}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def put(self, checkpoint: Path, progress: Progress = lambda: None) -> None:
        """Copy a checkpoint to it, the manifest last, without which it is not a checkpoint."""
        if self.manifest() is not None:
            self.files.delete_file(f"{self.root}/{MANIFEST}")
        self.files.create_dir(self.root, recursive=True)
        for path in sorted(checkpoint.iterdir(), key=lambda path: path.name == MANIFEST):
            with (
                open_regular(path, None) as source,
                self.files.open_output_stream(f"{self.root}/{path.name}") as target,
            ):
                _copy(source.read, target.write, progress)

    def get(self, folder: Path, progress: Progress) -> None:
        """Copy the files of a checkpoint to an empty folder, and no other files."""
        for name in filter(is_file_of_checkpoint, self.names()):
            with self.files.open_input_stream(f"{self.root}/{name}") as source, (folder / name).open("wb") as target:
                _copy(source.read, target.write, progress)

    def remove(self) -> None:
        """Delete it and its content; the manifest first, so that a part of it is not a checkpoint."""
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{MANIFEST}")
        with suppress(FileNotFoundError):
            self.files.delete_dir(self.root)


def check_storage(url: str) -> None:
    """Write, read and delete a small file at a URL before a run begins.

    Raises UsageError if it is not a URL of a storage, ResourceError if that fails or takes too long.
    """

    def work(progress: Progress) -> None:
        place = StoragePlace.at(url)
        content, probe = uuid.uuid4().hex.encode(), f"{place.root}/.rlexp-{uuid.uuid4().hex}"
        progress()
        place.files.create_dir(place.root, recursive=True)
        progress()
        with place.files.open_output_stream(probe) as stream:
            stream.write(content)
        progress()
        with place.files.open_input_stream(probe) as stream:
            if stream.read() != content:
                raise CheckpointError(f"storage {place.shown} does not return what was written to it")
        progress()
        place.files.delete_file(probe)

    try:
        bounded(work, CHECK_TIMEOUT_S, f"storage {masked(url)}")
    except OSError as error:
        raise _unreachable(masked(url), error, url) from None


def _said(error: Exception, url: str) -> str:
    """Return an error of a file system in one line, without secrets."""
    return error.message if isinstance(error, RlexpError) else _first_line(error, url)


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object], progress: Progress) -> None:
    while piece := read(PIECE_BYTES):
        write(piece)
        progress()


def _unreachable(shown: str, error: Exception, url: str) -> ResourceError:
    message = f"storage {shown} cannot be used: {_first_line(error, url)}"
    return ResourceError(message, "look at its address, at the credentials, and at the rights to write there")


def _first_line(error: Exception, url: str) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].replace(url, str(masked(url))) if lines else type(error).__name__


RETRY_S: Final = 5.0
"""Seconds between tries of a storage after a failure."""
FINISH_TIMEOUT_S: Final = 60.0
"""Most seconds that the end of a run waits for copies."""
OpenPlace = Callable[[str], StoragePlace]


class CheckpointCopies:
    """Makes the storage have the checkpoints that the trials' directories have; owns a thread until ``close``.

    Changed directories wait to be copied, at most one entry per trial. Errors become notes: an unreachable storage does
    not end a run, and copies are made when it can be reached.
    """

    def __init__(self, folder: str, retry_s: float = RETRY_S, open_place: OpenPlace = StoragePlace.at) -> None:
        """Initialise; ``folder`` is the run's, in the storage."""
        self._folder = folder
        self._retry_s = retry_s
        self._open_place = open_place
        self._places: dict[str, StoragePlace] = {}
        self._copied: dict[Path, dict[str, bytes]] = {}
        """Manifests of the copied checkpoints, by trial and name."""
        self._changed: dict[Path, str] = {}
        """Directories of trials that changed since the last look, with the URL of their storage."""
        self._notes: list[str] = []
        self._is_failing = False
        self._is_closed = False
        self._is_busy = False
        self._state = threading.Condition()
        self._thread: threading.Thread | None = None

    def follow(self, trial_directory: Path, url: str) -> None:
        """Copy new checkpoints in the directory of a trial, and remove copies of deleted ones."""
        with self._state:
            self._changed[trial_directory] = url
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="storage copies", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def drain_notes(self) -> list[str]:
        """Return the notes since the last call."""
        with self._state:
            notes, self._notes = self._notes, []
            return notes

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> list[str]:
        """Wait at most ``timeout_s`` for missing copies; return the notes, also about copies that are still missing."""
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
        """Let the thread end; a copy that waits for a silent server is abandoned. Idempotent."""
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
            except Exception as error:  # errors of any file system
                self._failed(directory, url, error)
            else:
                self._succeeded()

    def _next(self) -> tuple[Path, str] | None:
        """Wait for a changed directory; None after ``close``."""
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
        """Note the first failure in a row, and try again after a while."""
        with self._state:
            if not self._is_failing:
                what = f"cannot copy checkpoints of {directory.name} to its storage: {_said(error, url)}"
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
        if not local:  # A trial keeps its newest one, so somebody deleted them, and these copies are the only ones.
            return
        for name in copied.keys() - local:
            trial.below(name).remove()
            del copied[name]


def _copy_checkpoint(path: Path, place: StoragePlace, copied: dict[str, bytes]) -> None:
    """Copy a checkpoint unless that was done; the caller removes one that is deleted meanwhile."""
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


STALL_S: Final = 30.0
"""Seconds without progress after which a download is given up."""
_STORAGE_LINE: Final = re.compile(r"^\s*storage:\s*['\"]?(\S+?)['\"]?\s*$", re.MULTILINE)


def folder_of(record: RunRecord) -> str:
    """Return the folder of a run in its storage, as runs of other machines may have the same name."""
    return f"{record.name}-{re.sub('[^0-9]', '', record.started)[:14]}"


def fetch_missing(run: Path, record: RunRecord, urls: Mapping[str, str]) -> list[str]:
    """Fetch the newest good checkpoint of each trial that has none; return a sentence about each.

    ``urls`` has the storage of trials, by name. Raises ResourceError if a storage cannot be reached.
    """
    notes = []
    for trial in record.trials:
        url, directory = urls.get(trial.name), run / trial.directory
        if url is None or not trial.iterations or not directory.is_dir() or list_checkpoints(directory):
            continue
        found = _fetch(directory, url, folder_of(record), None)
        notes.append(f"{trial.name}: {'no checkpoint' if found is None else found.name} from {masked(url)}")
    return notes


def fetched_checkpoint(run: Path, record: RunRecord, trial: TrialRecord, name: str | None) -> Path | None:
    """Return a trial's checkpoint ``name``, or its newest, from its storage; None if it is not there.

    The checkpoint is then in the trial's directory. Raises ResourceError if the storage cannot be reached.
    """
    if trial.storage is None or not (run / trial.directory).is_dir():
        return None
    return _fetch(run / trial.directory, unmasked(run, trial.storage), folder_of(record), name)


def _fetch(directory: Path, url: str, folder: str, name: str | None) -> Path | None:
    """Fetch a checkpoint to a trial's directory; the newest valid one unless it is named."""

    def work(progress: Progress) -> Path | None:
        trial = StoragePlace.at(url).below(folder, directory.name)
        names = [each for each in trial.names() if is_checkpoint_name(each) and name in (None, each)]
        for each in sorted(names, key=lambda each: iteration_of(Path(each)), reverse=True):
            progress()
            try:
                with hidden_folder(directory / each) as hidden:
                    trial.below(each).get(hidden, progress)
                    return publish_verified(hidden, directory / each)
            except DamagedCheckpointError:
                continue  # an older one may be whole
        return None

    try:
        return bounded(work, STALL_S, f"storage {masked(url)}")
    except OSError as error:
        message = f"cannot fetch checkpoints of {directory.name} from {masked(url)}: {_said(error, url)}"
        raise ResourceError(message, "look at the network and at the credentials") from None


def unmasked(run: Path, url: str) -> str:
    """Return the URL with the secrets that only ``resolved.yaml`` has; raises CheckpointError if they are gone."""
    if MASK not in url:
        return url
    try:
        text = read_regular(run / RESOLVED_FILE).decode()
    except (OSError, ValueError):
        text = ""
    for found in _STORAGE_LINE.findall(text):
        if masked(found) == url:
            return str(found)
    raise CheckpointError(f"the credentials of {url} are not in {run / RESOLVED_FILE} any more")
