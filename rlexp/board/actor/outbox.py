"""Outbox: the thread of a joined actor that sends fragments and keeps the seat; its WeightsFeed fetches weights."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final
from zlib import crc32

from rlexp.board.messages.address import QUEUE_OF_BOARD
from rlexp.board.messages.basics import Backoff, BoardLostError, InvalidMessageError
from rlexp.board.messages.credentials import ActorKeys
from rlexp.board.messages.payloads import Newer, Shapes, blob_name, check_form, open_weights
from rlexp.board.messages.window import STANDSTILL_S, SendWindow
from rlexp.board.servers.board import Beat, Board, Fenced, Seat, TaskStatus
from rlexp.board.servers.carriers import ReconnectingCarrier
from rlexp.config.keys.board import BoardConfig

SHORTEST_BEAT_S: Final = 0.02
LONGEST_FULL_BEAT_S: Final = 1.0
WAITED_SHARE: Final = 0.25
"""With half of the window unconfirmed, a heartbeat is due after SHORTEST_BEAT_S; later after this share of the time
since something was sent or confirmed, up to LONGEST_FULL_BEAT_S."""
UNCONFIRMED_BEAT_S: Final = STANDSTILL_S / 4
"""Seconds to the next heartbeat if less is unconfirmed. The next fragment asks too; resends come later."""
STOP_TIMEOUT_S: Final = 10.0
_MORE_THAN_WEIGHTS: Final = 1 << 20
"""Most bytes of the blob of a version beside its weights."""


class WeightsFeed:
    """The newest weights: fetched in the thread that talks with the board, taken in the thread that plays."""

    def __init__(
        self, board: Board, task_id: str, keys: ActorKeys, max_bytes: int, shapes: Shapes | None = None
    ) -> None:
        """Refuse weights of more than ``max_bytes``, and weights that do not fit the network of ``shapes``."""
        self.num_refused = 0
        self.refusal = ""
        self._board, self._task_id, self._keys, self._max_bytes = board, task_id, keys, max_bytes
        self._shapes = shapes
        self._newest: Newer | None = None
        self._changed = threading.Condition()

    @property
    def version(self) -> int:
        """The version fetched last; -1 before the first one."""
        newest = self._newest
        return -1 if newest is None else newest.version

    def fetch(self, version: int) -> None:
        """Fetch ``version`` if it is not here; raises errors of the board. Invalid weights are refused and counted."""
        if version in (-1, self.version):
            return
        try:
            blob = self._board.get_blob(self._task_id, blob_name(version), self._max_bytes + _MORE_THAN_WEIGHTS)
            if blob is None:  # a newer one has replaced it
                return
            newest = open_weights(blob, self._task_id, version, self._keys, self._max_bytes)
            self._check(newest)
        except InvalidMessageError as error:
            self.num_refused += 1
            self.refusal = str(error)
            return
        with self._changed:
            self._newest = newest
            self._changed.notify_all()

    def newest(self, known: int | None) -> Newer | None:
        """Return the newest weights; None if ``known`` is their version or there are none. Never blocks."""
        newest = self._newest
        return None if newest is None or newest.version == known else newest

    def wait(self, timeout: float) -> bool:
        """Return whether there are weights, after at most ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._newest is not None, timeout)

    def _check(self, newest: Newer) -> None:
        """Raise InvalidMessageError for weights of another network, and for older weights."""
        before = self._newest
        if before is not None and (newest.epoch, newest.version) <= (before.epoch, before.version):
            raise InvalidMessageError("weights that are older than those before")
        if self._shapes is not None:
            check_form(newest.weights, self._shapes)


class SeatEnd(Enum):
    """Why an actor leaves its seat."""

    TASK_OVER = "the task is over"
    FENCED = "another actor has the seat"
    STOPPED = "it was stopped"
    NO_TRAINER = "the task has no trainer any more"


