"""TaskRecords: what a trial wants kept on its board beside weights. A BoardThread puts it there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from rlexp.transport.board import Lead, TaskStatus
from rlexp.transport.task_limits import KEPT_ROWS

RESULT: Final = "result"
"""The blob with the checkpoint at the end."""
MOST_AT_ONCE: Final = 20
"""Rows that are put in one call: those that come after a time without the board are many."""


class TaskRecords:
    """The result rows of a task, its figures, and how it ended; used by several threads."""

    def __init__(self) -> None:
        self.lead: Lead | None = None
        """The right to train the task, once the BoardThread has it."""
        self.is_over = False
        """Whether the board says that the task is over: somebody has cancelled it."""
        self.stopping = threading.Event()
        """Set where the BoardThread is to end."""
        self.status = TaskStatus.ENDED
        """What the task is to be once the thread ends; RUNNING: another trainer is to go on with it."""
        self.reason = ""
        self.figures: Mapping[str, Any] = {}
        """What lists of tasks show."""
        self._lock = threading.Lock()
        self._rows: deque[str] = deque(maxlen=KEPT_ROWS)

    @property
    def has_rows(self) -> bool:
        """Whether there are rows that were not put."""
        return bool(self._rows)

    def add_row(self, row: str, figures: Mapping[str, Any]) -> None:
        """Let ``row``, JSON text, be put, and ``figures`` be shown."""
        with self._lock:
            self._rows.append(row)
            self.figures = dict(figures)

    def first_rows(self) -> list[str]:
        """Return the oldest rows that were not put yet."""
        with self._lock:
            return [self._rows[index] for index in range(min(len(self._rows), MOST_AT_ONCE))]

    def drop_rows(self, count: int) -> None:
        """Forget the oldest ``count`` rows: they were put."""
        with self._lock:
            for _ in range(min(count, len(self._rows))):
                self._rows.popleft()

    def end(self, status: TaskStatus, reason: str = "") -> None:
        """Say how the task ended; the thread reports it to the board when it is stopped."""
        self.status, self.reason = status, reason
