"""The folder of a session on this machine: its lock, the guard that removes it, and the processes that belong to it."""

from __future__ import annotations

from contextlib import ExitStack

from rlexp.runs.temporary_folder import TemporaryFolder
from rlexp.sessions.guard import Guard
from rlexp.sessions.processes import kill_processes_of

END_TIMEOUT_S = 10.0
"""How long processes of the session may take to vanish after they were killed."""


class SessionFolder:
    """Owns the folder, and all processes that were started for it, from construction to ``remove``.

    Where this process dies in between, the guard ends them in its place.
    """

    def __init__(self) -> None:
        """Raises OSError where the folder cannot be made, or the guard not be started; then nothing is left."""
        # Ray lets all users read its own folder: it is put into one that only this user can read.
        self._folder = TemporaryFolder()
        self.path = self._folder.path
        with ExitStack() as undo:
            undo.callback(self._folder.remove)
            self._guard: Guard | None = Guard(self.path)
            undo.pop_all()

    def remove(self) -> None:
        """End its processes and remove it; a second call does nothing."""
        if self._guard is None:
            return
        # Ray's agents outlive the raylet that started them, by seconds in which they do nothing.
        kill_processes_of(self.path, END_TIMEOUT_S)
        self._folder.remove()
        self._guard.dismiss()
        self._guard = None
