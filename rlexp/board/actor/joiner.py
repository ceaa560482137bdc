"""``rlexp join``: finds tasks on a board and plays or trains them, one after another, without torch or Ray.

The Joiner looks for tasks. Its Player is a JoinedTask, which plays a seat, or a trainer of submitted tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol
from zlib import crc32

from rlexp.board.actor.actor import ActorFigures, JoinedActor
from rlexp.board.actor.outbox import SeatEnd
from rlexp.board.demands import actor_excess, number_excess
from rlexp.board.messages.address import QUEUE_NAMES, QUEUE_OF_BOARD
from rlexp.board.messages.basics import Backoff, BannedError, BoardLostError, Task, UnreadableError
from rlexp.board.messages.credentials import (
    TOKEN_VARIABLE,
    ActorKeys,
    JoinToken,
    accepts_task,
    actor_keys,
    task_signature,
)
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.board.task import SeatSpecs, read_description
from rlexp.cluster.room.machine import this_machine
from rlexp.errors import TrialError, UsageError
from rlexp.rollout.evaluation import ShouldStop
from rlexp.rollout.worker import RolloutWorker
from rlexp.user_code.trusted_code import Obstacle, TrustedCode

LOOK_S: Final = 2.0
"""Seconds between two looks for a free seat."""
_NAP_S: Final = 0.2
_HOW_TO_GIVE_A_TOKEN: Final = f"give the one that you got from the trainer: --token @FILE, or {TOKEN_VARIABLE}"
_QUEUE_HINTS: Final = {
    QUEUE_OF_BOARD: "leave out --queue, or write --queue none if RLEXP_QUEUE is set",
    "rabbitmq": "give the address that its trainer uses: --queue amqps://USER@HOST",
    "mqtt": "give the address that its trainer uses: --queue mqtts://USER@HOST",
    "pubsub": "give the topic that its trainer uses: --queue pubsub://PROJECT/TOPIC",
}


class Player(Protocol):
    """Plays tasks, one at a time."""

    nothing_wanted: str
    """The report if no task is wanted."""

    def wants(self, summary: TaskSummary) -> bool:
        """Return whether a task may have work for this player."""

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be played here; None if it may."""

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        """Take a seat and return why it was left in the end; None if no seat is free any more.

        Raises BoardError if the board refuses, and TrialError if the task cannot be played here.
        """


class Joiner:
    """Looks for tasks with a free seat until it is asked to stop. Owned by one process, in its main thread."""

    def __init__(
        self,
        board: Board,
        member: str,
        player: Player,
        report: Callable[[str], None],
        should_stop: ShouldStop,
        task_id: str | None = None,
        once: bool = False,
    ) -> None:
        """``report`` is called with sentences about events; ``member`` must be unique among actors.

        ``task_id`` is the only task that is joined. With ``once``, it ends after the first one in which it has played.
        """
        self._board, self._task_id, self._player = board, task_id, player
        self._wants_one_task = once or task_id is not None
        self._report, self._should_stop = report, should_stop
        self._backoff = Backoff(crc32(member.encode()))
        self._reported: set[str] = set()
        self._unplayable: set[str] = set()

    def run(self) -> None:
        """Join one task after another; return when asked to stop, or with ``once`` after the first one.

        A board that cannot be reached is tried again, for ever. Raises UsageError if the only task that may be joined
        does not exist, and errors that end playing.
        """
        while not self._should_stop():
            try:
                task = self._free_task()
                self._backoff.succeeded()
                if task is not None and self._join(task) is SeatEnd.TASK_OVER and self._wants_one_task:
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
            if self._wants_one_task:
                raise
            self._unplayable.add(task.id)
            self._report(f"task {task.id} is left out from now on: {error.message}")
            return None
        if end is None:  # another actor was faster
            self._sleep(_NAP_S)
        return end

    def _free_task(self) -> Task | None:
        """Return the oldest task with a free seat that this machine may play; None if there is none now."""
        summaries = self._board.tasks()
        for event in self._board.unreadable.drain_events():
            self._report(event)
        if self._task_id is not None:
            summaries = [summary for summary in summaries if summary.id == self._task_id]
            if not summaries or summaries[0].status.is_over:
                how = "is over" if summaries else "is not on the board"
                raise UsageError(f"task {self._task_id} {how}", "without --task, any task is joined")
        for summary in summaries:
            if summary.id in self._unplayable or not self._player.wants(summary):
                continue
            try:
                task = self._board.describe(summary.id)
            except UnreadableError as error:
                if self._task_id is not None:
                    raise
                self._report_once(f"{error.message}; it is left out")
                continue
            if task is not None and self._may_play(task):
                return task
        self._report_once(self._player.nothing_wanted)
        return None

    def _may_play(self, task: Task) -> bool:
        """Return whether this machine may play a task; raises UsageError if it may not and wants no other task."""
        obstacle = self._player.obstacle(task)
        if obstacle is None:
            return True
        message = f"task {task.id} ({task.name}) {obstacle.message}"
        if self._task_id is not None:
            raise UsageError(message, obstacle.hint)
        self._report_once(f"{message}: it is not joined; {obstacle.hint}")
        return False

    def _report_once(self, text: str) -> None:
        """Report a lasting condition once, not at each look."""
        if text not in self._reported:
            self._reported.add(text)
            self._report(text)

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._should_stop() and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _NAP_S))


