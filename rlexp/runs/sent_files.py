"""SentFiles: the trial's machine does not have the run's directory; files are sent to a Keeper that has it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rlexp.errors import RlexpError
from rlexp.files import open_regular
from rlexp.processes.family import TemporaryFolder
from rlexp.runs.checkpoints.contents import MANIFEST, sha256_of, verify_checkpoint
from rlexp.runs.checkpoints.kept import KeptNumber
from rlexp.runs.keeper import PIECE_BYTES, Answer, Keeper, KeeperLink, KeeperLostError
from rlexp.runs.trial_files import STOP_POLL_S, Poll, Requests


class SentFiles:
    """The files of a trial at its driver; owns a folder of this machine for those that are on their way."""

    def __init__(self, link: KeeperLink, directory: Path) -> None:
        """``directory`` is that of the trial at the driver; raises TrialError where the Keeper cannot be reached."""
        self._link = link
        self._trial = directory.name
        self._token = link.call(Keeper.begin, self._trial).get()
        self._temporary = TemporaryFolder("trial-")
        self._folder = self._temporary.path
        self._stop_poll = Poll(STOP_POLL_S)
        self._requests = Requests()
        self._requests_answer: Answer[Requests] | None = None
        self._phase: str | None = None
        """What is still to be shown."""
        self._phase_answer: Answer[None] | None = None
        self._shows_phase = False
        self._is_closed = False

    @property
    def folder(self) -> Path:
        return self._folder

    def check(self) -> None:
        self._link.call(Keeper.check, self._trial, self._token).get()

    def write_phase(self, text: str) -> None:
        self._phase = text
        self._send_phase()

    def _send_phase(self) -> None:
        """Send the newest phase, unless the one before is still on its way: then at the next look for a stop."""
        if self._phase is None or (self._phase_answer is not None and not self._phase_answer.is_ready()):
            return
        phase, self._phase, self._shows_phase = self._phase, None, True
        self._phase_answer = self._link.watch(Keeper.write_phase, self._trial, self._token, phase)

    def end_phases(self) -> None:
        self._phase = None
        if self._shows_phase:
            self._shows_phase = False
            self._phase_answer = self._link.watch(Keeper.end_phases, self._trial, self._token)

    def write_error(self, text: str) -> None:
        try:
            self._link.call(Keeper.write_error, self._trial, self._token, text).get()
        except (RlexpError, OSError) as error:  # the error itself is more important
            print(f"the error of {self._trial} cannot be kept: {error}", file=sys.stderr)

    def stop_requested(self) -> bool:
        return self._look().stop

    def move_requested(self) -> bool:
        return self._look().move

    def _look(self) -> Requests:
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
        path, said = self._link.call(Keeper.newest, self._trial, self._token).get()
        return None if path is None else self.fetch(path), said

    def fetch(self, checkpoint: Path) -> Path:
        target = self._folder / "fetched" / checkpoint.name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for file in self._link.call(Keeper.files_of, checkpoint).get():
            with (target / file.name).open("wb") as copy:
                while copy.tell() < file.bytes:
                    piece = self._link.call(Keeper.read_piece, checkpoint, file.name, copy.tell()).get()
                    if not piece:
                        break  # it was cut short meanwhile, which its hash shows
                    copy.write(piece)
        verify_checkpoint(target)
        return target

    def put_checkpoint(self, path: Path) -> str:
        name = path.name
        try:
            for file in sorted(path.iterdir(), key=lambda file: file.name == MANIFEST):
                for offset, piece in _pieces(file):
                    put = Keeper.put_checkpoint_piece
                    self._link.call(put, self._trial, self._token, name, file.name, offset, piece).get()
            return str(self._link.call(Keeper.commit_checkpoint, self._trial, self._token, name).get())
        except KeeperLostError:
            raise
        except Exception:  # also of the driver's disk
            with suppress(RlexpError, OSError):
                self._link.call(Keeper.drop_checkpoint, self._trial, self._token, name).get()
            raise
        finally:  # arrays that are still read stay until they are not mapped any more
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(self._folder / "fetched", ignore_errors=True)

    def keep_best(self, count: KeptNumber, score_attribute: str) -> None:
        self._link.call(Keeper.keep_best, self._trial, self._token, count, score_attribute).get()

    def put_video(self, name: str, write: Callable[[Path], None]) -> None:
        path = self._folder / name
        try:
            write(path)
            for offset, piece in _pieces(path):
                self._link.call(Keeper.put_video_piece, self._trial, self._token, name, offset, piece).get()
            self._link.call(Keeper.commit_video, self._trial, self._token, name, sha256_of(path)).get()
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._link.watch(Keeper.end, self._trial, self._token)  # not waited for: it may have ended
            self._temporary.remove()


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield a file in pieces, each with its offset; one empty piece for an empty file."""
    with open_regular(path, None) as file:
        offset, piece = 0, file.read(PIECE_BYTES)
        yield offset, piece
        while len(piece) == PIECE_BYTES:
            offset, piece = offset + len(piece), file.read(PIECE_BYTES)
            if piece:
                yield offset, piece
