"""Submission: waits for a task that others train; records, shows and evaluates its results meanwhile.

A TaskWatch looks at the board and puts its rows in order; TaskNotes say what has changed between two looks.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar
from zlib import crc32

from rlexp.board.client.evaluations import EvaluationThread
from rlexp.board.client.run import TaskRun
from rlexp.board.messages.basics import Backoff, BoardError, BoardLostError, InvalidMessageError, Task, UnreadableError
from rlexp.board.messages.credentials import ActorKeys, accepts_task, task_signature, verified
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.board.trainer.link import MOST_AT_ONCE, RESULT
from rlexp.errors import CheckpointError, UsageError
from rlexp.files import parse_json
from rlexp.runs.rows import is_row
from rlexp.search.standings import Display

PATIENCE_S: Final = 60.0
"""Seconds for which the trainer of a task that the board lost may announce it again; then it is submitted again."""
QUEUED_S: Final = 5.0
"""Seconds after which the display says that no trainer has taken a task."""
MOST_PAUSE_S: Final = 600.0
"""Most seconds between two resubmissions of a lost task; they begin with a second, and double."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the board."""
TICK_S: Final = 0.2
LAST_CHECKPOINT_S: Final = 30.0
"""Seconds that the trainer of a cancelled task may take to save, while it keeps its lease."""
T = TypeVar("T")


@dataclass(frozen=True)
class TaskNews:
    """The news since the last look."""

    summary: TaskSummary | None
    """None: the board has lost the task, or its state cannot be read."""
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


class TaskWatch:
    """Follows one task; used by one thread."""

    def __init__(self, board: Board, task: Task, last_row: dict[str, Any] | None, clock: Callable[[], float]) -> None:
        """Begin after ``last_row``, the newest recorded one, if the board still has it."""
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
        """Return the news; raises errors of the board."""
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
        """Return whether the board has the task, although it does not list it."""
        try:
            return self._board.describe(self._task.id) is not None
        except UnreadableError:
            return True

    def _wait_for_state(self) -> tuple[str, ...]:
        """Wait for a task that the board has but does not list; raises BoardError after PATIENCE_S."""
        now, first = self._clock(), self._unreadable_s is None
        self._unreadable_s = now if self._unreadable_s is None else self._unreadable_s
        if now - self._unreadable_s > PATIENCE_S:
            hint = "install the same version of rlexp at all ends, or ask whoever runs the board; --attach comes back"
            raise BoardError(f"the state of task {self._task.id} on the board cannot be read", hint)
        text = f"the board has the task, but not what can be read of its state; waiting up to {PATIENCE_S:.0f} s for it"
        return (text,) if first else ()

    def _submit_again(self) -> tuple[str, ...]:
        """Submit a lost task again: at once if no trainer had it, else after PATIENCE_S.

        The pause grows each time that the board loses the task.
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
        """Return the rows after the last one, and what happened if the board has lost that one."""
        overlap = max(self._next - 1, 0)
        numbered = self._board.rows(self._task.id, overlap)
        if self._next and numbered and numbered[0] == (overlap, self._last_text):
            numbered = numbered[1:]
        elif self._next and (not numbered or numbered[0][0] <= overlap):  # The board lost its data, so these are new.
            self._next = 0
            numbered = self._board.rows(self._task.id, 0)
        if not numbered:
            return [], ()
        missed = numbered[0][0] - self._next
        self._next, self._last_text = numbered[-1][0] + 1, numbered[-1][1]
        notes = (f"{missed:,} results are not on the board any more",) if missed > 0 else ()
        return [text for _, text in numbered], notes

    def _not_repeated(self, texts: list[str]) -> list[str]:
        """Return the rows without repeated ones, as a trainer sends rows again if an answer is lost."""
        new = []
        for text in texts:
            if text not in self._recent:
                new.append(text)
                self._recent.append(text)
        return new

    def _not_recorded(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows after the recorded one, with the first rows; all rows if it is not among them."""
        if self._has_begun or not rows:
            return rows
        self._has_begun = True
        known = [index for index, row in enumerate(rows) if _same(row, self._last_row)]
        return rows[known[-1] + 1 :] if known else rows