class Outbox:
    """Owns an actor's window and its seat, which it gives back when it is closed."""

    def __init__(
        self,
        board: Board,
        seat: Seat,
        feed: WeightsFeed,
        config: BoardConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Beat at least every ``beat_s``, from ``start`` on; leave a task without a trainer after ``patience_s``."""
        self.window = SendWindow(config.window)
        """Other threads may only read it."""
        self.num_bytes = 0
        self.num_dropped = 0
        self.end: SeatEnd | None = None
        """Why nothing can be sent any more."""
        self.is_connected = False
        self._board, self._seat, self._feed = board, seat, feed
        self._queue = board.queue(seat.task_id)
        self._beside: ReconnectingCarrier | None = None
        """The queue, if it is on another server than the board; otherwise fragments go with the heartbeats."""
        if board.queue_kind != QUEUE_OF_BOARD:
            self._queue = self._beside = ReconnectingCarrier(self._queue, crc32(seat.member.encode()), clock=clock)
        self._beat_s, self._patience_s, self._clock = config.beat_s, config.patience_s, clock
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._led_s = clock()
        self._last_beat_s = -config.beat_s
        self._moved_s = clock()
        self._wait_s = SHORTEST_BEAT_S
        self._round_trip_s = 0.0
        self._is_queued = False
        self._is_draining = False
        self._thread = threading.Thread(target=self._run, name=f"seat-{seat.index}", daemon=True)

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of one message; larger fragments are sent in parts."""
        return self._queue.max_bytes

    def start(self) -> None:
        self._thread.start()

    def wait_for_room(self, timeout: float) -> bool:
        """Return whether the window has room, after at most ``timeout`` seconds; False if nothing can be sent any more.

        Raises the error that ended the thread.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.window.has_room or self._is_over(), timeout)
            self.check()
            return self.end is None and self.window.has_room

    def put(self, seal: Callable[[int], list[bytes]]) -> bool:
        """Take the messages that ``seal`` makes of the next number; return False if nothing can be sent any more.

        The window has room. Raises the error that ended the thread.
        """
        with self._changed:
            self.check()
            if self.end is not None:
                return False
            messages = seal(self.window.next_number)
            self.window.put(messages)
            self.num_bytes += sum(map(len, messages))
            self._changed.notify_all()
            return True

    def check(self) -> None:
        """Raise the error that ended the thread, if any."""
        if self._error is not None:
            raise self._error

    def drain(self, timeout: float) -> bool:
        """Return whether the trainer has everything; the wait ends once ``timeout`` seconds confirm nothing more."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()
            while kept := self.window.num_kept:
                if not self._changed.wait_for(partial(self._has_moved, kept), timeout) or self._is_over():
                    return False
            return True

    def _has_moved(self, kept: int) -> bool:
        return self.window.num_kept < kept or self._is_over()

    def _is_over(self) -> bool:
        return self.end is not None or self._error is not None

    def close(self) -> None:
        """End the thread and give the seat back; idempotent."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._work()
            if self.end is not SeatEnd.FENCED:
                self._board.release(self._seat)
        except BoardLostError:
            pass  # the seat's lease expires by itself
        except Exception as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._queue.close()

    def _work(self) -> None:
        backoff = Backoff(crc32(self._seat.member.encode()))
        while not self._closing.is_set() and self.end is None:
            try:
                self._exchange()
            except BoardLostError:
                self.is_connected = False
                self._closing.wait(backoff.failed())
                continue
            backoff.succeeded()
            self._wait()

    def _exchange(self) -> None:
        """Send what the window allows, with a heartbeat; fetch newer weights, then note what is confirmed."""
        started = self._clock()
        with self._changed:
            is_waiting = self._beside is not None and self._beside.is_waiting
            messages = [] if is_waiting else self.window.take(started, self._round_trip_s, is_queued=self._is_queued)
        if self._beside is not None:
            self._beside.send(messages)
            if self._beside.lost is not None:  # messages sent before may be lost too
                with self._changed:
                    self.window.repeat()
        answer = self._board.beat(self._seat, messages if self._beside is None else ())
        now = self._clock()
        if isinstance(answer, Beat):  # first: the next fragment, which may now get room, is played with them
            self._feed.fetch(answer.weights_version)
        with self._changed:
            self._round_trip_s, self._last_beat_s = now - started, now
            self.is_connected = self._beside is None or self._beside.lost is None
            if isinstance(answer, Fenced):
                self.num_dropped = self.window.clear()
                self.end = SeatEnd.FENCED
                self._changed.notify_all()
                return
            self._learn(answer, bool(messages), now)

    def _learn(self, answer: Beat, has_sent: bool, now: float) -> None:
        before = self.window.got
        self.window.acknowledge(answer.got, now)
        self._is_queued = bool(answer.num_queued)
        if has_sent or self.window.got > before:
            self._moved_s = now
        self._wait_s = min(max(WAITED_SHARE * (now - self._moved_s), SHORTEST_BEAT_S), LONGEST_FULL_BEAT_S)
        if answer.status is not None and answer.status.is_over:
            self.end = SeatEnd.TASK_OVER
        if answer.is_led:  # also if the board has lost its data: a trainer restores it
            self._led_s = now
        elif self.end is None and now - self._led_s > self._patience_s:
            self.end = SeatEnd.NO_TRAINER
        if answer.status is TaskStatus.RUNNING and answer.weights_version == -1:
            self._wait_s = min(self._wait_s, 10 * SHORTEST_BEAT_S)  # it is about to start
        self._changed.notify_all()

    def _wait(self) -> None:
        """Wait until there is something to send, or a heartbeat is due."""
        with self._changed:
            was_draining = self._is_draining
            is_away = self._beside is not None and self._beside.lost is not None
            self._changed.wait_for(
                lambda: (
                    self._closing.is_set()
                    or (not is_away and self.window.next_number > self.window.num_sent)
                    or self._is_draining > was_draining
                ),
                max(self._last_beat_s + self._period_s() - self._clock(), 0.0),
            )

    def _period_s(self) -> float:
        """Return the seconds between the last and the next heartbeat: few if somebody waits for its answer."""
        kept = self.window.num_kept
        if self._feed.version == -1 or 2 * kept > self.window.size or (kept and self._is_draining):
            return min(self._wait_s, self._beat_s)
        return min(UNCONFIRMED_BEAT_S, self._beat_s) if kept else self._beat_s
