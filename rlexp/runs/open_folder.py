"""A directory that is kept open, so that its deletion, move or replacement is noticed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_DELETED: Final = " (deleted)"
"""What Linux puts behind the path of an open file that was deleted."""


class OpenFolder:
    """Owns a descriptor of a directory from construction to ``close``: no other directory has its inode meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is no directory at ``path``."""
        self._path = path.absolute()
        self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    @property
    def descriptor(self) -> int:
        """For calls of the system; only until ``close``."""
        assert self._descriptor is not None
        return self._descriptor

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to it; not after ``close``."""
        try:
            return self._descriptor is not None and os.path.samestat(os.stat(self._path), os.fstat(self._descriptor))
        except OSError:
            return False

    @property
    def new_place(self) -> Path | None:
        """Where it is now; None where it was deleted, or the system does not say."""
        try:
            place = os.readlink(f"/proc/self/fd/{self._descriptor}")
        except OSError:
            return None
        return None if place.endswith(_DELETED) else Path(place)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
