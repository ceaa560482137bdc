"""A small process that outlives a command which is killed, to end the Ray that the command had started.

Ray's own processes end with their command too, but some after a minute or never, as they may not know of each
other yet; a trial's process may write meanwhile, beside the one that resumes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rlexp.sessions.own_program import own_environment, own_program
from rlexp.sessions.processes import SESSION, kill_processes_of

DISMISSAL = b"."
END_TIMEOUT_S = 10.0


class Guard:
    """Owns the process from construction to ``dismiss``; it ends by itself when this process dies."""

    def __init__(self, folder: Path) -> None:
        """Watch over the session in ``folder``."""
        # It is none of the processes that it would end, nor of those that an outer command would.
        environment = {name: value for name, value in os.environ.items() if name != SESSION}
        # In a session of its own, where Ctrl-C in the terminal does not reach it. Nobody else has the pipe's other
        # end, so that it is closed when, and only when, this process ends.
        self._process = subprocess.Popen(
            own_program(__name__, str(folder)),
            env=own_environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Let it go: the session has ended in good order."""
        try:
            self._process.communicate(DISMISSAL, timeout=END_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Wait for the other end of stdin to close; unless that was a dismissal, end the session in the folder argv[1]."""
    folder = Path(sys.argv[1])
    if sys.stdin.buffer.read() != DISMISSAL:
        kill_processes_of(folder, END_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