class ActorView(Protocol):
    """Shows what an actor does."""

    def note(self, text: str) -> None:
        """Show an event."""

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        """Show that a seat was taken."""

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
        """Show the actor's counters; ``epsilon`` is None if it changes over time."""

    def on_left(self, figures: ActorFigures, task: str, why: str) -> None:
        """Show that the seat was left, with the actor's total counters."""


class JoinedTask:
    """Claims seats of one board for one member; used by one thread."""

    nothing_wanted = "no task has a free seat; waiting"

    def __init__(
        self,
        board: Board,
        member: str,
        password: str,
        trusted: TrustedCode,
        view: ActorView,
        token: JoinToken | None = None,
    ) -> None:
        """Derive the keys of messages from the board's ``password`` if there is no ``token``."""
        self._board, self._member, self._password = board, member, password
        self._trusted, self._view, self._token = trusted, view, token
        self._refusal = ""

    @staticmethod
    def wants(summary: TaskSummary) -> bool:
        is_trained = summary.status is TaskStatus.RUNNING and summary.trainer is not None
        return is_trained and summary.num_taken < summary.num_seats

    def obstacle(self, task: Task) -> Obstacle | None:
        """Return why the task may not be played here: another trainer, another version, or code that is not trusted."""
        if not accepts_task(task, self._keys(task)):
            return self._distrust(task)
        excess = number_excess(task.description)
        if excess is not None:
            return _too_much(excess)
        try:
            description = read_description(task)
        except TrialError as error:
            return Obstacle(f"cannot be read: {error.message}", error.hint or "")
        if description.queue != self._board.queue_kind:
            wanted, given = (
                QUEUE_NAMES.get(kind, "a queue that this rlexp does not know")
                for kind in (description.queue, self._board.queue_kind)
            )
            hint = _QUEUE_HINTS.get(description.queue, "install the same version of rlexp at both ends")
            return Obstacle(f"sends its fragments over {wanted}, and this actor over {given}", hint)
        config = description.config
        excess = actor_excess(config, this_machine().memory_total)
        if excess is not None:
            return _too_much(excess)
        return self._trusted.obstacle(description.env, config.env_config, description.imports, config.user_parts())

    def play(self, task: Task, should_stop: ShouldStop) -> SeatEnd | None:
        description = read_description(task)
        specs = SeatSpecs(description, self._trusted.modules)  # First: a seat is not held while envs are tried.
        try:
            seat = self._board.claim(task.id, self._member, description.board.lease_s)
        except BannedError as error:
            raise TrialError(error.message, error.hint) from error
        if seat is None:
            return None
        self._refusal = ""
        self._view.on_seat(seat.index, task.num_seats, task.id, description.env)
        actor = JoinedActor(
            self._board,
            seat,
            description.board,
            self._keys(task),
            lambda seat: RolloutWorker(specs.spec(seat)),
            specs.weights_shapes,
        )
        end = actor.run(should_stop, partial(self._report, specs.constant_epsilon(seat.index)))
        self._view.on_left(actor.figures(), task.id, end.value)
        return end

    def _report(self, epsilon: float | None, figures: ActorFigures) -> None:
        if figures.weights_refusal != self._refusal:
            self._refusal = figures.weights_refusal
            self._view.note(f"weights on the board are refused: {self._refusal}")
        self._view.on_figures(figures, epsilon)

    def _keys(self, task: Task) -> ActorKeys:
        return actor_keys(self._token, self._password, task.id)

    def _distrust(self, task: Task) -> Obstacle:
        """Return why a task may not be what its trainer announced; None if nothing shows that here."""
        if self._token is None:
            return Obstacle("takes only actors with a join token", _HOW_TO_GIVE_A_TOKEN)
        if not task_signature(task):
            return Obstacle("is not signed, and this actor has a token", "its trainer needs the master key: --keys")
        return Obstacle("is not signed by the trainer of this actor's token", "ask the trainer for a token of its own")


def _too_much(excess: str) -> Obstacle:
    return Obstacle(f"asks for too much: {excess}", "its trainer has to ask for less")
