"""The process of a tracker: ``python -m rlexp.trackers.serving FD``, started by TrackerProcess.

Reads messages from stdin, a line of JSON each, hands them to the library and confirms each. When stdin ends without a
FINISH, the command has died: then the runs are ended as interrupted. In any case, this process and its children end
within ``ORPHAN_TIMEOUT_S`` of that.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from rlexp.config.keys.experiment import TrackerName
from rlexp.errors import UsageError
from rlexp.files import read_regular
from rlexp.processes.child import Message, Send, answer
from rlexp.processes.family import kill
from rlexp.runs.checkpoint_contents import MANIFEST
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.record import Status
from rlexp.runs.trial_files import FOLDER as VIDEOS
from rlexp.text import masked
from rlexp.trackers.client import (
    Kind,
    Note,
    TrackedRow,
    TrackedRun,
    TrackedTrial,
    TrackerClient,
    TrialState,
)

ORPHAN_TIMEOUT_S: Final = 30.0
"""Seconds that this process may outlive a command that was killed."""
_LOOK_S: Final = 0.5
_LONGEST_ERROR: Final = 300


class OpenTrial:
    """The run of one trial in the tracker, with the file that lets a later command continue it."""

    def __init__(self, tracker: str, trial: TrackedTrial, client: TrackerClient) -> None:
        """Begin or continue it; raises what the library does."""
        self.trial = trial
        self._file = Path(trial.folder, f"{tracker}.json")
        self._state = TrialState.read(self._file)
        self.run: TrackedRun = client.begin(trial, self._state)
        self._state.write(self._file)
        self._steps = 0

    def record(self, row: TrackedRow) -> None:
        """Record a row, and send the checkpoints and videos that are new."""
        self._steps = row.steps
        self.run.record(row)
        self._state.add(row)
        self._send_artifacts()

    def change(self, trial: TrackedTrial) -> None:
        """Continue with other keys."""
        self.trial = trial
        self.run.update(trial)

    def end(self, status: Status | None, score: float | None) -> None:
        """Send what is new, and end the run; a later command may continue it."""
        try:
            self._send_artifacts()
        finally:
            numbers = {"best_episode_reward_mean": self._state.best, "score": score}
            self.run.end(status, {name: value for name, value in numbers.items() if value is not None})
            self._state.write(self._file)

    def _send_artifacts(self) -> None:
        wanted, folder = self.trial.options["artifacts"], Path(self.trial.folder)
        checkpoints = reversed(list_checkpoints(folder)) if "checkpoints" in wanted else ()
        videos = sorted(folder.joinpath(VIDEOS).glob("*.mp4")) if "videos" in wanted else []
        for path in checkpoints:
            digest = _digest(path)
            if digest is not None and self._state.sent.get(path.name) != digest:
                self.run.send_checkpoint(path)
                self._sent(path, digest)
        for path in videos:
            if path.name not in self._state.sent and not path.name.startswith("."):
                self.run.send_video(path, self._steps)
                self._sent(path, "")

    def _sent(self, path: Path, digest: str) -> None:
        self._state.sent[path.name] = digest
        self._state.write(self._file)


def _digest(checkpoint: Path) -> str | None:
    """Return a digest that tells a checkpoint from a later one under the same name; None if it was removed."""
    try:
        return hashlib.sha256(read_regular(checkpoint / MANIFEST)).hexdigest()
    except OSError:
        return None


class Service:
    """Handles the messages of the command, one after the other; what the library raises is a note, once a trial."""

    def __init__(self, tracker: str, client: TrackerClient, note: Note) -> None:
        self._tracker, self._client, self._note = tracker, client, note
        self._open: dict[str, OpenTrial] = {}
        self._failed: Counter[str] = Counter()
        """Messages that were not recorded, by trial."""
        self.is_finished = False

    def handle(self, message: Message) -> None:
        """Handle one message; raises nothing that the library does."""
        content = {key: value for key, value in message.items() if key != "kind"}
        match message["kind"]:
            case Kind.BEGIN:
                self._begin(TrackedTrial(**content))
            case Kind.ROW:
                row = TrackedRow(**content)
                with self._failures_noted(row.trial):
                    self._open[row.trial].record(row)
            case Kind.END:
                self._end(content["trial"], Status(content["status"]), content["score"])
            case Kind.FINISH:
                self.is_finished = True

    def close(self) -> None:
        """End the runs of the trials that have not ended; without FINISH the command has died. Note what is missing."""
        status = Status.STOPPED if self.is_finished else None
        for name in list(self._open):
            self._end(name, status, None)
        for name, count in self._failed.items():
            what = "1 message" if count == 1 else f"{count} messages"
            self._note(f"{self._tracker} has not recorded {what} of {name}; the run's own files have every row")

    def _begin(self, trial: TrackedTrial) -> None:
        with self._failures_noted(trial.name):
            if trial.name in self._open:
                self._open[trial.name].change(trial)
            else:
                self._open[trial.name] = OpenTrial(self._tracker, trial, self._client)

    def _end(self, name: str, status: Status | None, score: float | None) -> None:
        with self._failures_noted(name):
            self._open.pop(name).end(status, score)

    @contextmanager
    def _failures_noted(self, name: str) -> Iterator[None]:
        """Continue when a step for a trial fails; note only the first failure: others may follow from it."""
        try:
            yield
        except Exception as error:  # of any kind of library
            self._failed[name] += 1
            if self._failed[name] == 1:
                self._note(f"{self._tracker} cannot record {name}: {_error_text(error)}; the run goes on")


def _error_text(error: Exception) -> str:
    """Return the text of an error on one line, without passwords."""
    text = " ".join(str(masked(str(error))).split())
    return text[:_LONGEST_ERROR] or type(error).__name__


def make_client(tracker: TrackerName, out: Path, note: Note) -> TrackerClient:
    """Return the client of a tracker; imports its library."""
    if tracker == "wandb":
        from rlexp.trackers.wandb_client import WandbClient

        return WandbClient(note)
    from rlexp.trackers.mlflow_client import MlflowTracker

    return MlflowTracker(out, note)


def serve(request: Message, send: Send) -> None:
    """Record what the command sends until it has no more, or has died."""
    threading.Thread(target=_end_after_command, args=(os.getppid(),), daemon=True).start()

    def answer(kind: str, **content: Any) -> None:
        with suppress(OSError):  # the command has died; what it has sent is still recorded
            send(kind, **content)

    client = make_client(request["tracker"], Path(request["out"]), lambda text: answer(Kind.NOTE, text=text))
    try:
        places = client.places(request["options"])
    except UsageError as error:
        return answer(Kind.REFUSED, message=error.message, hint=error.hint)
    answer(Kind.READY, places=list(dict.fromkeys(places)))
    service = Service(request["tracker"], client, lambda text: answer(Kind.NOTE, text=text))
    for line in sys.stdin:
        service.handle(json.loads(line))
        answer(Kind.HANDLED)
        if service.is_finished:
            break
    service.close()
    return answer(Kind.DONE)


def _end_after_command(command: int) -> None:
    """End this process and those that the library has started, some time after the ``command`` that started it."""
    while os.getppid() == command:
        time.sleep(_LOOK_S)
    time.sleep(ORPHAN_TIMEOUT_S)
    kill(psutil.Process().children(recursive=True))
    os._exit(1)


if __name__ == "__main__":
    answer(serve, ends_with_command=False)
