"""The notes of a submitter when something about its task changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rlexp.transport.board import TaskStatus, TaskSummary

QUEUED_S: Final = 5.0
"""Seconds after which it is said that no trainer has taken a task."""


class TaskNotes:
    """Compares each line of the list of tasks with the one before; owned by one submission."""

    def __init__(self, board: str) -> None:
        """``board`` is the address that a trainer joins, without its password."""
        self._board = board
        self._before: TaskSummary | None = None
        self._waits_for_trainer = False

    def of(self, now: TaskSummary) -> list[str]:
        """Return what to say, a sentence each."""
        before, self._before = self._before, now
        return list(self._changes(before, now))

    def _changes(self, before: TaskSummary | None, now: TaskSummary) -> Iterator[str]:
        if now.status.is_over:
            return
        if now.trainer is not None:
            self._waits_for_trainer = False
            if before is None or before.trainer != now.trainer:
                yield f"trainer {now.trainer} has taken it"
            return
        if before is not None and before.trainer is not None:
            yield f"trainer {before.trainer} is gone"
        is_new = now.status is TaskStatus.QUEUED and now.age_s < QUEUED_S
        if not self._waits_for_trainer and not is_new:
            self._waits_for_trainer = True
            which = (
                "no trainer has taken it yet; start one" if now.status is TaskStatus.QUEUED else "to go on, start one"
            )
            yield f"{which} with: rlexp join {self._board} --as trainer"
