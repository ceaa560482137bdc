"""The folder of a server: the same passwords each time, and what each role needs, for its owner only."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from filelock import FileLock, Timeout

from rlexp.errors import UsageError
from rlexp.files import read_json, replace_json, replace_text
from rlexp.transport.tokens import MasterKey, parse_master

_PASSWORDS: Final = "passwords.json"
_MASTER: Final = "master.key"
_LOG: Final = "server.log"
_BYTES: Final = 24
"""Of randomness in a password."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the folder is if nothing else is said, by the rules of XDG for what a program keeps."""
    state = environment.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "rlexp" / "board"


class ServerFolder:
    """Owned by one ``board serve`` while it is entered; another one is refused meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = FileLock(self.path / "lock", timeout=0, mode=0o600)

    @property
    def log(self) -> Path:
        """What the server says, since its last start."""
        return self.path / _LOG

    def __enter__(self) -> ServerFolder:
        """Make the folder where it is missing; raises UsageError where it cannot be used."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            message = f"another board serve uses {self.path}"
            raise UsageError(message, "end it, or give --dir DIR and --port N for a second one") from error
        except OSError as error:
            raise UsageError(f"{self.path} cannot be used: {error.strerror}", "give --dir DIR") from error
        try:
            self._refuse_others()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def passwords(self, users: tuple[str, ...]) -> dict[str, str]:
        """Return the password of each user: those of the last time, and new ones for users that had none."""
        path = self.path / _PASSWORDS
        known = self._read(path) if path.exists() else {}
        passwords = {user: known.get(user) or secrets.token_urlsafe(_BYTES) for user in users}
        replace_json(path, {**known, **passwords})
        path.chmod(0o600)
        return passwords

    def master_key(self) -> MasterKey:
        """Return the key that the tokens of all actors follow from: that of the last time, or a new one."""
        path = self.path / _MASTER
        if path.exists():
            try:
                return parse_master(path.read_text(encoding="ascii"))
            except (OSError, ValueError, UsageError) as error:
                message = f"{path} has no master key that can be read"
                raise UsageError(message, "delete it; the next start makes a new one, and new tokens") from error
        master = MasterKey.new()
        replace_text(path, master.to_text() + "\n")
        path.chmod(0o600)
        return master

    def write_variables(self, name: str, variables: Mapping[str, str]) -> Path:
        """Write what a shell is to know, as a file of its own that it reads with ``.``; return the file."""
        path = self.path / f"{name}.env"
        lines = (f"export {variable}={shlex.quote(value)}\n" for variable, value in variables.items())
        replace_text(path, "".join(lines))
        path.chmod(0o600)
        return path

    def _read(self, path: Path) -> dict[str, str]:
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read", "delete it; the next start makes new passwords") from error
        if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
            raise UsageError(f"{path} has no passwords", "delete it; the next start makes new ones")
        return content

    def _refuse_others(self) -> None:
        if self.path.stat().st_mode & 0o077:
            raise UsageError(
                f"{self.path} would have passwords, and other users of this machine can open it",
                f"chmod 700 {self.path}, or give --dir DIR",
            )
