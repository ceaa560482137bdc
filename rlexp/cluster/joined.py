"""JoinedRay: somebody's cluster during one command. Only what the command started there ends with it.

Ray takes minutes to find out that a server is gone. So the command, and each of its processes on every node, repeatedly
tries to connect, without waiting. A process ends when the head is lost.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlexp.cluster.environment import beside_submitted
from rlexp.cluster.quick_start.raylet import job_without_folders
from rlexp.cluster.room.machine import Cluster
from rlexp.cluster.session import RayStartError, RayStoppedError, Session, within
from rlexp.processes.family import TemporaryFolder

INTERVAL_S = 2.0
"""Seconds between two tries."""
TIMEOUT_S = 5.0
"""Most seconds of a connection; a machine that is gone does not answer at all."""
LOST_AFTER_S = 30.0
"""Seconds of failed tries after which a server is lost. Restarts take less; after 60 s Ray ends this process."""
LEAST_FAILURES = 4


class Reachability:
    """Owns the socket of the try in progress, until ``close``."""

    def __init__(
        self, host: str, port: int, clock: Callable[[], float] = time.monotonic, interval_s: float = INTERVAL_S
    ) -> None:
        """Look up ``host``, which may take a while; no other call here does."""
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._family = family
        self._address = address
        self._clock = clock
        self._interval_s = interval_s
        self._was_reached = False
        self._socket: socket.socket | None = None
        self._next_s = clock() + interval_s
        self._began_s = 0.0
        self._failures = 0
        self._failing_since_s = 0.0

    def is_lost(self) -> bool:
        """Continue to try; return whether the server could not be reached for LOST_AFTER_S.

        Call it a few times a second.
        """
        now = self._clock()
        self._try(now)
        return self._failures >= LEAST_FAILURES and now >= self._failing_since_s + LOST_AFTER_S

    def silent_s(self) -> float:
        """Continue to try; return for how many seconds the server has not answered; 0 if it never answered.

        Call it a few times a second.
        """
        now = self._clock()
        self._try(now)
        if not self._was_reached or (self._socket is None and self._failures == 0):
            return 0.0
        return now - (self._failing_since_s if self._failures else self._began_s)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _try(self, now: float) -> None:
        if self._socket is None:
            if now >= self._next_s:
                self._begin(now)
        elif self._is_writable():
            self._end(now, self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
        elif now > self._began_s + TIMEOUT_S:
            self._end(now, False)

    def _begin(self, now: float) -> None:
        self._began_s = now
        try:
            self._socket = socket.socket(self._family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(self._address)
        except OSError:  # too many open files say nothing about the server
            self.close()
            self._next_s = now + self._interval_s
            return
        if code not in (0, errno.EINPROGRESS):
            self._end(now, False)

    def _is_writable(self) -> bool:
        poll = select.poll()  # not select(), which accepts no descriptors above 1023
        poll.register(self._socket.fileno() if self._socket is not None else -1, select.POLLOUT)
        return bool(poll.poll(0))

    def _end(self, now: float, is_reached: bool) -> None:
        self.close()
        self._next_s = now + self._interval_s
        if is_reached:
            self._was_reached = True
            self._failures = 0
        else:
            self._failing_since_s = self._began_s if self._failures == 0 else self._failing_since_s
            self._failures += 1


SETUP_HOOK: Final = "worker_process_setup_hook"
"""The key of Ray's runtime environment for a function that a process calls before its first task."""
END_WITH_HEAD: Final = "rlexp.cluster.joined.end_with_head"
_LOOK_S: Final = 0.5


def end_with_head() -> None:
    """Start a thread that ends this process, without telling Ray, when the command would give the head up."""
    threading.Thread(target=_watch, args=(head,), name="head-watch", daemon=True).start()


def head() -> Reachability:
    """Return the reachability of the head of the connected cluster."""
    import ray

    host, _, port = str(ray.get_runtime_context().gcs_address).rpartition(":")
    return Reachability(host.strip("[]"), int(port))


def _watch(
    find: Callable[[], Reachability],
    pause: Callable[[float], object] = time.sleep,
    end: Callable[[int], object] = os._exit,
) -> None:
    server = find()
    while not server.is_lost():
        pause(_LOOK_S)
    print("the cluster's head cannot be reached any more: this process ends", file=sys.stderr, flush=True)
    end(1)


CONNECT_TIMEOUT_S = 60.0
"""Most seconds of connecting; the probe has shown that it works."""


class JoinedRay(Session):
    """Owns the connection to a cluster between ``__enter__`` and ``__exit__``, and a folder for Tune's files.

    It ends no process: the cluster's head ends the actors of a command that has disconnected or died. If the head is
    lost, they end by themselves.
    """

    is_joined = True

    def __init__(self, address: str, cluster: Cluster, runtime_env: Mapping[str, Any], debug: bool) -> None:
        """Initialise; ``runtime_env`` is what trials' processes get on each node, in Ray's form."""
        super().__init__(cluster, debug)
        self._address = address
        self._runtime_env = dict(runtime_env)
        self._servers: dict[str, Reachability] = {}

    def _make_folder(self) -> TemporaryFolder:
        return TemporaryFolder()

    def _begin(self) -> None:
        logging_options = self._logging()

        def connect() -> None:
            import ray

            ray.init(
                address=self._address,
                runtime_env=beside_submitted({SETUP_HOOK: END_WITH_HEAD, **self._runtime_env}, os.environ),
                job_config=job_without_folders(),
                **logging_options,
            )
            self._servers = _watched_servers()

        try:
            self._thread.call(connect, within(CONNECT_TIMEOUT_S, TimeoutError()))
        except Exception as error:  # Ray has no class for it
            self.is_abandoned = isinstance(error, TimeoutError)
            what = str(error).partition("\n")[0] or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            hint = f"rlexp doctor --address {self._address} shows the nodes; --debug what Ray reports"
            raise RayStartError(f"cannot join the cluster at {self._address}: {what}", hint) from error

    def _check(self) -> None:
        for name, server in self._servers.items():
            if server.is_lost():
                self.is_abandoned = True  # Ray's calls would wait for it, and after a minute end this process.
                raise RayStoppedError(f"Ray stopped: {name} cannot be reached any more")

    def _end(self) -> None:
        assert self._folder is not None
        self.leave()
        self._disconnect()
        for server in self._servers.values():
            server.close()
        self._folder.remove()
        self._thread.close()


def _watched_servers() -> dict[str, Reachability]:
    """Return the two servers that everything needs: the cluster's head, and Ray on this node. Ray is joined."""
    import ray

    context = ray.get_runtime_context()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    node = next(node for node in nodes if node["NodeID"] == context.get_node_id())
    here = Reachability(node["NodeManagerAddress"], int(node["NodeManagerPort"]))
    return {
        f"the cluster's head at {context.gcs_address}": head(),
        f"Ray on this node, {os.uname().nodename},": here,
    }
