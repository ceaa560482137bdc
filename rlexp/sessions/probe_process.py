"""The process that looks at a cluster: ``python -m rlexp.sessions.probe_process FD``, started by ``probe``.

Messages: ``loaded``, ``connected`` with the head's address, then ``nodes`` or ``asked``; ``failed`` ends them.
"""

from __future__ import annotations

import logging
from typing import Any

from rlexp.sessions.child_process import Message, Send, answer
from rlexp.sessions.node_report import is_installed, measured, unreachable
from rlexp.sessions.session import job_without_folders

_CUSTOM_EXCEPT = ("CPU", "GPU", "memory", "object_store_memory")


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
    if request["bundles"] is not None:
        from ray.autoscaler.sdk import request_resources

        request_resources(bundles=request["bundles"])
        send("asked")
    else:
        send("nodes", nodes=_reports(request))
    ray.shutdown()


def _reports(request: Message) -> list[dict[str, Any]]:
    """Return what Ray knows of each node, and what the node says of itself or why it does not."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for function in (measured, is_installed, unreachable):
        function.__module__ = "__main__"  # so Ray sends the function itself, not where to import it from
    task = ray.remote(num_cpus=0, max_retries=0)(measured)
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node for node in known if node["Alive"]]
    words = tuple(request[name] for name in ("modules", "packages", "folders", "marker", "servers", "files"))
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(*words)
        for node in nodes
    ]
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=request["timeout_s"])
    own = ray.get_runtime_context().get_node_id()
    return [
        {**_known(node), "is_driver": node["NodeID"] == own, **_answer(ref, ref in ready, request["timeout_s"])}
        for node, ref in zip(nodes, refs, strict=True)
    ]


def _known(node: dict[str, Any]) -> dict[str, Any]:
    """Return what Ray's own table has of a node."""
    amounts = node["Resources"]
    custom = {name: amount for name, amount in amounts.items() if name not in _CUSTOM_EXCEPT}
    return {
        "id": node["NodeID"],
        "address": node["NodeManagerAddress"],
        "cpus": amounts.get("CPU", 0),
        "gpus": amounts.get("GPU", 0),
        "custom": custom,
    }


def _answer(ref: Any, is_ready: bool, timeout_s: float) -> dict[str, Any]:
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError

    if not is_ready:
        return {"error": f"no answer within {timeout_s:g} s", "has_left": False}
    try:
        return {"facts": ray.get(ref)}
    except (NodeDiedError, TaskUnschedulableError):
        return {"error": "it has left the cluster", "has_left": True}
    except RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return {"error": lines[-1] if lines else type(error).__name__, "has_left": False}


if __name__ == "__main__":
    answer(serve)
