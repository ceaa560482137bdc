"""Submission: waits for a task that others train; records, shows and evaluates meanwhile what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar
from zlib import crc32

from rlexp.display import Display
from rlexp.errors import CheckpointError, UsageError
from rlexp.joined_actors.task_records import RESULT
from rlexp.submission.evaluations import EvaluationThread
from rlexp.submission.task_notes import TaskNotes
from rlexp.submission.task_run import TaskRun
from rlexp.submission.task_watch import TaskWatch
from rlexp.transport.backoff import Backoff
from rlexp.transport.board import Board, Task, TaskStatus, TaskSummary
from rlexp.transport.board_errors import BoardLostError
from rlexp.transport.credentials import ActorKeys, accepts_task, task_signature
from rlexp.transport.envelope import InvalidMessageError
from rlexp.transport.signed_blobs import verified
from rlexp.transport.unreadable import UnreadableError

LOOK_S: Final = 1.0
"""Seconds between two looks at the board."""
TICK_S: Final = 0.2
LAST_CHECKPOINT_S: Final = 30.0
"""How long the trainer of a task that was cancelled may take to save, while it keeps its lease."""

T = TypeVar("T")


class SubmissionDisplay(Display, Protocol):
    """Shows a run that is trained elsewhere."""

    def on_submitted(self, task_id: str) -> None:
        """Show by which name the task is known."""

    def on_task(self, task: TaskSummary) -> None:
        """Show how the task does."""

    def on_evaluation(self, version: int, figures: Mapping[str, Any]) -> None:
        """Show how the weights after ``version`` updates did; ``figures`` as under ``evaluation`` in a row."""

    def on_leave(self, task_id: str, board: str) -> None:
        """Show that nobody waits any more, and how to come back."""


@dataclass(frozen=True)
class TaskPlace:
    """A task's board, and what is needed to read there."""

    board: Board
    keys: ActorKeys
    """By which what the trainer leaves there is verified."""
    shown: str
    """The board's address, without its password."""


