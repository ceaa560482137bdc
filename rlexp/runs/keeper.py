"""Keeper: does at the driver's node what trials on machines without the run's directory ask for.

A trial's process calls it by a KeeperLink; see ``sent_files``.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from rlexp.errors import CheckpointError, TrialError
from rlexp.processes.locks import OpenFolder
from rlexp.runs.checkpoints.contents import MANIFEST, is_file_of_checkpoint, sha256_of, verify_checkpoint
from rlexp.runs.checkpoints.kept import KeptNumber, keep_best
from rlexp.runs.checkpoints.trial import (
    is_checkpoint_name,
    list_checkpoints,
    newest_with_damaged_aside,
    publish_verified,
    remove_leftovers,
)
from rlexp.runs.record import is_in_run
from rlexp.runs.trial_files import (
    ERROR_FILE,
    FOLDER,
    STOP_FILE,
    Requests,
    end_phases,
    requests_of,
    write_phase,
)

PIECE_BYTES: Final = 16 << 20
"""Of a file that is sent: what a call holds in memory at most."""
_VIDEO: Final = re.compile(r"iteration_\d{6,}\.mp4")
_MOST_TEXT: Final = 4 << 20
"""Characters of an error that are kept."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a checkpoint at the driver."""

    name: str
    bytes: int


@dataclass
class _Trial:
    """A trial whose process writes."""

    token: str
    """Of the process that may write: an earlier one, whose machine was only unreachable, may not any more."""
    directory: Path
    folder: OpenFolder
    lock: threading.Lock = field(default_factory=threading.Lock)


class Keeper:
    """Reads and writes the directory of one run for its trials; owns descriptors of their directories.

    It takes only names of files that a checkpoint, a video or an error has, in the directory of a trial, and reads
    nothing of them but the manifest. Its functions may be called by several threads.
    """

    def __init__(self, run: Path) -> None:
        self._run = run.absolute()
        self._trials: dict[str, _Trial] = {}
        self._lock = threading.Lock()

    def begin(self, trial: str) -> str:
        """Return a token for the process that begins ``trial``, the name of its directory; others can write no more."""
        if not is_in_run(trial):
            raise TrialError(f"{trial!r} is not the directory of a trial")
        directory = self._run / trial
        begun = _Trial(secrets.token_hex(8), directory, OpenFolder(directory))
        with self._lock:
            before = self._trials.pop(trial, None)
            self._trials[trial] = begun
        if before is not None:
            with before.lock:
                before.folder.close()
        with begun.lock:
            remove_leftovers(directory)
        return begun.token

    def end(self, trial: str, token: str) -> None:
        """Close the descriptor of a trial whose process ends, unless another process has begun the trial."""
        with self._lock:
            begun = self._trials.get(trial)
            if begun is None or begun.token != token:
                return
            del self._trials[trial]
        with begun.lock:
            begun.folder.close()

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        with self._lock:
            trials, self._trials = list(self._trials.values()), {}
        for trial in trials:
            with trial.lock:
                trial.folder.close()

    def stop_requested(self) -> bool:
        """Return whether the run was asked to stop."""
        return (self._run / STOP_FILE).exists()

    def requests(self, trial: str) -> Requests:
        """Return what a trial that has begun is asked for."""
        begun = self._trials.get(trial)
        return Requests(self.stop_requested()) if begun is None else requests_of(begun.directory)

    def write_phase(self, trial: str, token: str, text: str) -> None:
        """Show what the process of a trial does, unless another process has the trial."""
        if (writer := self._trials.get(trial)) is not None and writer.token == token and writer.folder.is_in_place:
            write_phase(writer.directory, text)

    def end_phases(self, trial: str, token: str) -> None:
        """Show no phase of the process any more."""
        if (writer := self._trials.get(trial)) is not None and writer.token == token:
            end_phases(writer.directory)

    def check(self, trial: str, token: str) -> None:
        """Raise TrialError where the process may not write, or the trial's directory was deleted or moved."""
        with self._writing(trial, token):
            pass

    def write_error(self, trial: str, token: str, text: str) -> None:
        """Keep the error of a trial."""
        with self._writing(trial, token) as writer:
            (writer.directory / ERROR_FILE).write_text(text[:_MOST_TEXT], encoding="utf-8")

    def newest(self, trial: str, token: str) -> tuple[Path | None, list[str]]:
        """Return the newest good checkpoint of a trial and what ``newest_with_damaged_aside`` says of others."""
        with self._writing(trial, token) as writer:
            return newest_with_damaged_aside(writer.directory)

    def files_of(self, checkpoint: Path) -> list[StoredFile]:
        """Return the files of a good checkpoint, the manifest last; raises CheckpointError where it is none."""
        names = [*verify_checkpoint(checkpoint).files, MANIFEST]
        return [StoredFile(name, (checkpoint / name).stat().st_size) for name in names]

    def read_piece(self, checkpoint: Path, name: str, offset: int) -> bytes:
        """Return PIECE_BYTES of a checkpoint's file from ``offset`` on, fewer at its end."""
        if not is_file_of_checkpoint(name) or not (checkpoint / MANIFEST).is_file():
            raise CheckpointError(f"{checkpoint / name} is not a file of a checkpoint")
        descriptor = os.open(checkpoint / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, PIECE_BYTES, offset)
        finally:
            os.close(descriptor)

    def put_checkpoint_piece(self, trial: str, token: str, name: str, file: str, offset: int, piece: bytes) -> None:
        """Add a piece to a file of checkpoint ``name``, which is hidden until it is committed.

        Raises TrialError for a name that a checkpoint cannot have, and where the piece does not follow the last one.
        """
        if not is_file_of_checkpoint(file):
            raise TrialError(f"{file!r} is not a file of a checkpoint")
        with self._writing(trial, token) as writer:
            hidden = _hidden(writer, name)
            hidden.mkdir(exist_ok=True)
            _append(hidden / file, offset, piece)

    def commit_checkpoint(self, trial: str, token: str, name: str) -> Path:
        """Verify the files that were sent against their manifest, then give them their name; return the path.

        Raises DamagedCheckpointError, with nothing left, where a hash differs.
        """
        with self._writing(trial, token) as writer:
            hidden = _hidden(writer, name)
            try:
                return publish_verified(hidden, writer.directory / name)
            finally:
                remove_leftovers(writer.directory)

    def drop_checkpoint(self, trial: str, token: str, name: str) -> None:
        """Delete what was sent of a checkpoint that will not be committed."""
        with self._writing(trial, token) as writer:
            _hidden(writer, name)
            remove_leftovers(writer.directory)

    def keep_best(self, trial: str, token: str, count: KeptNumber, score_attribute: str) -> None:
        """Delete all but the best checkpoints of a trial."""
        with self._writing(trial, token) as writer:
            if list_checkpoints(writer.directory):
                keep_best(writer.directory, count, score_attribute)

    def put_video_piece(self, trial: str, token: str, name: str, offset: int, piece: bytes) -> None:
        """Add a piece to a video, which is hidden until it is committed; raises as ``put_checkpoint_piece``."""
        with self._writing(trial, token) as writer:
            hidden = _hidden_video(writer, name)
            hidden.parent.mkdir(exist_ok=True)
            _append(hidden, offset, piece)

    def commit_video(self, trial: str, token: str, name: str, sha256: str) -> None:
        """Give a video its name; raises TrialError, with nothing left, where its hash differs."""
        with self._writing(trial, token) as writer:
            hidden = _hidden_video(writer, name)
            if sha256_of(hidden) != sha256:
                hidden.unlink()
                raise TrialError(f"the video {name} was damaged when it was sent")
            hidden.replace(hidden.with_name(name))

    @contextmanager
    def _writing(self, trial: str, token: str) -> Iterator[_Trial]:
        """Provide a trial that the process with ``token`` writes; no other one begins it meanwhile.

        Raises TrialError where that process may not write, or the trial's directory is missing.
        """
        writer = self._trials.get(trial)
        if writer is None or not secrets.compare_digest(writer.token, token):
            raise _begun_by_another(trial)
        with writer.lock:
            if self._trials.get(trial) is not writer:
                raise _begun_by_another(trial)
            if not writer.folder.is_in_place:
                raise TrialError(f"{writer.directory} was deleted or moved while the trial ran")
            yield writer


