"""Carriers that wrap others: over sessions with a server, and over a server that may be away."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from rlexp.board.messages.address import QueueAddress
from rlexp.board.messages.basics import Backoff, BoardError, BoardLostError
from rlexp.board.servers.board import Carrier, check_sizes

T = TypeVar("T")
"""The type of a received message."""


class ReconnectingCarrier:
    """A Carrier that loses messages while its server cannot be reached, instead of raising BoardLostError.

    It tries again after 1, 2, 4 … 30 s. Used by one thread.
    """

    def __init__(
        self,
        carrier: Carrier,
        seed: int,
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Own ``carrier``; raise BoardError if its server is away for more than ``patience_s``."""
        self.max_bytes = carrier.max_bytes
        self.lost: BoardLostError | None = None
        """Why messages are lost now."""
        self._carrier, self._patience_s, self._clock = carrier, patience_s, clock
        self._backoff = Backoff(seed)
        self._lost_s = 0.0
        self._due_s = -math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether it waits before the next try."""
        return self.lost is not None and self._clock() < self._due_s

    def send(self, messages: Sequence[bytes]) -> None:
        if not self.is_waiting:
            with self._watched():
                self._carrier.send(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        if self.is_waiting:
            time.sleep(max(min(timeout_s, self._due_s - self._clock()), 0.0))
            return []
        with self._watched():
            return self._carrier.receive(limit, timeout_s)
        return []

    def close(self) -> None:
        self._carrier.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BoardLostError as error:
            now = self._clock()
            self._lost_s = now if self.lost is None else self._lost_s
            self.lost, self._due_s = error, now + self._backoff.failed()
            if now - self._lost_s > self._patience_s:
                message = f"the queue was away for {self._patience_s:g} s: {error.message}"
                raise BoardError(message, "rlexp resume continues the run once the queue is back") from error
        else:
            self.lost = None
            self._backoff.succeeded()


class ServedConnection(ABC, Generic[T]):
    """One connection, served by a thread of its own and used by one other; it stores arrivals and the final error.

    After an error that ended it, another one is opened.
    """

    def __init__(self, address: QueueAddress) -> None:
        self._address = address
        self._changed = threading.Condition()
        self._arrived: deque[T] = deque()
        self._error: BoardError | None = None

    @property
    def has_ended(self) -> bool:
        return self._error is not None

    @abstractmethod
    def check(self) -> None:
        """Wait until it is connected; raises BoardError if it is not, or accepts no messages now."""

    @abstractmethod
    def send(self, messages: Sequence[bytes]) -> None:
        """Hand over ``messages``; a later call raises an error of sending them."""

    @abstractmethod
    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages, after at most ``timeout_s``; raises the error that ended it."""

    @abstractmethod
    def close(self) -> None:
        """End the connection after all messages handed over were sent."""

    def _wait_until(self, is_ready: Callable[[], bool], most_s: float) -> None:
        """Wait for the server; raises the error that ended the connection, also if it is silent. Needs the lock."""
        if not self._changed.wait_for(lambda: is_ready() or self._error is not None, most_s):
            self._error = BoardLostError(f"the queue {self._address} does not answer")
        self._raise_error()

    def _take(self, limit: int, timeout_s: float) -> list[T]:
        """Return up to ``limit`` messages that arrive within ``timeout_s``; raises the final error. Needs the lock."""
        self._changed.wait_for(lambda: bool(self._arrived) or self._error is not None, timeout_s)
        self._raise_error()
        return [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]

    def _end(self, error: BoardError) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class SessionCarrier:
    """A :class:`~rlexp.board.servers.board.Carrier` that opens a session with its first call, and after each error."""

    def __init__(self, open_session: Callable[[], ServedConnection[Any]], max_bytes: int) -> None:
        self._open_session, self.max_bytes = open_session, max_bytes
        self._session: ServedConnection[Any] | None = None

    def send(self, messages: Sequence[bytes]) -> None:
        check_sizes(messages, self.max_bytes)
        self._connected().send(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        return self._connected().take(limit, timeout_s)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _connected(self) -> ServedConnection[Any]:
        """Return the session, a new one if the last one has ended; raises the error that ended it first."""
        if self._session is None:
            self._session = self._open_session()
        try:
            self._session.check()
        except BoardError:
            if self._session.has_ended:
                self.close()
            raise
        return self._session
