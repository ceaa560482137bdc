"""Shared memory in tests: who has it open, processes that use it and are killed, readers in a test's own process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rlexp.rollout.shared_weights import WeightsHandle, WeightsReader

SPAWN = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0
"""Bound of every wait for a process."""


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``target(*args, connection)`` in a process of its own, which does not outlive the block."""
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    child.start()
    try:
        yield child, here
    finally:
        child.kill()
        child.join(PATIENCE_S)
        here.close()
        there.close()


def received(connection: Connection) -> Any:
    """Return what comes next; AssertionError where nothing does in time."""
    assert connection.poll(PATIENCE_S)
    return connection.recv()


def kill_9(child: BaseProcess) -> None:
    """Kill a process and wait for its end."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL


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
