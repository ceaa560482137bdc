"""State shared by a trial's process and the thread that talks with its board: the link, the board, and the records.

The process puts rows, checkpoints for a successor and the end into TaskReports. A BoardThread sends rows and figures to
the board, and replaces the BoardState with each answer.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from rlexp.board.messages.basics import (
    KEPT_ROWS,
    MAX_BLOB_BYTES,
    MAX_ROW_BYTES,
    Backoff,
    BoardError,
    BoardLostError,
    InvalidMessageError,
)
from rlexp.board.messages.credentials import TrainerKeys, signed, verified
from rlexp.board.servers.board import Board, Lead, SeatHolder, TaskStatus, TrainerBeat
from rlexp.errors import CheckpointError
from rlexp.files import to_json
from rlexp.runs.checkpoints import iteration_of, iteration_of_packed, pack_checkpoint, unpack_checkpoint

RESULT: Final = "result"
"""The blob with the checkpoint at the end."""
MOST_AT_ONCE: Final = 20
"""Most rows that are put in one call: many wait after a time without the board."""
LEASE_SLACK_S: Final = 2.0
"""Seconds beyond a lease that a trainer waits for the lease of an ended trainer."""
RECOVERY: Final = "recovery"
"""The blob from which another trainer begins."""
LAST_UPLOAD_S: Final = 20.0
"""Seconds that the end of a trial waits for a board that is away, to put its checkpoint there."""
_FIGURES: Final = ("training_iteration", "timesteps_total", "time_total_s", "episode_reward_mean", "episodes_total")
Save = Callable[[Path], Path]
"""A function that writes a checkpoint without replay into a folder, and returns its directory."""


@dataclass(frozen=True)
class BoardState:
    """The board's state, replaced as a whole with each answer, so that other threads can read it."""

    num_beats: int = 0
    seats: tuple[SeatHolder, ...] = ()
    answered_s: float = 0.0
    """Time of the last answer, by the thread's clock."""
    num_queued: int | None = None
    is_connected: bool = False
    num_lost_connections: int = 0
    first_epoch: int = 0
    """The first epoch of this process as the task's trainer."""
    received: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """How far earlier trainers had received fragments without a gap, by seat and epoch."""

    def after(self, answer: TrainerBeat, now_s: float) -> BoardState:
        return replace(
            self,
            num_beats=self.num_beats + 1,
            seats=_merged(self.seats, answer.seats),
            answered_s=now_s,
            num_queued=answer.num_queued,
            is_connected=True,
        )

    def disconnected(self) -> BoardState:
        """Return the state after the board is away, or has lost its data."""
        lost = self.num_lost_connections + self.is_connected
        return replace(self, num_queued=None, is_connected=False, num_lost_connections=lost)


def _merged(known: tuple[SeatHolder, ...], answered: tuple[SeatHolder, ...]) -> tuple[SeatHolder, ...]:
    """Return the newest holder of each seat; a board that lost its data knows only those with a heartbeat since."""
    holders = {holder.index: holder for holder in known}
    for holder in answered:
        before = holders.get(holder.index)
        if before is None or holder.epoch >= before.epoch:
            holders[holder.index] = holder
    return tuple(holders[index] for index in sorted(holders))


