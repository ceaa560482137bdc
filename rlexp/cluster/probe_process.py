"""The process that looks at a cluster: ``python -m rlexp.cluster.probe_process FD``, started by ``probe``.

Messages: ``loaded``, ``connected`` with the head's address, ``waiting`` every few seconds, then ``nodes`` or ``asked``;
``failed`` ends them. The functions that nodes run are sent there whole and import what they need, as rlexp may not be
installed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from rlexp.cluster.pool.nodes import accepts_connections
from rlexp.cluster.quick_start.raylet import job_without_folders
from rlexp.processes.child import Message, Send, answer


def measured(
    modules: list[str],
    packages: list[str],
    folders: list[str],
    marker: str | None,
    servers: dict[str, tuple[str, int]],
    files: list[str],
) -> dict[str, Any]:
    """Return versions, memory in bytes, whether ``marker`` exists, and why modules cannot be imported, by name.

    ``modules`` are imported, also from ``folders``; installed ``packages`` are only searched. Also why ``servers``,
    hosts and ports by name, cannot be reached, and which of ``files`` cannot be read.
    """
    import importlib
    import importlib.metadata
    import os
    import platform
    import sys

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "torch": version("torch"),
        "rlexp": None,
        "memory_total": None,
        "memory_available": None,
        "sees_out": marker is not None and os.path.exists(marker),
    }
    failed: dict[str, str] = {}
    try:
        from rlexp import __version__
        from rlexp.cluster.room.machine import this_machine

        machine = this_machine()
        facts["rlexp"] = __version__
        facts |= {"memory_total": machine.memory_total, "memory_available": machine.memory_available}
    except ModuleNotFoundError as error:
        if error.name != "rlexp":
            failed["rlexp"] = str(error)
    sys.path += [folder for folder in folders if modules and folder not in sys.path]
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # it is code of the user
            failed[name] = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
    failed |= {name: "it is not installed" for name in packages if not is_installed(name)}
    missing = [path for path in files if not os.access(path, os.R_OK)]
    return {**facts, "failed_imports": failed, "unreachable": unreachable(servers), "missing_files": missing}


def is_installed(package: str) -> bool:
    """Return whether a package can be found, without importing it."""
    import importlib.util

    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # an error of its parent package
        return False


def unreachable(servers: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Return why servers cannot be reached, by their names; reachable ones are left out."""
    import socket

    failed: dict[str, str] = {}
    for name, (host, port) in servers.items():
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except OSError as error:
            failed[name] = error.strerror or str(error) or type(error).__name__
    return failed


LOOK_S: Final = 5.0
"""Seconds between two checks of which silent nodes accept connections."""
BUSY_TIMEOUT_S: Final = 180.0
"""Seconds without any node's answer; each starts a process and imports the user's modules, slowly if it is busy."""
UNREACHED_TIMEOUT_S: Final = 30.0
"""Seconds that a node may accept no connection."""
_CONNECT_TIMEOUT_S: Final = 1.0
_CUSTOM_EXCEPT = ("CPU", "GPU", "memory", "object_store_memory")

Task = TypeVar("Task")
"""A task for a node, as Ray names it."""


def serve(request: Message, send: Send) -> None:
    """Connect, then ask the autoscaler for the bundles of ``request``, or let every node report on itself."""
    import ray

    send("loaded")
    try:
        ray.init(
            address=request["address"],
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            runtime_env=request["runtime_env"],
            job_config=job_without_folders(),
        )
    except Exception as error:
        causes = [error, error.__cause__] if error.__cause__ else [error]
        send("failed", error="\n".join(map(str, causes)))
        return
    send("connected", address=ray.get_runtime_context().gcs_address)
    if "bundles" in request:
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=request["bundles"])
        send("asked")
    else:
        send("nodes", nodes=_reports(request["asked"], send))
    ray.shutdown()


def _reports(asked: Message, send: Send) -> list[dict[str, Any]]:
    """Return what Ray knows of each node, and what the node reports or why it does not."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for function in (measured, is_installed, unreachable):
        function.__module__ = "__main__"  # so that Ray sends the function itself, not its import path
    task: Any = ray.remote(num_cpus=0, max_retries=0)(measured)
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node for node in known if node["Alive"]]
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(**asked)
        for node in nodes
    ]

    def ready(pending: list[Any]) -> list[Any]:
        found, _ = ray.wait(pending, num_returns=1, timeout=LOOK_S)
        return found

    silent = await_nodes(dict(zip(refs, nodes, strict=True)), ready, _is_reached, lambda: send("waiting"))
    own = ray.get_runtime_context().get_node_id()
    return [
        {**_known(node), "is_driver": node["NodeID"] == own, **(silent[ref] if ref in silent else _answer(ref))}
        for node, ref in zip(nodes, refs, strict=True)
    ]


def await_nodes(
    nodes: Mapping[Task, dict[str, Any]],
    ready: Callable[[list[Task]], list[Task]],
    is_reached: Callable[[dict[str, Any]], bool],
    tell: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> dict[Task, dict[str, Any]]:
    """Wait for the nodes of tasks; return, by its task, what to report of each that gives no answer.

    ``ready`` waits a while for at least one task. The wait continues while nodes answer one after another, and longer
    for nodes that accept connections, as these are busy. ``tell`` is called every few seconds.
    """
    pending, heard_s = list(nodes), clock()
    failing_s: dict[Task, float] = {}
    while pending:
        found = ready(pending)
        tell()
        if found:
            pending, heard_s = [task for task in pending if task not in found], clock()
            continue
        for task in pending:
            if is_reached(nodes[task]):
                failing_s.pop(task, None)
            else:
                failing_s.setdefault(task, clock())
            tell()
        now = clock()
        unreached = {task for task in pending if now - failing_s.get(task, now) >= UNREACHED_TIMEOUT_S}
        if len(unreached) == len(pending) or now - heard_s >= BUSY_TIMEOUT_S:
            silent_s = {task: now - (failing_s[task] if task in unreached else heard_s) for task in pending}
            return {task: _silence(nodes[task], silent_s[task], task not in unreached) for task in pending}
    return {}


def _silence(node: dict[str, Any], silent_s: float, is_busy: bool) -> dict[str, Any]:
    place = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    what = "it accepts connections, but has not run the probe" if is_busy else f"no connection to {place}"
    return {"error": f"{what} within {silent_s:.0f} s", "silence": "busy" if is_busy else "unreached"}


def _is_reached(node: dict[str, Any]) -> bool:
    return accepts_connections(node["NodeManagerAddress"], int(node["NodeManagerPort"]), _CONNECT_TIMEOUT_S)


def _known(node: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a node in Ray's own table."""
    amounts = node["Resources"]
    custom = {name: amount for name, amount in amounts.items() if name not in _CUSTOM_EXCEPT}
    return {
        "id": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "cpus": amounts.get("CPU", 0),
        "gpus": amounts.get("GPU", 0),
        "custom": custom,
    }


def _answer(ref: Any) -> dict[str, Any]:
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError

    try:
        return {"facts": ray.get(ref)}
    except (NodeDiedError, TaskUnschedulableError):
        return {"error": "it has left the cluster", "has_left": True}
    except RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"error": lines[-1] if lines else type(error).__name__}


if __name__ == "__main__":
    answer(serve)
