"""``rlexp submit``: puts an experiment on a board as a task, or comes back to one, and waits for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.client.evaluations import BoardEvaluator, EvaluationThread
from rlexp.board.client.run import RunPlace, SubmittedTask, TaskRun, described, run_of_task, task_of, task_on_board
from rlexp.board.client.submission import Submission, SubmissionDisplay, TaskPlace, TaskWatch, put
from rlexp.board.demands import network_excess
from rlexp.board.messages.address import BoardAddress
from rlexp.board.messages.basics import is_name
from rlexp.board.messages.credentials import ActorKeys, JoinToken, actor_keys
from rlexp.board.servers import open_board
from rlexp.board.servers.board import Board, TaskStatus
from rlexp.board.task import board_keys_of
from rlexp.cluster.room.machine import this_machine
from rlexp.config.load import Plan
from rlexp.errors import UsageError
from rlexp.trackers.trackers import Trackers
from rlexp.user_code.trusted_code import TrustedCode

ShouldStop = Callable[[], bool]


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
    """The reason of a failure or cancellation."""


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
            found = board.describe(task_id) if is_name(task_id) else None
            submitted = task_on_board(described(found, task_id), trusted)
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
