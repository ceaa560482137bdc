"""``rlexp join --processes N``: the command starts itself N times, and supervises these processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rlexp.board.messages.errors import Backoff
from rlexp.processes.child import PARENT_VARIABLE, Child, own_environment, own_program, start_child
from rlexp.processes.signals import DrainRequest

END_TIMEOUT_S: Final = 30.0
"""Seconds that actors may take to leave when asked to; then they are killed."""
QUICK_S: Final = 60.0
"""Seconds: a process that a signal ends sooner has failed quickly."""
MOST_QUICK: Final = 5
"""Quick failures in a row after which a process is not started again."""
_POLL_S: Final = 0.2


@dataclass(frozen=True)
class JoinedProcesses:
    """The processes to start: their command, number and time limit."""

    command: Sequence[str]
    number: int
    role: str
    """The word for a process in messages."""
    limit_s: float | None = None
    """Seconds after which each process ends by itself; one that is started again gets the remaining ones."""


def join_command(words: Sequence[str]) -> list[str]:
    """Return the command of ``rlexp join`` with ``words``."""
    return own_program("rlexp", "join", *words)


def join_in_processes(joined: JoinedProcesses, report: Callable[[str], None]) -> int:
    """Run the processes until each has ended; return the exit code of the first that failed.

    A process that a signal ends is started again after a while; one that ends by itself has said why. A signal to this
    process is passed on to all of them, once. They have their own process group: a terminal sends them no signal.
    """
    with DrainRequest() as request:
        deadline_s = None if joined.limit_s is None else time.monotonic() + joined.limit_s
        actors = [_Supervised(joined, index, deadline_s, report) for index in range(joined.number)]
        try:
            for actor in actors:
                actor.start()
            return _codes(actors, request)
        finally:
            for actor in actors:
                actor.kill()
            for actor in actors:
                actor.reap()


def _codes(actors: Sequence[_Supervised], request: DrainRequest) -> int:
    """Wait until all have ended or their time is over; return the exit code of all of them together."""
    deadline_s: float | None = None
    while True:
        is_asked = request()
        if is_asked and deadline_s is None:
            deadline_s = time.monotonic() + END_TIMEOUT_S
            for actor in actors:
                actor.send(request.signal or signal.SIGTERM)
        for actor in actors:  # all of them: one that is not asked for its exit code stays a zombie
            actor.look(may_start=not is_asked)
        codes = [actor.code for actor in actors]
        if None not in codes or (deadline_s is not None and time.monotonic() > deadline_s):
            return request.exit_code or next((code for code in codes if code), 0)
        time.sleep(_POLL_S)


class _Supervised:
    """Owns one of the processes, and the processes that are started after it in its place."""

    def __init__(
        self, joined: JoinedProcesses, index: int, deadline_s: float | None, report: Callable[[str], None]
    ) -> None:
        self.code: int | None = None
        """The exit code; None until the process has ended for good."""
        self._name = f"{joined.role} {index + 1} of {joined.number}"
        self._command, self._deadline_s, self._report = list(joined.command), deadline_s, report
        self._variables = {**own_environment(os.environ), PARENT_VARIABLE: str(os.getpid())}
        self._backoff = Backoff(index)
        self._num_quick = 0
        self._process: Child | None = None
        self._started_s = self._due_s = 0.0

    def start(self) -> None:
        """Start the process with the time that is left; do nothing if none is left."""
        self._started_s = time.monotonic()
        command = self._command
        if self._deadline_s is not None:
            left_s = int(self._deadline_s - self._started_s + 0.5)
            if left_s < 1:
                self.code = 0
                return
            command = [*command, "--for", f"{left_s}s"]
        self._process = start_child(command, environment=self._variables)

    def send(self, number: int) -> None:
        """Send the process a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def look(self, may_start: bool) -> None:
        """Notice the end of the process, and start the next one if that is due."""
        if self.code is not None:
            return
        if self._process is None:
            if not may_start:
                self.code = 0
            elif time.monotonic() >= self._due_s:
                self._start_again()
        elif (code := self._process.poll()) is not None:
            self._process = None
            if code >= 0 or not may_start:
                self._end(code)
            else:
                number = signal.Signals(-code)
                self._start_later(f"{self._name} ended by signal {number.value} ({number.name})", 128 + number)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def reap(self) -> None:
        """Wait for the end of the killed process."""
        if self._process is not None:
            self._process.wait()

    def _end(self, code: int) -> None:
        self.code = code if code >= 0 else 128 - code
        if code > 0 and code not in _ASKED:
            self._report(f"{self._name} ended with exit code {code}; it is not started again")

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:  # no memory, likely what the one before was killed for; the others go on
            self._start_later(f"{self._name} could not be started ({error.strerror})", 1)

    def _start_later(self, what: str, code: int) -> None:
        """Start another process after a while; after too many quick failures start none and keep ``code``."""
        if time.monotonic() - self._started_s >= QUICK_S:
            self._num_quick = 0
            self._backoff.succeeded()
        self._num_quick += 1
        if self._num_quick >= MOST_QUICK:
            self.code = code
            often = f"{self._num_quick} times, each within {QUICK_S:.0f} s"
            self._report(f"{what} {often}; it is not started again")
            return
        wait_s = self._backoff.failed()
        self._due_s = time.monotonic() + wait_s
        self._report(f"{what}; it is started again in {wait_s:.1f} s")


_ASKED: Final = frozenset(128 + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""Exit codes of a process that was asked to leave."""