class Submission:
    """Owns nothing but its place in the task; used by one thread."""

    def __init__(
        self,
        place: TaskPlace,
        watch: TaskWatch,
        run: TaskRun,
        display: SubmissionDisplay,
        evaluations: EvaluationThread | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._place, self._watch, self._run = place, watch, run
        self._display, self._evaluations = display, evaluations
        self._notes = TaskNotes(place.shown)
        self._sleep = sleep
        self._is_verifiable = False
        """Whether the trainer has signed the task with the keys of this place."""
        self._cancelled_s: float | None = None
        self._backoff = Backoff(crc32(str(run.directory.path).encode()))

    def wait(self, should_stop: Callable[[], bool]) -> TaskSummary | None:
        """Follow the task to its end; return its last state, or None where ``should_stop`` ended that.

        A board that is away is tried again, for ever. Raises BoardError where it refuses.
        """
        self._run.begin()
        while not should_stop():
            summary = self._tried(self._look, should_stop)
            if summary is not None and summary.status.is_over and not self._is_ending(summary):
                return self._conclude(summary, should_stop)
            self._pause(LOOK_S, should_stop)
        return None

    def _is_ending(self, summary: TaskSummary) -> bool:
        """Return whether the trainer of a task that was cancelled may still be saving its checkpoint."""
        if summary.status is not TaskStatus.CANCELLED or summary.trainer is None:
            return False
        self._cancelled_s = time.monotonic() if self._cancelled_s is None else self._cancelled_s
        return time.monotonic() - self._cancelled_s < LAST_CHECKPOINT_S

    def _look(self) -> TaskSummary | None:
        news = self._watch.look()
        for text in news.notes:
            self._display.on_note(None, text)
        if news.summary is not None:
            for text in self._notes.of(news.summary):
                self._display.on_note(None, text)
            self._check_trainer(news.summary)
        for row in news.rows:
            # The last evaluation ends after the last row.
            keep = self._run.hold if row["done"] and self._evaluations is not None else self._run.record
            keep(row)
        if news.summary is not None:
            self._display.on_task(news.summary)
        self._evaluate(news.summary)
        return news.summary

    def _check_trainer(self, summary: TaskSummary) -> None:
        """Raise UsageError, once a trainer has the task, where what it leaves could not be verified here."""
        if self._is_verifiable or summary.status not in (TaskStatus.RUNNING, TaskStatus.ENDED):
            return
        try:
            task = self._place.board.describe(summary.id)
        except UnreadableError:  # others may write there too; its trainer writes it again
            return
        if task is None or not task.description:  # no trainer has announced it
            return
        if not accepts_task(task, self._place.keys):
            raise _unverifiable(task, self._place.keys)
        self._is_verifiable = True

    def _evaluate(self, summary: TaskSummary | None) -> None:
        """Show and keep what was evaluated, and ask for the newest weights."""
        if self._evaluations is None:
            return
        if summary is not None and summary.weights_version >= 0 and not summary.status.is_over:
            self._evaluations.want(summary.weights_version)
        results, notes = self._evaluations.take()
        for text in notes:
            self._display.on_note(None, text)
        for result in results:
            self._run.add_evaluation(result.figures)
            self._display.on_evaluation(result.version, result.figures)

    def _conclude(self, summary: TaskSummary, should_stop: Callable[[], bool]) -> TaskSummary | None:
        """Fetch and evaluate what the trainer left, and record the end."""
        if self._evaluations is not None and summary.weights_version >= 0 and summary.status is TaskStatus.ENDED:
            self._evaluations.end_with(summary.weights_version)
            while not self._evaluations.is_over and not should_stop():
                self._pause(TICK_S, should_stop)
            self._evaluate(None)
        problem = None
        if self._run.wants_checkpoint or summary.status is not TaskStatus.ENDED:
            content = self._tried(lambda: self._place.board.get_blob(summary.id, RESULT), should_stop)
            if content is None and should_stop():
                return None
            problem = self._keep(content, summary)
        self._run.finish(summary, problem)
        return replace(summary, status=TaskStatus.FAILED, reason=problem) if problem else summary

    def _keep(self, content: bytes | None, summary: TaskSummary) -> str | None:
        """Keep the last checkpoint; return what is wrong where a task that has ended comes without one."""
        try:
            if content is not None:
                content = verified(content, summary.id, RESULT, self._place.keys)
                self._run.add_result(content, self._place.keys.published_key)
                return None
            problem = "the trainer has left no checkpoint on the board"
        except (CheckpointError, InvalidMessageError) as error:
            problem = f"{error}; to fetch it again: rlexp submit --attach {summary.id} --board {self._place.shown}"
        if summary.status is TaskStatus.ENDED:
            return problem
        if not self._run.is_empty:
            self._display.on_note(None, problem)
        return None

    def _tried(self, call: Callable[[], T], should_stop: Callable[[], bool]) -> T | None:
        """Return what a call to the board returns, once the board can be reached; None where that is given up."""
        while not should_stop():
            try:
                answer = call()
            except BoardLostError as error:
                wait_s = self._backoff.failed()
                self._display.on_note(None, f"{error.message}; trying again in {wait_s:.0f} s")
                self._pause(wait_s, should_stop)
            else:
                self._backoff.succeeded()
                return answer
        return None

    def _pause(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        until_s = time.monotonic() + seconds
        while not should_stop() and (left_s := until_s - time.monotonic()) > 0:
            self._run.directory.write_when_due()
            self._display.tick()
            self._sleep(min(left_s, TICK_S))


def _unverifiable(task: Task, keys: ActorKeys) -> UsageError:
    """Return why the results of a task's trainer cannot be verified with ``keys``. The task goes on."""
    attach = f"rlexp submit --attach {task.id} --token @FILE"
    if not keys.num_signature_bytes:
        return UsageError(f"the trainer of {task.id} signs its results, which only a token verifies", attach)
    if not task_signature(task):
        message = f"the trainer of {task.id} does not sign its results, and a token is given"
        return UsageError(message, "leave out --token and unset RLEXP_BOARD_TOKEN, or give the trainer --keys")
    return UsageError(f"the trainer of {task.id} is not that of the token", f"{attach}, with one of its trainer")
