"""Who has a shared memory open, and shared weights whose readers are in the process of a test."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from rlexp.rollout.shared_weights import WeightsHandle, WeightsReader


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


class ReadHere(WeightsHandle):
    """Opens the memory in the writer's own process."""

    def open(self) -> WeightsReader | None:
        return self.open_anywhere()


def read_here(handle: WeightsHandle) -> ReadHere:
    """Return ``handle`` for a reader in this process."""
    return ReadHere(**{field.name: getattr(handle, field.name) for field in fields(handle)})