def put(board: Board, task: Task) -> None:
    """Submit a task; if an earlier answer was lost, the board may have it already."""
    try:
        board.submit(task)
    except BoardLostError:
        raise
    except BoardError:
        there = board.describe(task.id)
        if there is None or there.file != task.file:
            raise


def _same(row: dict[str, Any], recorded: dict[str, Any] | None) -> bool:
    """Return whether two rows are of the same moment; the recorded one may have evaluations added."""
    names = ("training_iteration", "timesteps_total", "timestamp")
    return recorded is not None and all(row.get(name) == recorded.get(name) for name in names)


def _row_of(text: str) -> dict[str, Any] | None:
    """Return the row in a trainer's text; None if the text is not a row."""
    try:
        row = parse_json(text)
        json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair raises, as no file can hold it
    except ValueError:
        return None
    return row if isinstance(row, dict) and is_row(row) else None


class TaskNotes:
    """Compares each line of the list of tasks with the previous one; owned by one submission."""

    def __init__(self, board: str) -> None:
        """Initialise; ``board`` is the address for a trainer to join, without its password."""
        self._board = board
        self._before: TaskSummary | None = None
        self._waits_for_trainer = False

    def of(self, now: TaskSummary) -> list[str]:
        """Return the notes, a sentence each."""
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


class SubmissionDisplay(Display, Protocol):
    """Shows a run that is trained elsewhere."""

    def on_submitted(self, task_id: str) -> None:
        """Show the name of the task."""

    def on_task(self, task: TaskSummary) -> None:
        """Show the progress of the task."""

    def on_evaluation(self, version: int, figures: Mapping[str, Any]) -> None:
        """Show the evaluation after ``version`` updates; ``figures`` as under ``evaluation`` in a row."""

    def on_leave(self, task_id: str, board: str) -> None:
        """Show that nobody waits any more, and how to attach again."""


@dataclass(frozen=True)
class TaskPlace:
    """A task's board, and the keys to read there."""

    board: Board
    keys: ActorKeys
    """The keys that verify what the trainer puts on the board."""
    shown: str
    """The board's address, without its password."""


class Submission:
    """Follows one task; used by one thread."""

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
        """Whether the trainer signed the task with the keys of this place."""
        self._cancelled_s: float | None = None
        self._backoff = Backoff(crc32(str(run.directory.path).encode()))

    def wait(self, should_stop: Callable[[], bool]) -> TaskSummary | None:
        """Follow the task to its end; return its last state, or None if ``should_stop`` ended the wait.

        A board that is away is tried again, for ever. Raises BoardError if it refuses.
        """
        self._run.begin()
        while not should_stop():
            summary = self._tried(self._look, should_stop)
            if summary is not None and summary.status.is_over and not self._is_ending(summary):
                return self._conclude(summary, should_stop)
            self._pause(LOOK_S, should_stop)
        return None

    def _is_ending(self, summary: TaskSummary) -> bool:
        """Return whether the trainer of a cancelled task may still be saving its checkpoint."""
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
        """Raise UsageError once the task has a trainer whose results cannot be verified here."""
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
        """Show and store new evaluations, and ask for the newest weights."""
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
        """Fetch and evaluate the trainer's last checkpoint, and record the end."""
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
        """Store the last checkpoint; return the problem if an ended task has none."""
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
        """Return the result of a call once the board can be reached; None if ``should_stop`` ends the tries."""
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
    """Return why the results of a task's trainer cannot be verified with ``keys``. The task continues."""
    attach = f"rlexp submit --attach {task.id} --token @FILE"
    if not keys.num_signature_bytes:
        return UsageError(f"the trainer of {task.id} signs its results, which only a token verifies", attach)
    if not task_signature(task):
        message = f"the trainer of {task.id} does not sign its results, and a token is given"
        return UsageError(message, "leave out --token and unset RLEXP_BOARD_TOKEN, or give the trainer --keys")
    return UsageError(f"the trainer of {task.id} did not issue the token", f"{attach}, with one of its trainer")