def _begun_by_another(trial: str) -> TrialError:
    return TrialError(f"another process has begun the trial {trial}")


def _hidden(writer: _Trial, name: str) -> Path:
    """Return where a checkpoint is until it is whole; raises TrialError where ``name`` is not that of one."""
    if not is_checkpoint_name(name):
        raise TrialError(f"{name!r} is not the name of a checkpoint")
    return writer.directory / f".{name}.{writer.token}.writing"


def _hidden_video(writer: _Trial, name: str) -> Path:
    """Return where a video is until it is whole; raises TrialError where ``name`` is not that of one."""
    if not _VIDEO.fullmatch(name):
        raise TrialError(f"{name!r} is not the name of a video")
    return writer.directory / FOLDER / f".{name}"


def _append(path: Path, offset: int, piece: bytes) -> None:
    """Write a piece behind those before; the first one, of offset 0, makes the file anew."""
    if len(piece) > PIECE_BYTES:
        raise TrialError(f"a piece of {path.name} has {len(piece):,} bytes, more than {PIECE_BYTES:,}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if offset == 0 else 0)
    descriptor = os.open(path, flags, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size != offset:
            raise TrialError(f"a piece of {path.name} is missing before {offset:,}")
        file.seek(offset)
        file.write(piece)
        file.flush()
        os.fsync(descriptor)


P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class KeeperLostError(TrialError):
    """The Keeper has died or cannot be reached, so that the trial can keep nothing."""


class Answer(Protocol[T_co]):
    """What the Keeper answers, now or later."""

    def is_ready(self) -> bool:
        """Return whether ``get`` would return at once; never waits."""

    def get(self) -> T_co:
        """Wait for the answer; raises what the call raised, KeeperLostError where there is none in time."""


class KeeperLink(Protocol):
    """Calls functions of one Keeper; those that ``watches`` arrive in the order of the calls."""

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a call that reads or writes files; calls of one process may overtake each other if not waited for."""

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a call that takes no time, such as a phase or a look; in order, and not behind large files."""
