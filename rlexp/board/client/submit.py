"""``rlexp submit``: puts an experiment on a board as a task, or comes back to one, and waits for it.

A Submission waits for a task that others train; it records, shows and evaluates the results meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from zlib import crc32

from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.client.run import RunPlace, SubmittedTask, TaskRun, run_of_task, task_of, task_on_board
from rlexp.board.client.watch import BoardEvaluator, EvaluationThread, TaskNotes, TaskWatch, put
from rlexp.board.demands import network_excess
from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import Backoff, BoardLostError, InvalidMessageError, Task, UnreadableError, is_name
from rlexp.board.messages.credentials import ActorKeys, JoinToken, accepts_task, actor_keys, task_signature, verified
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.board.task import board_keys_of
from rlexp.board.trainer.link import RESULT
from rlexp.cluster.room.machine import this_machine
from rlexp.config.load import Plan
from rlexp.errors import CheckpointError, UsageError
from rlexp.rollout.evaluation import ShouldStop
from rlexp.search.standings import Display
from rlexp.trackers.trackers import Trackers
from rlexp.user_code.trusted_code import TrustedCode

LOOK_S: Final = 1.0
"""Seconds between two looks at the board."""
TICK_S: Final = 0.2
LAST_CHECKPOINT_S: Final = 30.0
"""Seconds that the trainer of a cancelled task may take to save, while it keeps its lease."""
T = TypeVar("T")


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

    def wait(self, should_stop: ShouldStop) -> TaskSummary | None:
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
        self._note_all(news.notes)
        if news.summary is not None:
            self._note_all(self._notes.of(news.summary))
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
        self._note_all(notes)
        for version, figures in results:
            self._run.add_evaluation(figures)
            self._display.on_evaluation(version, figures)

    def _conclude(self, summary: TaskSummary, should_stop: ShouldStop) -> TaskSummary | None:
        """Fetch and evaluate the trainer's last checkpoint, and record the end."""
        if self._evaluations is not None and summary.weights_version >= 0 and summary.status is TaskStatus.ENDED:
            self._evaluations.want(summary.weights_version, is_last=True)
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

    def _note_all(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._display.on_note(None, text)

    def _tried(self, call: Callable[[], T], should_stop: ShouldStop) -> T | None:
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

    def _pause(self, seconds: float, should_stop: ShouldStop) -> None:
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


@dataclass(frozen=True)
class SubmitOptions:
    """The options of a task beside its training."""

    place: RunPlace
    num_episodes: int | None = None
    """Episodes of each evaluation meanwhile; None: no evaluations."""
    waits: bool = True
    token: JoinToken | None = None
    """The token that verifies the trainer's signatures; None: there are no tokens."""


@dataclass(frozen=True)
class Submitted:
    """A submitted task, and its result."""

    task_id: str
    directory: Path | None = None
    """Its run; None if nobody waited, or there was no result."""
    status: TaskStatus | None = None
    """The status at its end; None: it continues."""
    reason: str = ""


class Submitter:
    """Puts tasks on one board, or comes back to them; used by one thread."""

    def __init__(
        self, address: BoardAddress, options: SubmitOptions, display: SubmissionDisplay, should_stop: ShouldStop
    ) -> None:
        """Wait for the end of a task, or until ``should_stop``."""
        self._address = address
        self._options = replace(options, place=replace(options.place, board=address.server))
        self._display, self._should_stop = display, should_stop
        self._shown = str(address.without_passwords())

    def submit(self, plan: Plan) -> Submitted:
        """Put the only trial of ``plan`` on the board.

        Raises UsageError, with nothing created, if it cannot be submitted. Raises BoardError if the board refuses or
        cannot be reached at first.
        """
        submitted, options = task_of(plan), self._options
        player = self._player(submitted)
        with closing(open_board(self._address)) as board:
            board.tasks()  # before anything is created
            if not options.waits:
                put(board, submitted.task)
                self._display.on_submitted(submitted.task.id)
                return Submitted(submitted.task.id)
            with (
                Trackers.started((submitted.trial,), options.place.out, self._display.on_note) as trackers,
                TaskRun.create(submitted, options.place, self._display, trackers) as run,
            ):
                try:
                    put(board, submitted.task)
                except BaseException:
                    run.leave()
                    raise
                self._display.on_submitted(submitted.task.id)
                return self._follow(submitted, board, run, player)

    def attach(self, task_id: str, trusted: TrustedCode) -> Submitted:
        """Wait for an earlier submitted task, in its run or else in a new one.

        Raises UsageError if it is not on the board, or names foreign code that ``trusted`` does not allow.
        """
        place = self._options.place
        with closing(open_board(self._address)) as board:
            task = board.describe(task_id) if is_name(task_id) else None
            if task is None:
                raise UsageError(f"task {task_id} is not on the board", "rlexp tasks lists those that are")
            submitted = task_on_board(task, trusted)
            player = self._player(submitted)
            path = None if place.name is not None else run_of_task(place, task_id)
            if path is None:
                run = TaskRun.create(submitted, place, self._display)
            else:
                run = TaskRun.reopen(path, submitted, self._display)
            with run:
                return self._follow(submitted, board, run, player)

    def _follow(self, submitted: SubmittedTask, board: Board, run: TaskRun, player: BoardEvaluator | None) -> Submitted:
        task = submitted.task
        keys = actor_keys(self._options.token, self._address.password, task.id)
        place = TaskPlace(board, keys, self._shown)
        watch = TaskWatch(board, task, run.last_row, time.monotonic)
        with ExitStack() as stack:
            evaluations = None if player is None else self._evaluations(player, submitted, keys, stack)
            submission = Submission(place, watch, run, self._display, evaluations)
            try:
                summary = submission.wait(self._should_stop)
            except BaseException as error:
                run.leave()
                if isinstance(error, KeyboardInterrupt):
                    self._display.on_leave(task.id, self._shown)
                raise
        if summary is not None:
            return Submitted(task.id, run.directory.path, summary.status, summary.reason)
        directory = None if run.is_empty else run.directory.path
        run.leave()
        self._display.on_leave(task.id, self._shown)
        return Submitted(task.id, directory)

    def _player(self, submitted: SubmittedTask) -> BoardEvaluator | None:
        if self._options.num_episodes is None or not self._options.waits:
            return None
        excess = network_excess(submitted.trial.experiment.config, this_machine().memory_total)
        if excess is not None:
            raise UsageError(f"it cannot be evaluated here: {excess}", "leave out --evaluate")
        return BoardEvaluator(submitted.trial.experiment, submitted.plan.modules)

    def _evaluations(
        self, player: BoardEvaluator, submitted: SubmittedTask, keys: ActorKeys, stack: ExitStack
    ) -> EvaluationThread:
        """Start evaluations with an own connection, so that large weights do not delay the display."""
        max_bytes = int(board_keys_of(submitted.trial.experiment.config).max_weights_mb * 1e6)
        assert self._options.num_episodes is not None
        board = stack.enter_context(closing(open_board(self._address)))
        feed = WeightsFeed(board, submitted.task.id, keys, max_bytes)
        thread = EvaluationThread(player, feed, self._options.num_episodes)
        stack.callback(thread.stop)
        return thread
