"""Carriers over servers with which a client library keeps a session: a connection, and a thread that serves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rlexp.transport.board_errors import BoardError
from rlexp.transport.carriers.memory import check_sizes


class Session(Protocol):
    """One connection, used by one thread; after an error that ended it another one is opened."""

    @property
    def has_ended(self) -> bool:
        """Whether the connection is of no use any more."""
        ...

    def check(self) -> None:
        """Wait until it is connected; raises BoardError where it is not, or takes nothing now."""
        ...

    def send(self, messages: Sequence[bytes]) -> None:
        """Hand over ``messages``; an error is that of a later call."""
        ...

    def take(self, limit: int, timeout_s: float) -> list[bytes]:
        """Return up to ``limit`` messages, after ``timeout_s`` at most; raises what ended it."""
        ...

    def close(self) -> None:
        """End the connection, after what was handed over was sent."""
        ...


class SessionCarrier:
    """A :class:`~rlexp.transport.carrier.Carrier` that opens a session with its first call, and after each error."""

    def __init__(self, open_session: Callable[[], Session], max_bytes: int) -> None:
        """Take messages of ``max_bytes`` at most."""
        self._open_session = open_session
        self._max_bytes = max_bytes
        self._session: Session | None = None

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def send(self, messages: Sequence[bytes]) -> None:
        check_sizes(messages, self._max_bytes)
        self._connected().send(messages)

    def receive(self, limit: int, timeout_s: float) -> list[bytes]:
        return self._connected().take(limit, timeout_s)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _connected(self) -> Session:
        """Return the session, another one where the last one has ended; raises the error that ended it first."""
        if self._session is None:
            self._session = self._open_session()
        try:
            self._session.check()
        except BoardError:
            if self._session.has_ended:
                self.close()
            raise
        return self._session
