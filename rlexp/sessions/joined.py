"""JoinedRay: somebody's cluster for the time of one command. What it has started there ends with it, nothing else."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rlexp.machine.cluster import Cluster
from rlexp.processes.family import TemporaryFolder
from rlexp.processes.threads import Function, RayThread
from rlexp.sessions.head_watch import END_WITH_HEAD, SETUP_HOOK, head
from rlexp.sessions.reachability import Reachability
from rlexp.sessions.session import RayStartError, RayStoppedError, job_without_folders
from rlexp.sessions.user_code import beside_submitted

CONNECT_TIMEOUT_S = 60.0
"""How long it may take to connect; that it works at all is known from the probe."""
SHUTDOWN_TIMEOUT_S = 10.0
"""How long Ray may take to disconnect."""


class JoinedRay:
    """Owns the connection to a cluster between ``__enter__`` and ``__exit__``, and a folder for Tune's files.

    It ends no process: the cluster's head ends the actors of a command that has disconnected or died, and where the
    head is lost they end by themselves.
    """

    is_joined = True
    is_abandoned = False

    def __init__(self, address: str, cluster: Cluster, runtime_env: Mapping[str, Any], debug: bool) -> None:
        """``runtime_env`` says what the processes of trials get on each node, as Ray wants it."""
        self.cluster = cluster
        self._address = address
        self._runtime_env = dict(runtime_env)
        self._debug = debug
        self._folder: TemporaryFolder | None = None
        self._servers: dict[str, Reachability] = {}
        self._thread = RayThread()

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder.path

    def call(self, function: Function, *checks: Callable[[], None]) -> None:
        self._thread.call(function, self._check, *checks)

    def leave(self) -> None:
        self.is_abandoned = self.is_abandoned or not self._thread.is_free()

    def __enter__(self) -> Self:
        self._folder = TemporaryFolder()
        try:
            self._connect()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def _connect(self) -> None:
        level = logging.INFO if self._debug else logging.CRITICAL
        logging.getLogger("ray").setLevel(level)

        def connect() -> None:
            import ray

            ray.init(
                address=self._address,
                configure_logging=True,
                logging_level=level,
                log_to_driver=self._debug,
                runtime_env=beside_submitted({SETUP_HOOK: END_WITH_HEAD, **self._runtime_env}, os.environ),
                job_config=job_without_folders(),
            )
            self._servers = _watched_servers()

        try:
            self._thread.call(connect, _deadline(CONNECT_TIMEOUT_S))
        except Exception as error:  # Ray has no class for it
            self.is_abandoned = isinstance(error, TimeoutError)
            what = str(error).partition("\n")[0] or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            hint = f"rlexp doctor --address {self._address} shows the nodes; --debug what Ray reports"
            raise RayStartError(f"cannot join the cluster at {self._address}: {what}", hint) from error

    def _check(self) -> None:
        for name, server in self._servers.items():
            if server.is_lost():
                self.is_abandoned = True  # Ray's calls would wait for it, and after a minute end this process
                raise RayStoppedError(f"Ray stopped: {name} cannot be reached any more")

    def _stop(self) -> None:
        self.leave()
        if not self.is_abandoned:
            self._disconnect()
        for server in self._servers.values():
            server.close()
        if self._folder is not None:
            self._folder.remove()
        self._thread.close()

    def _disconnect(self) -> None:
        import ray

        self.is_abandoned = True  # unless the call ends: it may also be interrupted
        with suppress(TimeoutError):
            self._thread.call(ray.shutdown, _deadline(SHUTDOWN_TIMEOUT_S))
            self.is_abandoned = False


def _deadline(timeout_s: float) -> Callable[[], None]:
    """Return a check that fails after ``timeout_s``."""
    end_s = time.monotonic() + timeout_s

    def check() -> None:
        if time.monotonic() > end_s:
            raise TimeoutError

    return check


def _watched_servers() -> dict[str, Reachability]:
    """Return the two servers without which nothing goes on: the cluster's head, and Ray on this node. Ray is joined."""
    import ray

    context = ray.get_runtime_context()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    node = next(node for node in nodes if node["NodeID"] == context.get_node_id())
    here = Reachability(node["NodeManagerAddress"], int(node["NodeManagerPort"]))
    return {
        f"the cluster's head at {context.gcs_address}": head(),
        f"Ray on this node, {os.uname().nodename},": here,
    }