class TaskRecords:
    """The result rows of a task, its figures, and its end; used by several threads."""

    def __init__(self) -> None:
        self.lead: Lead | None = None
        """The right to train the task, after the BoardThread has taken it."""
        self.is_over = False
        """Whether the board says that the task is over: somebody has cancelled it."""
        self.stopping = threading.Event()
        """Set if the BoardThread must end."""
        self.status = TaskStatus.ENDED
        """The task's status after the thread ends; RUNNING: another trainer is to continue it."""
        self.reason = ""
        self.figures: Mapping[str, Any] = {}
        """The figures that lists of tasks show."""
        self._lock = threading.Lock()
        self._rows: deque[str] = deque(maxlen=KEPT_ROWS)

    def add_row(self, row: str, figures: Mapping[str, Any]) -> None:
        """Add ``row``, JSON text, to be put, and ``figures`` to be shown."""
        with self._lock:
            self._rows.append(row)
            self.figures = dict(figures)

    def first_rows(self) -> list[str]:
        """Return the oldest rows that were not put yet."""
        with self._lock:
            return [self._rows[index] for index in range(min(len(self._rows), MOST_AT_ONCE))]

    def drop_rows(self, count: int) -> None:
        with self._lock:
            for _ in range(min(count, len(self._rows))):
                self._rows.popleft()

    def end(self, status: TaskStatus, reason: str = "") -> None:
        """Set how the task ended; the thread reports it to the board when it is stopped."""
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class BoardLink:
    """A task's board, and the trial's identity there."""

    board: Board
    """Owned by the thread that uses the link, which closes it."""
    task_id: str
    name: str
    member: str
    """The trainer's name, different from any other process's."""
    keys: TrainerKeys
    """The keys that verify the task's messages and sign what the trial publishes."""
    epoch: int = 0
    """The epoch of the right to train it, if ``member`` has it already."""
    file: str = ""
    """The experiment of a submitted task, as the board may have lost it."""
    lead_wait_s: float = LEASE_SLACK_S
    """Seconds beyond a lease that it waits for the right to train, which the previous trainer may have."""
    records: TaskRecords = field(default_factory=TaskRecords)


class TaskReports:
    """Owned by a trial's process and used by its thread. A report that cannot be sent is sent later, or noted."""

    def __init__(self, link: BoardLink, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Put a checkpoint for a successor there at most every ``period_s`` seconds."""
        self._link, self._records = link, link.records
        self._period_s, self._clock = period_s, clock
        self._due_s = clock() + period_s
        self._uploading: threading.Thread | None = None
        self._last: tuple[float, float] | None = None
        self._events: list[str] = []

    @property
    def is_cancelled(self) -> bool:
        return self._records.is_over

    def recovery(self, folder: Path, own: Path | None) -> Path | None:
        """Return the checkpoint that an earlier trainer left on the board, in ``folder``; None if ``own`` is newer.

        Raises BoardError if the board cannot be read. A damaged checkpoint is noted and ignored.
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
        """Put a checkpoint for a successor there if the period is over; it is sent while training continues."""
        if self._clock() < self._due_s or (self._uploading is not None and self._uploading.is_alive()):
            return
        self._due_s = self._clock() + self._period_s
        content = self._packed(RECOVERY, save)
        self._uploading = threading.Thread(target=self._put, args=(RECOVERY, content), name="recovery", daemon=True)
        self._uploading.start()

    def hand_over(self, save: Save) -> None:
        """Let another trainer continue: put a checkpoint there, and give the task back after the agent is stopped."""
        self._put_for_sure(RECOVERY, self._packed(RECOVERY, save))
        self._records.end(TaskStatus.RUNNING)

    def end(self, save: Save, reason: str = "") -> None:
        """Put the last checkpoint there, and end the task after the agent is stopped."""
        self._put_for_sure(RESULT, self._packed(RESULT, save))
        self._records.end(TaskStatus.ENDED, reason)

    def fail(self) -> None:
        """Give the task back at once, so that a restarted process need not wait for the lease."""
        self._records.end(TaskStatus.RUNNING)
        self._records.stopping.set()

    def drain_events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    def _packed(self, name: str, save: Save) -> bytes:
        keys = self._link.keys
        with tempfile.TemporaryDirectory(prefix="rlexp-task-") as folder:
            content = pack_checkpoint(save(Path(folder)), keys.published_key)
        return signed(content, self._link.task_id, name, keys)

    def _put(self, name: str, content: bytes) -> bool:
        """Return whether a blob was put; otherwise the next call puts it."""
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
        """Return what a list shows of a row; updates per second are since the previous row."""
        updates = row.get("info", {}).get("num_updates")
        figures = {name: row.get(name) for name in _FIGURES} | {"num_updates": updates}
        now, before = (float(row["time_total_s"]), float(updates or 0)), self._last
        self._last = now
        if before is not None and now[0] > before[0]:
            figures["updates_per_s"] = (now[1] - before[1]) / (now[0] - before[0])
        return figures
