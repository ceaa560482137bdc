"""Whether a server of a cluster can still be reached: connections are tried again and again, and none is waited for."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable

from rlexp.errors import ResourceError

LOOPBACK = "127.0.0.1"
INTERVAL_S = 2.0
"""Between two tries."""
TIMEOUT_S = 5.0
"""How long a connection may take; a machine that is gone does not answer at all."""
LOST_AFTER_S = 30.0
"""How long all tries must have failed. A head that is restarted comes back sooner; after 60 s Ray ends this process."""
LEAST_FAILURES = 4


class Reachability:
    """Owns the socket of the try in progress, until ``close``."""

    def __init__(
        self, host: str, port: int, clock: Callable[[], float] = time.monotonic, interval_s: float = INTERVAL_S
    ) -> None:
        """Look up ``host``, which may take a while; nothing else here does."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._family = family
        self._address = address
        self._clock = clock
        self._interval_s = interval_s
        self._was_reached = False
        self._socket: socket.socket | None = None
        self._next_s = clock() + interval_s
        self._began_s = 0.0
        self._failures = 0
        self._failing_since_s = 0.0

    def is_lost(self) -> bool:
        """Try further; return whether the server could not be reached for LOST_AFTER_S.

        It is to be called a few times a second.
        """
        now = self._clock()
        self._try(now)
        return self._failures >= LEAST_FAILURES and now >= self._failing_since_s + LOST_AFTER_S

    def silent_s(self) -> float:
        """Try further; return for how long the server has not answered, 0 where it never did.

        It is to be called a few times a second.
        """
        now = self._clock()
        self._try(now)
        if not self._was_reached or (self._socket is None and self._failures == 0):
            return 0.0
        return now - (self._failing_since_s if self._failures else self._began_s)

    def close(self) -> None:
        """Give up the try in progress."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _try(self, now: float) -> None:
        if self._socket is None:
            if now >= self._next_s:
                self._begin(now)
        elif self._is_writable():
            self._end(now, self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
        elif now > self._began_s + TIMEOUT_S:
            self._end(now, False)

    def _begin(self, now: float) -> None:
        self._began_s = now
        try:
            self._socket = socket.socket(self._family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(self._address)
        except OSError:  # too many open files say nothing about the server
            self.close()
            self._next_s = now + self._interval_s
            return
        if code not in (0, errno.EINPROGRESS):
            self._end(now, False)

    def _is_writable(self) -> bool:
        poll = select.poll()  # not select(), which takes no descriptors above 1023
        poll.register(self._socket.fileno() if self._socket is not None else -1, select.POLLOUT)
        return bool(poll.poll(0))

    def _end(self, now: float, is_reached: bool) -> None:
        self.close()
        self._next_s = now + self._interval_s
        if is_reached:
            self._was_reached = True
            self._failures = 0
        else:
            self._failing_since_s = self._began_s if self._failures == 0 else self._failing_since_s
            self._failures += 1


def check_loopback() -> None:
    """Raise ResourceError where processes of this machine cannot connect to each other, as those of Ray do."""
    with socket.socket() as listener, socket.socket() as connection:
        try:
            listener.bind((LOOPBACK, 0))
            listener.listen(1)
            connection.settimeout(TIMEOUT_S)
            connection.connect(listener.getsockname())
        except OSError as error:
            message = f"no process can connect to {LOOPBACK} ({error.strerror or error}), which Ray needs: there is no"
            hint = "ip link set lo up, as root of the container or network namespace"
            raise ResourceError(f"{message} usable loopback interface", hint) from error
