"""BoardThread: the trainer's connection with its board, which receives messages from the queue and publishes news.

It owns the PublishedWeights, the versions of a task's weights that are on the board.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from zlib import crc32

from rlexp.board.messages.address import QUEUE_OF_BOARD
from rlexp.board.messages.basics import Backoff, BoardLostError, Task
from rlexp.board.messages.payloads import Newer, blob_name, seal_weights
from rlexp.board.servers.board import Carrier, Fenced, Lead, News, TaskStatus
from rlexp.board.servers.carriers import ReconnectingCarrier
from rlexp.board.trainer.link import BoardLink, BoardState
from rlexp.config.keys.board import BoardConfig
from rlexp.errors import TrialError

KEPT_VERSIONS: Final = 2
"""Number of versions that are kept, as an actor may still read older ones."""
RECEIVE_TIMEOUT_S: Final = 0.05
"""Seconds that the thread waits for messages before it checks for news."""
NEWS_PERIOD_S: Final = 0.02
"""Least seconds between two publications of what was received; actors with full windows wait for it."""
STOP_TIMEOUT_S: Final = 10.0
INBOX_SHARE: Final = 2
"""Messages per seat that wait in the trainer's memory; more wait in the queue, and with the actors."""


class PublishedWeights:
    """Owned by the thread that talks with the board."""

    def __init__(self, link: BoardLink) -> None:
        self.num_published = 0
        """Versions that were put there."""
        self.num_bytes = 0
        """Bytes of the newest one."""
        self._link = link
        self._versions: deque[int] = deque()
        self._newest: Newer | None = None

    @property
    def version(self) -> int:
        """The newest version that is there; -1 before the first."""
        return self._versions[-1] if self._versions else -1

    def put(self, lead: Lead, newer: Newer) -> None:
        """Put ``newer`` there, and remove versions older than KEPT_VERSIONS."""
        self._newest = newer
        blob = seal_weights(self._link.task_id, lead.epoch, newer, self._link.keys)
        self._link.board.put_blob(lead, blob_name(newer.version), blob)
        if newer.version not in self._versions:
            self._versions.append(newer.version)
        if len(self._versions) > KEPT_VERSIONS:
            self._link.board.drop_blob(lead, blob_name(self._versions.popleft()))
        self.num_published += 1
        self.num_bytes = len(blob)

    def put_again(self, lead: Lead) -> None:
        """Put the newest version there again, as the board may have lost it."""
        if self._newest is not None:
            self.put(lead, self._newest)


@dataclass
class _Outgoing:
    """What the thread will publish; guarded by its lock."""

    newer: Newer | None = None
    got: dict[tuple[int, int], int] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    banned: tuple[str, ...] = ()
    changed: bool = True


