"""A server as a child process, which ends with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

from rlexp.errors import RlexpError
from rlexp.transport.board_server.program import ServerProgram

_PR_SET_PDEATHSIG: Final = 1
"""Of prctl(2): the signal that a process gets when its parent dies."""
_READY: Final = "Ready to accept connections"
_START_S: Final = 30.0
_END_S: Final = 5.0
_POLL_S: Final = 0.02


class ServerProcess:
    """Owned by whoever started it; :meth:`close` is called at last."""

    def __init__(self, program: ServerProgram, log: Path) -> None:
        """``log``: the file that has what the server prints."""
        self._program, self.log = program, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, configuration: str) -> None:
        """Start the server and wait until it listens; raises RlexpError with what it says where it does not.

        The configuration goes to its standard input: command lines can be read by every user of a machine.
        """
        prepare = partial(_end_with, os.getpid()) if sys.platform == "linux" else None
        with tempfile.TemporaryFile() as file, self.log.open("wb") as log:
            file.write(configuration.encode())
            file.seek(0)
            self._process = subprocess.Popen(
                [str(self._program.path), "-"],
                cwd=self.log.parent,
                stdin=file,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # a terminal's Ctrl-C is for the parent
                preexec_fn=prepare,
            )
        ends_at = time.monotonic() + _START_S
        while _READY not in self._said():
            if self._process.poll() is not None or time.monotonic() > ends_at:
                self.close()
                raise RlexpError(f"{self._program.title} does not start: {self.last_words()}", f"see {self.log}")
            time.sleep(_POLL_S)

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more."""
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        """Return the last line that it has printed."""
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return lines[-1] if lines else "it says nothing"

    def close(self) -> None:
        """End it, by force where it takes too long; the second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def _end_with(parent: int) -> None:
    """Ask the system, between fork and exec, to kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died before
        os._exit(1)
