"""Which processes of this machine have a shared memory open or mapped."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def users_of(name: str) -> list[str]:
    """Return the descriptors and mappings, as links below ``/proc``, of the memory called ``name``."""
    found = []
    processes = [entry for entry in os.listdir("/proc") if entry.isdecimal()]
    for folder in (Path("/proc", process, kind) for process in processes for kind in ("fd", "map_files")):
        with suppress(OSError):  # the process has ended meanwhile, or is somebody else's
            for link in map(folder.joinpath, os.listdir(folder)):
                with suppress(OSError):
                    if name in os.readlink(link):
                        found.append(str(link))
    return found
