"""The trainer's connection with its board: a thread that takes messages from the queue and makes news known."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from rlexp.errors import RlexpError, TrialError
from rlexp.joined_actors.weights_message import Newer, blob_name, seal_weights
from rlexp.transport.backoff import Backoff
from rlexp.transport.board import Board, Fenced, Lead, News, SeatHolder, Task, TaskStatus, TrainerBeat
from rlexp.transport.board_errors import BoardLostError
from rlexp.transport.carrier import Carrier
from rlexp.transport.credentials import TrainerKeys

RECEIVE_TIMEOUT_S: Final = 0.05
"""How long the thread waits for messages before it looks whether there are news."""
NEWS_PERIOD_S: Final = 0.02
"""Seconds between two publications of what was received, at least: actors wait for it when their windows are full."""
KEPT_VERSIONS: Final = 2
"""Weights on the board: an actor may still read those before the newest ones."""
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class BoardLink:
    """A task's board, and by what it is known there."""

    board: Board
    """Owned by the thread that uses the link, which closes it."""
    task_id: str
    name: str
    member: str
    """Who trains it: unlike any other process's."""
    keys: TrainerKeys
    """By which the task's messages are verified, and what it publishes is signed."""


@dataclass(frozen=True)
class BoardState:
    """What the thread has learned, replaced as a whole."""

    num_beats: int = 0
    """Answers of the board."""
    seats: tuple[SeatHolder, ...] = ()
    answered_s: float = 0.0
    """When the last answer came, by the thread's clock."""
    num_queued: int | None = None
    is_connected: bool = False
    is_cancelled: bool = False
    num_lost_connections: int = 0


@dataclass
class _Outgoing:
    """What the thread is to make known; guarded by its lock."""

    newer: Newer | None = None
    got: dict[tuple[int, int], int] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    banned: tuple[str, ...] = ()
    changed: bool = True


