"""The installed Redis or Valkey, as a child process that ends with its parent."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlexp.board.servers.access import OLDEST
from rlexp.errors import RlexpError, UsageError
from rlexp.processes.child import Child, end_child, start_child

_NAMES: Final = ("valkey-server", "redis-server")
_HOW_TO_GET: Final = (
    "apt install valkey-server (or redis-server), dnf install valkey, brew install valkey; docs/board.md has a "
    "container and free plans of clouds, which need no board serve"
)
_ANSWER_S: Final = 20.0
_READY: Final = "Ready to accept connections"
_START_S: Final = 30.0
_END_S: Final = 5.0
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class ServerProgram:
    """A server that can be started."""

    path: Path
    version: tuple[int, int, int]

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.path.name.removesuffix('-server')} {'.'.join(map(str, self.version))}"


def find_program() -> ServerProgram:
    """Return a server on PATH, preferably a Valkey; raises UsageError if none is new enough."""
    found = [ServerProgram(Path(path), _version(path)) for name in _NAMES if (path := shutil.which(name))]
    if not found:
        raise UsageError("neither valkey-server nor redis-server is on PATH", _HOW_TO_GET)
    for program in found:
        if program.version >= OLDEST:
            return program
    oldest = ".".join(map(str, OLDEST))
    raise UsageError(f"{found[0].path} is {found[0].title}; a board needs {oldest} or newer", _HOW_TO_GET)


def _version(path: str) -> tuple[int, int, int]:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(
            f"{path} --version fails: {_reason(error)}", "install it again, or take it off PATH"
        ) from error
    found = re.search(r"\bv=(\d+)\.(\d+)\.(\d+)", done.stdout)
    if found is None:
        raise UsageError(f"{path} --version prints no version", "install it again, or take it off PATH")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1] if lines else f"exit code {error.returncode}"
    return str(error)


class ServerProcess:
    """Owned by the code that started it, which calls :meth:`close`."""

    def __init__(self, program: ServerProgram, log: Path) -> None:
        """Initialise; ``log`` is the file with the server's output."""
        self._program, self.log = program, log
        self._process: Child | None = None

    def start(self, configuration: str) -> None:
        """Start the server and wait until it listens; raises RlexpError with its last line if it fails to start.

        The configuration goes to its standard input, as every user of a machine can read command lines.
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
        """Whether it has ended."""
        return self._process is None or self._process.poll() is not None

    def last_words(self) -> str:
        """Return the last line that it printed."""
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return lines[-1] if lines else "it says nothing"

    def close(self) -> None:
        """End it, by force if it takes too long; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            end_child(process, _END_S)

    def _said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")
