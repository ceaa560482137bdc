"""The files of a trial whose machine does not have the run's directory: both ends of sending them.

The Keeper at the driver's node does what such trials ask for. SentFiles is a trial's end: its process calls the Keeper
through a KeeperLink.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from rlexp.errors import CheckpointError, RlexpError, TrialError
from rlexp.files import open_regular
from rlexp.processes.family import TemporaryFolder
from rlexp.processes.locks import OpenFolder
from rlexp.runs.checkpoint_contents import MANIFEST, is_file_of_checkpoint, sha256_of, verify_checkpoint
from rlexp.runs.checkpoints import (
    is_checkpoint_name,
    list_checkpoints,
    newest_with_damaged_aside,
    publish_verified,
    remove_leftovers,
)
from rlexp.runs.kept_checkpoints import KeptNumber, keep_best
from rlexp.runs.record import is_in_run
from rlexp.runs.trial_files import (
    ERROR_FILE,
    FOLDER,
    STOP_FILE,
    STOP_POLL_S,
    Poll,
    Requests,
    end_phases,
    requests_of,
    write_phase,
)

PIECE_BYTES: Final = 16 << 20
"""Bytes of a file that are sent, and in memory, at a time."""
_VIDEO: Final = re.compile(r"iteration_\d{6,}\.mp4")
_MOST_TEXT: Final = 4 << 20
"""Most characters of an error that are stored."""


@dataclass
class _Trial:
    """A trial whose process writes."""

    token: str
    """Token of the process that may write. An earlier process, whose machine was only unreachable, may not any more."""
    directory: Path
    folder: OpenFolder
    lock: threading.Lock = field(default_factory=threading.Lock)

    def close(self) -> None:
        """Close the descriptor, after which nothing is written."""
        with self.lock:
            self.folder.close()


class Keeper:
    """Reads and writes the directory of one run for its trials; owns descriptors of their directories.

    It accepts only file names of checkpoints, videos and errors, in the directory of a trial. Of the files it reads
    only the manifest. Several threads may call its functions.
    """

    def __init__(self, run: Path) -> None:
        self._run = run.absolute()
        self._trials: dict[str, _Trial] = {}
        self._lock = threading.Lock()

    def begin(self, trial: str) -> str:
        """Return a token for the process that begins ``trial``, a directory's name; earlier processes cannot write."""
        if not is_in_run(trial):
            raise TrialError(f"{trial!r} is not the directory of a trial")
        directory = self._run / trial
        begun = _Trial(secrets.token_hex(8), directory, OpenFolder(directory))
        with self._lock:
            before = self._trials.pop(trial, None)
            self._trials[trial] = begun
        if before is not None:
            before.close()
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
        begun.close()

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        with self._lock:
            trials, self._trials = list(self._trials.values()), {}
        for trial in trials:
            trial.close()

    def stop_requested(self) -> bool:
        """Return whether the run was asked to stop."""
        return (self._run / STOP_FILE).exists()

    def requests(self, trial: str) -> Requests:
        """Return the requests for a trial that has begun."""
        begun = self._trials.get(trial)
        return Requests(self.stop_requested()) if begun is None else requests_of(begun.directory)

    def show_phase(self, trial: str, token: str, text: str | None) -> None:
        """Show the phase of a trial's process, nothing for None, unless another process has the trial."""
        writer = self._trials.get(trial)
        if writer is None or writer.token != token:
            return
        if text is None:
            end_phases(writer.directory)
        elif writer.folder.is_in_place:
            write_phase(writer.directory, text)

    def check(self, trial: str, token: str) -> None:
        """Raise TrialError if the process may not write, or the trial's directory was deleted or moved."""
        with self._writing(trial, token):
            pass

    def write_error(self, trial: str, token: str, text: str) -> None:
        with self._writing(trial, token) as writer:
            (writer.directory / ERROR_FILE).write_text(text[:_MOST_TEXT], encoding="utf-8")

    def newest(self, trial: str, token: str) -> tuple[Path | None, list[str]]:
        """Return the newest valid checkpoint of a trial, and the sentences of ``newest_with_damaged_aside``."""
        with self._writing(trial, token) as writer:
            return newest_with_damaged_aside(writer.directory)

    def files_of(self, checkpoint: Path) -> list[str]:
        """Return the names of the files of a checkpoint; raises CheckpointError if it is not valid."""
        return [*verify_checkpoint(checkpoint).files, MANIFEST]

    def read_piece(self, checkpoint: Path, name: str, offset: int) -> bytes:
        """Return PIECE_BYTES of a checkpoint's file from ``offset`` on, fewer at the end."""
        if not is_file_of_checkpoint(name) or not (checkpoint / MANIFEST).is_file():
            raise CheckpointError(f"{checkpoint / name} is not a file of a checkpoint")
        descriptor = os.open(checkpoint / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            return os.pread(descriptor, PIECE_BYTES, offset)
        finally:
            os.close(descriptor)

    def put_piece(self, trial: str, token: str, name: str, file: str, offset: int, piece: bytes) -> None:
        """Add a piece to a file of ``name``, a checkpoint or the folder of videos; hidden until it is committed.

        Raises TrialError for an invalid name, and if the piece does not follow the last one.
        """
        if name != FOLDER and not is_file_of_checkpoint(file):
            raise TrialError(f"{file!r} is not a file of a checkpoint")
        with self._writing(trial, token) as writer:
            hidden = _hidden_video(writer, file) if name == FOLDER else _hidden(writer, name) / file
            hidden.parent.mkdir(exist_ok=True)
            _append(hidden, offset, piece)

    def commit_checkpoint(self, trial: str, token: str, name: str) -> Path:
        """Verify the sent files against their manifest, then give them their name; return the path.

        Raises DamagedCheckpointError, with nothing left, if a hash differs.
        """
        with self._writing(trial, token) as writer:
            hidden = _hidden(writer, name)
            try:
                return publish_verified(hidden, writer.directory / name)
            finally:
                remove_leftovers(writer.directory)

    def drop_checkpoint(self, trial: str, token: str) -> None:
        """Delete the sent files of a checkpoint that will not be committed."""
        with self._writing(trial, token) as writer:
            remove_leftovers(writer.directory)

    def keep_best(self, trial: str, token: str, count: KeptNumber, score_attribute: str) -> None:
        """Delete all but the best checkpoints of a trial."""
        with self._writing(trial, token) as writer:
            if list_checkpoints(writer.directory):
                keep_best(writer.directory, count, score_attribute)

    def commit_video(self, trial: str, token: str, name: str, sha256: str) -> None:
        """Give a video its name; raises TrialError, with nothing left, if its hash differs."""
        with self._writing(trial, token) as writer:
            hidden = _hidden_video(writer, name)
            if sha256_of(hidden) != sha256:
                hidden.unlink()
                raise TrialError(f"the video {name} was damaged when it was sent")
            hidden.replace(hidden.with_name(name))

    @contextmanager
    def _writing(self, trial: str, token: str) -> Iterator[_Trial]:
        """Provide a trial that the process with ``token`` writes; no other process begins it meanwhile.

        Raises TrialError if that process may not write, or the trial's directory is missing.
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
    """Return the path of a checkpoint until it is whole; raises TrialError if ``name`` is not valid."""
    if not is_checkpoint_name(name):
        raise TrialError(f"{name!r} is not the name of a checkpoint")
    return writer.directory / f".{name}.{writer.token}.writing"


def _hidden_video(writer: _Trial, name: str) -> Path:
    """Return the path of a video until it is whole; raises TrialError if ``name`` is not valid."""
    if not _VIDEO.fullmatch(name):
        raise TrialError(f"{name!r} is not the name of a video")
    return writer.directory / FOLDER / f".{name}"


def _append(path: Path, offset: int, piece: bytes) -> None:
    """Append a piece to the earlier ones; the first piece, with offset 0, starts the file anew."""
    if len(piece) > PIECE_BYTES:
        raise TrialError(f"a piece of {path.name} has {len(piece):,} bytes, more than {PIECE_BYTES:,}")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if offset == 0 else 0)
    descriptor = os.open(path, flags, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        if os.fstat(descriptor).st_size != offset:
            raise TrialError(f"a piece of {path.name} is missing before {offset:,}")
        file.write(piece)


P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class KeeperLostError(TrialError):
    """Raised if the Keeper died or cannot be reached, so that the trial can store nothing."""


class Answer(Protocol[T_co]):
    """The Keeper's answer, now or later."""

    def is_ready(self) -> bool:
        """Return whether ``get`` would return at once; never waits."""

    def get(self) -> T_co:
        """Wait for the answer; raise the error of the call, or KeeperLostError if no answer comes in time."""


class KeeperLink(Protocol):
    """Calls functions of one Keeper; those that ``watches`` arrive in the order of the calls."""

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a call that reads or writes files; two calls of a process may overtake each other unless it waits."""

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        """Begin a short call, such as a phase or a check; in order, and not delayed by large files."""


class SentFiles:
    """The files of a trial at its driver; owns a local folder for files on their way."""

    def __init__(self, link: KeeperLink, directory: Path) -> None:
        """Initialise; ``directory`` is the trial's at the driver; raises TrialError if the Keeper cannot be reached."""
        self._link = link
        self._trial = directory.name
        self._token = link.call(Keeper.begin, self._trial).get()
        self._temporary = TemporaryFolder("trial-")
        self.folder = self._temporary.path
        self._stop_poll = Poll(STOP_POLL_S)
        self._requests = Requests()
        self._requests_answer: Answer[Requests] | None = None
        self._phase: str | None = None
        """The phase that is not shown yet."""
        self._phase_answer: Answer[None] | None = None
        self._shows_phase = False

    def check(self) -> None:
        self._ask(Keeper.check)

    def write_phase(self, text: str) -> None:
        self._phase = text
        self._send_phase()

    def _send_phase(self) -> None:
        """Send the newest phase, unless the previous one is on its way; then the next check for a stop sends it."""
        if self._phase is None or (self._phase_answer is not None and not self._phase_answer.is_ready()):
            return
        phase, self._phase, self._shows_phase = self._phase, None, True
        self._phase_answer = self._link.watch(Keeper.show_phase, self._trial, self._token, phase)

    def end_phases(self) -> None:
        self._phase = None
        if self._shows_phase:
            self._shows_phase = False
            self._phase_answer = self._link.watch(Keeper.show_phase, self._trial, self._token, None)

    def write_error(self, text: str) -> None:
        try:
            self._ask(Keeper.write_error, text)
        except (RlexpError, OSError) as error:  # the error itself is more important
            print(f"the error of {self._trial} cannot be kept: {error}", file=sys.stderr)

    def requests(self) -> Requests:
        if self._requests.stop:
            return self._requests
        self._send_phase()
        if self._requests_answer is not None and self._requests_answer.is_ready():
            answer, self._requests_answer = self._requests_answer, None
            self._requests = answer.get()
        if self._requests_answer is None and self._stop_poll.is_due():
            self._requests_answer = self._link.watch(Keeper.requests, self._trial)
        return self._requests

    def newest(self) -> tuple[Path | None, list[str]]:
        path, said = self._ask(Keeper.newest)
        return None if path is None else self.fetch(path), said

    def fetch(self, checkpoint: Path) -> Path:
        target = self.folder / "fetched" / checkpoint.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in self._link.call(Keeper.files_of, checkpoint).get():
            with (target / name).open("wb") as copy:
                while piece := self._link.call(Keeper.read_piece, checkpoint, name, copy.tell()).get():
                    copy.write(piece)
                    if len(piece) < PIECE_BYTES:
                        break
        verify_checkpoint(target)
        return target

    def put_checkpoint(self, path: Path) -> str:
        name = path.name
        try:
            for file in sorted(path.iterdir(), key=lambda file: file.name == MANIFEST):
                self._send(name, file)
            return str(self._ask(Keeper.commit_checkpoint, name))
        except KeeperLostError:
            raise
        except Exception:  # also errors of the driver's disk
            with suppress(RlexpError, OSError):
                self._ask(Keeper.drop_checkpoint)
            raise
        finally:  # arrays that are being read stay until they are unmapped
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(self.folder / "fetched", ignore_errors=True)

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        self._ask(Keeper.keep_best, count, score_attribute)

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        path = self.folder / name
        try:
            write(path)
            self._send(FOLDER, path)
            self._ask(Keeper.commit_video, name, sha256_of(path))
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        self._link.watch(Keeper.end, self._trial, self._token)  # not waited for: it may have ended
        self._temporary.remove()

    def _ask(self, function: Callable[Concatenate[Keeper, str, str, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Let the Keeper do something for this trial, and wait for it."""
        return self._link.call(function, self._trial, self._token, *args, **named).get()

    def _send(self, name: str, path: Path) -> None:
        """Send a file of ``name`` in pieces; an empty one is a piece too."""
        with open_regular(path, None) as file:
            for offset in range(0, max(1, path.stat().st_size), PIECE_BYTES):
                self._ask(Keeper.put_piece, name, path.name, offset, file.read(PIECE_BYTES))