class BoardThread:
    """Announces a task and leads it until it is stopped; received messages wait for their owner."""

    def __init__(
        self, link: BoardLink, task: Task, config: BoardConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Receive nothing while INBOX_SHARE messages per seat, or a window, wait here; start with ``start``."""
        self.state = BoardState()
        self.num_received = 0
        self.weights = PublishedWeights(link)
        """Other threads may only read it."""
        self.unreadable = link.board.unreadable
        self._link, self._task, self._records, self._stopping = link, task, link.records, link.records.stopping
        self._capacity = max(INBOX_SHARE * config.actors, config.window)
        self._beat_s, self._lease_s, self._patience_s = config.beat_s, config.lease_s, config.patience_s
        self._clock = clock
        self._lock = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._outgoing = _Outgoing()
        self._error: Exception | None = None
        self._lead: Lead | None = None
        self._began_s: float | None = None
        self._banned: set[str] = set()
        self._published_s = -1.0
        self._has_received = False
        self._seed = crc32(link.member.encode())
        self._thread = threading.Thread(target=self._run, name="board", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, limit: int) -> list[bytes]:
        """Return up to ``limit`` messages; raises the error that ended the thread."""
        with self._lock:
            if self._error is not None:
                raise self._error
            taken = [self._messages.popleft() for _ in range(min(limit, len(self._messages)))]
            self._lock.notify_all()
            return taken

    @property
    def has_messages(self) -> bool:
        return bool(self._messages)

    def wait(self, num_received: int, timeout: float) -> bool:
        """Return whether more than ``num_received`` messages have arrived, after at most ``timeout`` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: self.num_received > num_received or self._error is not None, timeout)

    def put_weights(self, newer: Newer) -> None:
        """Publish ``newer``, in place of earlier weights that are not published yet."""
        with self._lock:
            self._outgoing.newer, self._outgoing.changed = newer, True

    def put_received(
        self, got: Mapping[tuple[int, int], int], banned: tuple[str, ...], *, names_are_missing: bool
    ) -> None:
        """Publish how far each seat's fragments were received, and which actors are banned.

        Positions of other epochs are forgotten. Actors are banned again if the board has lost its data.
        ``names_are_missing``: the board is asked soon who holds the seats.
        """
        with self._lock:
            outgoing = self._outgoing
            if (got, banned) != (outgoing.got, outgoing.banned):
                outgoing.got, outgoing.banned, outgoing.changed = dict(got), banned, True
            outgoing.changed |= names_are_missing

    def put_figures(self, figures: Mapping[str, Any]) -> None:
        """Publish ``figures`` with the next heartbeat."""
        with self._lock:
            self._outgoing.figures = figures

    def stop(self) -> None:
        """Set the end of the task on the board, and end the thread; idempotent."""
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        carrier: Carrier | None = None
        try:
            carrier = self._link.board.queue(self._link.task_id)
            if self._link.board.queue_kind != QUEUE_OF_BOARD:  # even without the other server, the lead must be kept
                carrier = ReconnectingCarrier(carrier, self._seed, self._patience_s, self._clock)
            self._work(carrier)
            if self._lead is not None:
                self._publish_news()
                self._end(self._lead)
        except BoardLostError:
            pass  # while it stops; otherwise _work handles it
        except Exception as error:  # any error that ends the thread ends the trial
            with self._lock:
                self._error = error
                self._lock.notify_all()
        finally:
            if carrier is not None:
                carrier.close()
            self._link.board.close()

    def _work(self, carrier: Carrier) -> None:
        """Receive and publish until the thread is stopped; raises errors that waiting does not cure."""
        backoff, lost_s = Backoff(self._seed), None
        while not self._stopping.is_set():
            try:
                if (self._lead is None or not self.state.is_connected) and not self._begin():
                    self._stopping.wait(self._beat_s)
                    continue
                self._publish_if_due()
                self._put_rows()
                self._receive(carrier)
            except BoardLostError as error:
                lost_s = self._clock() if lost_s is None else lost_s
                self.state = self.state.disconnected()
                if self._clock() - lost_s > self._patience_s:
                    message = f"the board was away for {self._patience_s:g} s (board.patience_s): {error.message}"
                    raise TrialError(message, "rlexp resume continues the run once the board is back") from error
                self._stopping.wait(backoff.failed())
            else:
                lost_s = None
                backoff.succeeded()

    def _begin(self) -> bool:
        """Announce the task and take the lead, first or again; return False if it is not free yet."""
        board, link = self._link.board, self._link
        board.announce(self._task, {holder.index: holder.epoch for holder in self.state.seats})
        before = link.epoch if self._lead is None else self._lead.epoch
        lead = board.lead(link.task_id, link.member, self._lease_s, before)
        if lead is None:
            self._wait_for_lead()
            return False
        if self._lead is None:
            self.state = replace(self.state, first_epoch=lead.epoch, received=board.received(link.task_id))
        self._lead, self._began_s = lead, None
        self._records.lead = lead
        self._banned.clear()
        self.weights.put_again(lead)
        self._publish_news()
        return True

    def _wait_for_lead(self) -> None:
        """Raise TrialError unless the lease of an ended trainer may still expire.

        Do not raise if nobody else has the task: it was deleted after its announcement, and is announced again.
        """
        now, task_id = self._clock(), self._link.task_id
        self._began_s = now if self._began_s is None else self._began_s
        task = next((task for task in self._link.board.tasks() if task.id == task_id), None)
        if task is not None and task.status.is_over:
            raise TrialError(f"task {task_id} is over on the board", "rlexp resume begins another task")
        has_other = task is not None and task.trainer not in (None, self._link.member)
        is_lost = self._lead is not None and has_other
        if is_lost or now - self._began_s > self._lease_s + self._link.lead_wait_s:
            raise TrialError(f"task {task_id} has another trainer on the board", "wait until it ends")

    def _end(self, lead: Lead) -> None:
        """Tell the board how the task ended, or that another trainer is to continue it."""
        while self._put_rows():
            pass
        if self._records.status is TaskStatus.RUNNING:
            self._link.board.give_up(lead)
        else:
            self._link.board.finish(lead, self._records.status, self._records.reason)

    def _put_rows(self) -> bool:
        """Put the next result rows there; return False if there are none, or another has the lead."""
        rows = self._records.first_rows()
        assert self._lead is not None
        if not rows or not self._link.board.put_rows(self._lead, rows):
            return False
        self._records.drop_rows(len(rows))
        return True

    def _publish_if_due(self) -> None:
        with self._lock:
            newer, self._outgoing.newer = self._outgoing.newer, None
            changed = self._outgoing.changed
        since = self._clock() - self._published_s
        if newer is not None:
            assert self._lead is not None
            self.weights.put(self._lead, newer)
        elif since < (NEWS_PERIOD_S if changed else self._beat_s):
            return
        self._publish_news()

    def _publish_news(self) -> None:
        assert self._lead is not None
        with self._lock:
            outgoing = self._outgoing
            outgoing.changed = False
            banned = outgoing.banned
            figures = {**outgoing.figures, **self._records.figures}
            news = News(self.weights.version, dict(outgoing.got), figures)
        for actor in banned:
            if actor not in self._banned:
                self._link.board.ban(self._lead, actor)
                self._banned.add(actor)
        self._published_s = self._clock()
        answer = self._link.board.publish(self._lead, news)
        if isinstance(answer, Fenced):
            message = f"task {self._link.task_id} has another trainer now"
            raise TrialError(message, "this one was away from the board for too long")
        if answer.status is None:  # without data: all is announced again
            self.state = self.state.disconnected()
        else:
            self.state = self.state.after(answer, self._clock())
            self._records.is_over = answer.status.is_over

    def _receive(self, carrier: Carrier) -> None:
        with self._lock:
            room = self._capacity - len(self._messages)
            if room <= 0:  # messages that are not received wait with the actors, whose windows are then full
                self._lock.wait_for(lambda: self._stopping.is_set() or len(self._messages) < self._capacity, 0.05)
                return
            has_news = self._outgoing.changed or self._has_received
            timeout_s = NEWS_PERIOD_S if has_news else RECEIVE_TIMEOUT_S
        messages = carrier.receive(room, timeout_s)
        self._has_received = bool(messages)  # soon their actors are to know it
        if messages:
            with self._lock:
                self._messages.extend(messages)
                self.num_received += len(messages)
                self._lock.notify_all()