class BoardThread:
    """Announces a task and leads it, until it is stopped; the messages that it has taken wait for their owner."""

    def __init__(
        self,
        link: BoardLink,
        task: Task,
        capacity: int,
        beat_s: float,
        lease_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take no message from the queue while ``capacity`` of them wait here; begins with ``start``."""
        self.state = BoardState()
        self.num_received = 0
        """Messages that have come so far."""
        self.num_published = 0
        """Versions of the weights that were put on the board."""
        self.num_weights_bytes = 0
        """Of the newest one."""
        self._link, self._task = link, task
        self._capacity = capacity
        self._beat_s, self._lease_s, self._patience_s = beat_s, lease_s, patience_s
        self._clock = clock
        self._lock = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._outgoing = _Outgoing()
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._lead: Lead | None = None
        self._versions: deque[int] = deque()
        self._banned: set[str] = set()
        self._last_newer: Newer | None = None
        self._published_s = -1.0
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)

    def start(self) -> None:
        """Begin; the board is reached in the thread."""
        self._thread.start()

    def take(self, limit: int) -> list[bytes]:
        """Return up to ``limit`` messages; raises what ended the thread."""
        with self._lock:
            if self._error is not None:
                raise self._error
            taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
            self._lock.notify_all()
            return taken

    def wait(self, num_received: int, timeout: float) -> bool:
        """Return whether more than ``num_received`` messages have come so far, after ``timeout`` seconds at most."""
        with self._lock:
            return self._lock.wait_for(lambda: self.num_received > num_received or self._error is not None, timeout)

    def put_weights(self, newer: Newer) -> None:
        """Publish ``newer``, in place of what was given before and has not been published yet."""
        with self._lock:
            self._outgoing.newer, self._outgoing.changed = newer, True

    def put_got(self, got: Mapping[tuple[int, int], int]) -> None:
        """Make known how far each seat's fragments were received; those of other epochs are forgotten."""
        with self._lock:
            if got != self._outgoing.got:
                self._outgoing.got, self._outgoing.changed = dict(got), True

    def put_figures(self, figures: Mapping[str, Any]) -> None:
        """Make ``figures`` known with the next beat."""
        with self._lock:
            self._outgoing.figures = figures

    def put_banned(self, actors: tuple[str, ...]) -> None:
        """Ban ``actors`` on the board, again where it has lost its data."""
        with self._lock:
            if actors != self._outgoing.banned:
                self._outgoing.banned, self._outgoing.changed = actors, True

    def ask_for_beat(self) -> None:
        """Ask the board who holds the seats, soon."""
        with self._lock:
            self._outgoing.changed = True

    def stop(self) -> None:
        """Say on the board that the task has ended, and end the thread; idempotent."""
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        carrier: Carrier | None = None
        try:
            carrier = self._link.board.queue(self._link.task_id)
            self._work(carrier)
            if self._lead is not None:
                self._publish_news()
                self._link.board.finish(self._lead, TaskStatus.ENDED)
        except BoardLostError:
            pass  # while it stops; otherwise _work handles it
        except Exception as error:  # whatever ends the thread ends the trial
            with self._lock:
                self._error = error
                self._lock.notify_all()
        finally:
            if carrier is not None:
                carrier.close()
            self._link.board.close()

    def _work(self, carrier: Carrier) -> None:
        """Receive and publish until the thread is stopped; raises what cannot be waited for."""
        backoff, lost_s = Backoff(crc32(self._link.member.encode())), None
        while not self._stopping.is_set():
            try:
                if self._lead is None or not self.state.is_connected:
                    self._begin()
                self._publish_if_due()
                self._receive(carrier)
            except BoardLostError as error:
                lost_s = self._clock() if lost_s is None else lost_s
                self._lose_connection(error, lost_s)
                self._stopping.wait(backoff.failed())
            else:
                lost_s = None
                backoff.succeeded()

    def _lose_connection(self, error: RlexpError, lost_s: float) -> None:
        state = self.state
        lost = state.num_lost_connections + state.is_connected
        self.state = BoardState(state.num_beats, state.seats, state.answered_s, None, False, False, lost)
        if self._clock() - lost_s > self._patience_s:
            raise TrialError(
                f"the board was away for {self._patience_s:g} s (board.patience_s): {error.message}",
                "rlexp resume continues the run once the board is back",
            )

    def _begin(self) -> None:
        """Announce the task and take the lead, for the first time or again."""
        board, link = self._link.board, self._link
        board.announce(self._task, {holder.index: holder.epoch for holder in self.state.seats})
        lead = board.lead(link.task_id, link.member, self._lease_s, self._lead.epoch if self._lead else 0)
        if lead is None:
            raise TrialError(f"task {link.task_id} has another trainer on the board", "wait until it ends")
        self._lead = lead
        self._banned.clear()
        if self._last_newer is not None:  # the board may have lost it
            self._versions.clear()
            self._put_weights(self._last_newer)
        self._publish_news()

    def _publish_if_due(self) -> None:
        with self._lock:
            newer, self._outgoing.newer = self._outgoing.newer, None
            changed = self._outgoing.changed
        since = self._clock() - self._published_s
        if newer is not None:
            self._last_newer = newer
            self._put_weights(newer)
        elif since < (NEWS_PERIOD_S if changed else self._beat_s):
            return
        self._publish_news()

    def _put_weights(self, newer: Newer) -> None:
        assert self._lead is not None
        blob = seal_weights(self._link.task_id, self._lead.epoch, newer, self._link.keys)
        self._link.board.put_blob(self._lead, blob_name(newer.version), blob)
        if newer.version not in self._versions:
            self._versions.append(newer.version)
        if len(self._versions) > KEPT_VERSIONS:
            self._link.board.drop_blob(self._lead, blob_name(self._versions.popleft()))
        self.num_published += 1
        self.num_weights_bytes = len(blob)

    def _publish_news(self) -> None:
        assert self._lead is not None
        with self._lock:
            outgoing = self._outgoing
            outgoing.changed = False
            banned = outgoing.banned
            news = News(self._versions[-1] if self._versions else -1, dict(outgoing.got), outgoing.figures)
        for actor in banned:
            if actor not in self._banned:
                self._link.board.ban(self._lead, actor)
                self._banned.add(actor)
        self._published_s = self._clock()
        answer = self._link.board.publish(self._lead, news)
        if isinstance(answer, Fenced):
            raise TrialError(
                f"task {self._link.task_id} has another trainer now", "this one was away from the board for too long"
            )
        self._learn(answer)

    def _learn(self, answer: TrainerBeat) -> None:
        state = self.state
        if answer.status is None:  # without data: all is announced again
            lost = state.num_lost_connections + state.is_connected
            self.state = BoardState(state.num_beats, state.seats, state.answered_s, None, False, False, lost)
            return
        self.state = BoardState(
            num_beats=state.num_beats + 1,
            seats=_merged(state.seats, answer.seats),
            answered_s=self._clock(),
            num_queued=answer.num_queued,
            is_connected=True,
            is_cancelled=answer.status is TaskStatus.CANCELLED,
            num_lost_connections=state.num_lost_connections,
        )

    def _receive(self, carrier: Carrier) -> None:
        with self._lock:
            room = self._capacity - len(self._messages)
            if room <= 0:  # what is not taken waits with the actors, whose windows are then full
                self._lock.wait_for(lambda: self._stopping.is_set() or len(self._messages) < self._capacity, 0.05)
                return
            timeout_s = NEWS_PERIOD_S if self._outgoing.changed else RECEIVE_TIMEOUT_S
        messages = carrier.receive(room, timeout_s)
        if messages:
            with self._lock:
                self._messages.extend(messages)
                self.num_received += len(messages)
                self._lock.notify_all()


def _merged(known: tuple[SeatHolder, ...], answered: tuple[SeatHolder, ...]) -> tuple[SeatHolder, ...]:
    """Return the newest holder of each seat: a board that lost its data knows only those that beat since."""
    holders = {holder.index: holder for holder in known}
    for holder in answered:
        before = holders.get(holder.index)
        if before is None or holder.epoch >= before.epoch:
            holders[holder.index] = holder
    return tuple(holders[index] for index in sorted(holders))
