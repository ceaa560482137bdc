"""What ends the processes of a trial when the cluster's head is gone, on every node; Ray itself takes minutes.

Ray calls ``end_with_head`` in each process that it starts for a command that has joined a cluster.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from rlexp.sessions.reachability import Reachability

SETUP_HOOK: Final = "worker_process_setup_hook"
"""The key of Ray's runtime environment for what a process calls before its first task."""
END_WITH_HEAD: Final = "rlexp.sessions.head_watch.end_with_head"
_LOOK_S: Final = 0.5


def end_with_head() -> None:
    """Start a thread that ends this process, without a word to Ray, when the command would give the head up too."""
    threading.Thread(target=_watch, args=(head,), name="head-watch", daemon=True).start()


def head() -> Reachability:
    """Return the head of the cluster that this process is connected to."""
    import ray

    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return Reachability(host.strip("[]"), int(port))


class Server(Protocol):
    """A server that is tried again and again."""

    def is_lost(self) -> bool:
        """Return whether it has not been reached for long; never waits."""


def _watch(
    find: Callable[[], Server], pause: Callable[[float], object] = time.sleep, end: Callable[[int], object] = os._exit
) -> None:
    server = find()
    while not server.is_lost():
        pause(_LOOK_S)
    print("the cluster's head cannot be reached any more: this process ends", file=sys.stderr, flush=True)
    end(1)
