"""The Redis or Valkey that is installed on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlexp.errors import UsageError
from rlexp.transport.boards.access import OLDEST

_NAMES: Final = ("valkey-server", "redis-server")
_HOW_TO_GET: Final = (
    "apt install valkey-server (or redis-server), dnf install valkey, brew install valkey; docs/board.md has a "
    "container and free plans of clouds, which need no board serve"
)
_ANSWER_S: Final = 20.0


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
    """Return a server on PATH, rather a Valkey than a Redis; raises UsageError where none is new enough."""
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
        raise UsageError(f"{path} --version names no version", "install it again, or take it off PATH")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return lines[-1] if lines else f"exit code {error.returncode}"
    return str(error)
