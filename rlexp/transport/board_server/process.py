"""A server as a child process, which ends with its parent."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from rlexp.errors import RlexpError
from rlexp.processes.child import Child, end_child, start_child
from rlexp.transport.board_server.program import ServerProgram

_READY: Final = "Ready to accept connections"
_START_S: Final = 30.0
_END_S: Final = 5.0
_POLL_S: Final = 0.02


class ServerProcess:
    """Owned by whoever started it; :meth:`close` is called at last."""

    def __init__(self, program: ServerProgram, log: Path) -> None:
        """``log``: the file that has what the server prints."""
        self._program, self.log = program, log
        self._process: Child | None = None

    def start(self, configuration: str) -> None:
        """Start the server and wait until it listens; raises RlexpError with what it says where it does not.

        The configuration goes to its standard input: command lines can be read by every user of a machine.
        """
        with tempfile.TemporaryFile() as file, self.log.open("wb") as log:
            file.write(configuration.encode())
            file.seek(0)
            self._process = start_child(
                [str(self._program.path), "-"],
                folder=self.log.parent,
                stdin=file,
                stdout=log,
                stderr=subprocess.STDOUT,
                ends_with_parent=True,
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
        if process is not None:
            end_child(process, _END_S)

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")
