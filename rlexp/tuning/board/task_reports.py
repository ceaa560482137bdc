"""TaskReports: what the process of a trial reports to its board: rows, checkpoints for a successor, and the end."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rlexp.checkpoint import checkpoint_directory, iteration_of_packed, pack_checkpoint, unpack_checkpoint
from rlexp.checkpoint.trial import iteration_of
from rlexp.errors import CheckpointError
from rlexp.files import to_json
from rlexp.joined_actors.board_link import BoardLink
from rlexp.joined_actors.task_records import RESULT
from rlexp.transport.backoff import Backoff
from rlexp.transport.blobs import MAX_BLOB_BYTES
from rlexp.transport.board import TaskStatus
from rlexp.transport.board_errors import BoardError, BoardLostError
from rlexp.transport.envelope import InvalidMessageError
from rlexp.transport.signed_blobs import signed, verified
from rlexp.transport.task_limits import MAX_ROW_BYTES

RECOVERY: Final = "recovery"
"""The blob from which another trainer begins."""
LAST_UPLOAD_S: Final = 20.0
"""How long the end of a trial waits for a board that is away, to put its checkpoint there."""
_FIGURES: Final = ("training_iteration", "timesteps_total", "time_total_s", "episode_reward_mean", "episodes_total")

Save = Callable[[Path], Path]
"""Writes a checkpoint without replay to a directory."""


class TaskReports:
    """Owned by the process of a trial, used by its thread; what cannot be sent is sent later, or noted."""

    def __init__(self, link: BoardLink, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Put a checkpoint for a successor there every ``period_s`` seconds, at least."""
        self._link, self._records = link, link.records
        self._period_s, self._clock = period_s, clock
        self._due_s = clock() + period_s
        self._uploading: threading.Thread | None = None
        self._last: tuple[float, float] | None = None
        self._events: list[str] = []

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the task."""
        return self._records.is_over

    def recovery(self, folder: Path, own: Path | None) -> Path | None:
        """Return the checkpoint that an earlier trainer left on the board, in ``folder``; None where ``own`` is newer.

        Raises BoardError where the board cannot be read. A checkpoint that is damaged is noted and left alone.
        """
        content = self._link.board.get_blob(self._link.task_id, RECOVERY)
        if content is None:
            return None
        try:
            content = verified(content, self._link.task_id, RECOVERY, self._link.keys)
            iteration = iteration_of_packed(content, self._link.keys.published_key)
            if own is not None and iteration_of(own) >= iteration:
                return None
            return unpack_checkpoint(content, folder, self._link.keys.published_key, MAX_BLOB_BYTES)
        except (CheckpointError, InvalidMessageError) as error:
            self._events.append(f"{error}; it is left alone")
            return None

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Report a result row, and the figures that lists of tasks show."""
        text = to_json(row)
        if len(text.encode()) > MAX_ROW_BYTES:
            text = to_json({key: value for key, value in row.items() if not isinstance(value, Mapping | list)})
        self._records.add_row(text, self._figures(row))

    def save_when_due(self, save: Save) -> None:
        """Put a checkpoint for a successor there if the period is over; it is sent while training goes on."""
        if self._clock() < self._due_s or (self._uploading is not None and self._uploading.is_alive()):
            return
        self._due_s = self._clock() + self._period_s
        content = self._packed(RECOVERY, save)
        self._uploading = threading.Thread(target=self._put, args=(RECOVERY, content), name="recovery", daemon=True)
        self._uploading.start()

    def hand_over(self, save: Save) -> None:
        """Let another trainer go on: leave a checkpoint there, and give the task back once the agent is stopped."""
        self._put_for_sure(RECOVERY, self._packed(RECOVERY, save))
        self._records.end(TaskStatus.RUNNING)

    def end(self, save: Save, reason: str = "") -> None:
        """Leave the last checkpoint there, and end the task once the agent is stopped."""
        self._put_for_sure(RESULT, self._packed(RESULT, save))
        self._records.end(TaskStatus.ENDED, reason)

    def fail(self) -> None:
        """Give the task back at once, so that a process that is started again need not wait for the lease."""
        self._records.end(TaskStatus.RUNNING)
        self._records.stopping.set()

    def drain_events(self) -> list[str]:
        """Return what happened since the last call, a sentence each."""
        events, self._events = self._events, []
        return events

    def _packed(self, name: str, save: Save) -> bytes:
        keys = self._link.keys
        with tempfile.TemporaryDirectory(prefix="rlexp-task-") as folder:
            content = pack_checkpoint(save(Path(folder)), keys.published_key)
        return signed(content, self._link.task_id, name, keys)

    def _put(self, name: str, content: bytes) -> bool:
        """Return whether a blob was put; one that was not is put by the next call."""
        lead = self._records.lead
        try:
            return lead is not None and self._link.board.put_blob(lead, name, content)
        except BoardLostError:
            return False
        except BoardError as error:
            self._events.append(f"the checkpoint cannot be put on the board: {error.message}")
            return True

    def _put_for_sure(self, name: str, content: bytes) -> None:
        if self._uploading is not None:
            self._uploading.join(LAST_UPLOAD_S)
        backoff, ends_at = Backoff(0), self._clock() + LAST_UPLOAD_S
        while not self._put(name, content):
            if self._clock() > ends_at:
                self._events.append("the last checkpoint is not on the board, which was away")
                return
            time.sleep(min(backoff.failed(), max(ends_at - self._clock(), 0.1)))

    def _figures(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a list shows of a row; updates per second are those since the row before."""
        updates = row.get("info", {}).get("num_updates")
        figures = {name: row.get(name) for name in _FIGURES} | {"num_updates": updates}
        now, before = (float(row["time_total_s"]), float(updates or 0)), self._last
        self._last = now
        if before is not None and now[0] > before[0]:
            figures["updates_per_s"] = (now[1] - before[1]) / (now[0] - before[0])
        return figures


def save_into(save: Callable[[Path], Path], iteration: int) -> Save:
    """Return what writes the checkpoint of ``iteration`` into a folder, by a function that takes its directory."""
    return lambda folder: save(checkpoint_directory(folder, iteration))
