"""``rlexp join``: finds tasks on a board and plays or trains them, one after another, without torch or Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from zlib import crc32

from rlexp.errors import TrialError, UsageError
from rlexp.joined_actors.outbox import SeatEnd
from rlexp.transport.backoff import Backoff
from rlexp.transport.board import Board, Task, TaskStatus, TaskSummary
from rlexp.transport.board_errors import BoardLostError
from rlexp.transport.unreadable import UnreadableError
from rlexp.user_code.trusted_code import Obstacle

LOOK_S: Final = 2.0
"""Seconds between two looks for a free seat."""
_NAP_S: Final = 0.2

ShouldStop = Callable[[], bool]


def has_free_seat(summary: TaskSummary) -> bool:
    """Return whether an actor could play for a task."""
    is_trained = summary.status is TaskStatus.RUNNING and summary.trainer is not None
    return is_trained and summary.num_taken < summary.num_seats


def has_no_trainer(summary: TaskSummary) -> bool:
    """Return whether a submitted task waits for a trainer: its first one, or one that follows another."""
    return summary.is_submitted and not summary.status.is_over and summary.trainer is None


@dataclass(frozen=True)
class JoinOptions:
    """Which tasks an actor joins, and for how long."""

    task_id: str | None = None
    """The only task that is joined; None: any."""
    once: bool = False
    """Whether it ends with the first task in which it has played."""
    wants: Callable[[TaskSummary], bool] = has_free_seat
    """Whether there may be something to do in a task."""
    nothing: str = "no task has a free seat; waiting"
    """What is reported where no task is wanted."""


class Player(Protocol):
    """Plays tasks, one at a time."""

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be played here; None where it may."""
        ...

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Take a seat and return why it was left in the end; None where no seat is free any more.

        Raises BoardError where the board refuses, and TrialError where the task cannot be played here.
        """
        ...


class Joiner:
    """Looks for tasks with a free seat until it is asked to stop; owned by one process, in its main thread."""

    def __init__(
        self,
        board: Board,
        member: str,
        options: JoinOptions,
        player: Player,
        report: Callable[[str], None],
        should_stop: ShouldStop,
    ) -> None:
        """``report`` is called with a sentence about what happens; ``member`` is unlike any other actor's."""
        self._board = board
        self._options = options
        self._player = player
        self._report = report
        self._should_stop = should_stop
        self._backoff = Backoff(crc32(member.encode()))
        self._reported: set[str] = set()
        self._unplayable: set[str] = set()
        """Tasks that could not be played here."""

    def run(self) -> None:
        """Join one task after another; return once it is asked to stop, or with ``once`` after the first one.

        A board that cannot be reached is tried again, for ever. Raises UsageError where the only task that may be
        joined is not there, and what ends playing.
        """
        while not self._should_stop():
            try:
                task = self._free_task()
                self._backoff.succeeded()
                if task is not None and self._join(task) is SeatEnd.TASK_OVER and self._is_over(task):
                    return
            except BoardLostError as error:
                wait_s = self._backoff.failed()
                self._report(f"{error.message}; trying again in {wait_s:.0f} s")
                self._sleep(wait_s)
                continue
            if task is None:
                self._sleep(LOOK_S)

    def _join(self, task: Task) -> SeatEnd | None:
        self._reported.clear()
        try:
            end = self._player.play(task, self._should_stop)
        except TrialError as error:
            if self._options.once or self._options.task_id is not None:
                raise
            self._unplayable.add(task.id)
            self._report(f"task {task.id} is left out from now on: {error.message}")
            return None
        if end is None:  # another actor was faster
            self._sleep(_NAP_S)
        return end

    def _is_over(self, task: Task) -> bool:
        """Return whether nothing is left to be done after ``task``."""
        return self._options.once or task.id == self._options.task_id

    def _free_task(self) -> Task | None:
        """Return the oldest task that has a free seat and that this machine may play; None where there is none now."""
        summaries = self._board.tasks()
        for event in self._board.unreadable.drain_events():
            self._report(event)
        wanted = self._options.task_id
        if wanted is not None:
            summaries = [summary for summary in summaries if summary.id == wanted]
            if not summaries or summaries[0].status.is_over:
                how = "is over" if summaries else "is not on the board"
                raise UsageError(f"task {wanted} {how}", "without --task, any task is joined")
        for summary in summaries:
            if summary.id in self._unplayable or not self._options.wants(summary):
                continue
            task = self._described(summary.id)
            if task is not None and self._may_play(task):
                return task
        self._report_once(self._options.nothing)
        return None

    def _described(self, task_id: str) -> Task | None:
        """Return a task, None where it is gone or, unless it is the only one wanted, cannot be read."""
        try:
            return self._board.describe(task_id)
        except UnreadableError as error:
            if self._options.task_id is not None:
                raise
            self._report_once(f"{error.message}; it is left out")
            return None

    def _may_play(self, task: Task) -> bool:
        """Return whether nothing keeps this machine from it; raises UsageError where it is the only task wanted."""
        obstacle = self._player.obstacle(task)
        if obstacle is None:
            return True
        message = f"task {task.id} ({task.name}) {obstacle.message}"
        if self._options.task_id is not None:
            raise UsageError(message, obstacle.hint)
        self._report_once(f"{message}: it is not joined; {obstacle.hint}")
        return False

    def _report_once(self, text: str) -> None:
        """Report what stays true at each look, the first time."""
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._should_stop() and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _NAP_S))
