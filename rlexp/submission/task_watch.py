"""TaskWatch: how a task does, and its result rows in their order, by what a board says at each look."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rlexp.files import parse_json
from rlexp.joined_actors.task_records import MOST_AT_ONCE
from rlexp.runs.last_row import is_row
from rlexp.transport.board import Board, Task, TaskStatus, TaskSummary
from rlexp.transport.board_errors import BoardError, BoardLostError
from rlexp.transport.unreadable import UnreadableError

PATIENCE_S: Final = 60.0
"""For how long a task that the board has lost is left to its trainer, which announces it again; then it is submitted
again."""

MOST_PAUSE_S: Final = 600.0
"""Between two times that a lost task is submitted again, at most: it begins with a second, and doubles."""


@dataclass(frozen=True)
class TaskNews:
    """What is new since the last look."""

    summary: TaskSummary | None
    """None: the board has lost the task, or what can be read of its state."""
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


class TaskWatch:
    """Follows one task; used by one thread."""

    def __init__(self, board: Board, task: Task, last_row: dict[str, Any] | None, clock: Callable[[], float]) -> None:
        """Begin after ``last_row``, the newest one that is recorded, where the board still has it."""
        self._board, self._task, self._clock = board, task, clock
        self._last_row = last_row
        self._next, self._last_text = 0, ""
        self._recent: deque[str] = deque(maxlen=2 * MOST_AT_ONCE)
        self._has_begun = False
        self._was_queued = True
        self._lost_s: float | None = None
        self._unreadable_s: float | None = None
        self._may_submit_s = -math.inf
        self._pause_s = 1.0

    def look(self) -> TaskNews:
        """Return what is new; raises what the board raises."""
        summary = next((each for each in self._board.tasks() if each.id == self._task.id), None)
        if summary is None:
            return TaskNews(None, notes=self._wait_for_state() if self._is_there() else self._submit_again())
        self._lost_s = self._unreadable_s = None
        self._was_queued = summary.status is TaskStatus.QUEUED
        texts, notes = self._new_texts()
        texts = self._not_repeated(texts)
        rows = [row for text in texts if (row := _row_of(text)) is not None]
        if len(rows) < len(texts):
            notes = (*notes, f"left out {len(texts) - len(rows)} results that are none")
        notes = (*notes, *self._board.unreadable.drain_events())
        return TaskNews(summary, tuple(self._not_recorded(rows)), notes)

    def _is_there(self) -> bool:
        """Return whether the board has the task, though it does not list it."""
        try:
            return self._board.describe(self._task.id) is not None
        except UnreadableError:
            return True

    def _wait_for_state(self) -> tuple[str, ...]:
        """Wait for a task that the board does not list although it has it; raises BoardError after PATIENCE_S."""
        now, first = self._clock(), self._unreadable_s is None
        self._unreadable_s = now if self._unreadable_s is None else self._unreadable_s
        if now - self._unreadable_s > PATIENCE_S:
            hint = "install the same version of rlexp at all ends, or ask whoever runs the board; --attach comes back"
            raise BoardError(f"the state of task {self._task.id} on the board cannot be read", hint)
        text = f"the board has the task, but not what can be read of its state; waiting up to {PATIENCE_S:.0f} s for it"
        return (text,) if first else ()

    def _submit_again(self) -> tuple[str, ...]:
        """Put a task on the board that it has lost: at once where no trainer had it, else after PATIENCE_S.

        A board that loses it again and again gets it less and less often.
        """
        now = self._clock()
        first = self._lost_s is None
        self._lost_s = now if self._lost_s is None else self._lost_s
        if self._was_queued or now - self._lost_s > PATIENCE_S:
            if now < self._may_submit_s:
                return ()
            put(self._board, self._task)
            self._lost_s, self._was_queued = None, True
            self._may_submit_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            return ("the board had lost the task; it was submitted again",)
        waiting = f"the board has lost the task; waiting up to {PATIENCE_S:.0f} s for its trainer to announce it again"
        return (waiting,) if first else ()

    def _new_texts(self) -> tuple[list[str], tuple[str, ...]]:
        """Return the rows after the last one, and what happened where the board does not have that one any more."""
        overlap = max(self._next - 1, 0)
        numbered = self._board.rows(self._task.id, overlap)
        if self._next and numbered and numbered[0] == (overlap, self._last_text):
            numbered = numbered[1:]
        elif self._next and (not numbered or numbered[0][0] <= overlap):  # the board lost its data: these are new
            self._next = 0
            numbered = self._board.rows(self._task.id, 0)
        if not numbered:
            return [], ()
        missed = numbered[0][0] - self._next
        self._next, self._last_text = numbered[-1][0] + 1, numbered[-1][1]
        notes = (f"{missed:,} results are not on the board any more",) if missed > 0 else ()
        return [text for _, text in numbered], notes

    def _not_repeated(self, texts: list[str]) -> list[str]:
        """Return the rows without those that came before: where an answer is lost, a trainer puts rows again."""
        new = []
        for text in texts:
            if text not in self._recent:
                new.append(text)
                self._recent.append(text)
        return new

    def _not_recorded(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows after the recorded one, with the first rows; all of them where it is not among them."""
        if self._has_begun or not rows:
            return rows
        self._has_begun = True
        known = [index for index, row in enumerate(rows) if _same(row, self._last_row)]
        return rows[known[-1] + 1 :] if known else rows


def put(board: Board, task: Task) -> None:
    """Submit a task; where an answer of the board was lost, it may be there already."""
    try:
        board.submit(task)
    except BoardLostError:
        raise
    except BoardError:
        there = board.describe(task.id)
        if there is None or there.file != task.file:
            raise


def _same(row: dict[str, Any], recorded: dict[str, Any] | None) -> bool:
    """Return whether two rows are of the same moment; evaluations may have been added to the recorded one."""
    names = ("training_iteration", "timesteps_total", "timestamp")
    return recorded is not None and all(row.get(name) == recorded.get(name) for name in names)


def _row_of(text: str) -> dict[str, Any] | None:
    """Return the row that a trainer has put there as text; None where it is not one."""
    try:
        row = parse_json(text)
        json.dumps(row, ensure_ascii=False).encode()  # half of a pair of surrogates, which no file takes, raises
    except ValueError:
        return None
    return row if isinstance(row, dict) and is_row(row) else None
