"""RayTables: the one reader of Ray's tables of nodes: who lives, who is drained, what is free, where an actor is.

Trials of a joined cluster ask it by the driver, a task pool by its ``ClusterWatch``. Importing it does not import Ray.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rlexp.cluster.shortcuts import NODE_TABLES

Bundle = Mapping[str, float]
"""Amounts of resources that are reserved or free on one node, by Ray's names."""
_ANSWER_TIMEOUT_S = 2.0
"""How long a node may take to accept a connection."""
_FEW_ACTORS = 20
"""So many are asked for one by one; the table of all would take longer."""


@dataclass(frozen=True)
class RayNode:
    """One node of the cluster that Ray runs on."""

    id: str
    """Ray's, in hexadecimal digits; a node that comes back has another one."""
    address: str
    port: int
    """Of the node's manager, Ray's process without which no other works there."""
    is_alive: bool
    """Whether Ray has not declared it dead, which takes up to half a minute."""


class RayTables:
    """Asks the Ray that this process is connected to; may be asked in any thread.

    Ray has no public call for nodes that will end, for what is free on each, nor for actors without its dashboard; Ray
    Train reads the same tables. Where these have changed, it is answered that nothing is known.
    """

    def __init__(self) -> None:
        self._is_known = NODE_TABLES.why_off() is None

    def num_alive(self) -> int:
        """Return how many nodes there are whose actors can be found; 0 before this process is connected to them."""
        import ray

        return sum(node.is_alive for node in self.nodes()) if self._is_known and ray.is_initialized() else 0

    def nodes(self) -> Sequence[RayNode]:
        """Return all, also those that are dead."""
        import ray

        return [
            RayNode(row["NodeID"], row["NodeManagerAddress"], row["NodeManagerPort"], row["Alive"])
            for row in ray.nodes()  # type: ignore[no-untyped-call]
        ]

    def nodes_of(self, actors: Sequence[Any]) -> Sequence[str | None]:
        """Return the node's id of each actor, None where it has been given no room yet."""
        import ray

        if not self._is_known:
            return [None] * len(actors)
        from ray._private.state import state

        ids = [actor._actor_id.hex() for actor in actors]
        if len(ids) <= _FEW_ACTORS:
            rows = {each: state.actor_table(each) for each in ids}
        else:
            rows = state.actor_table(None, job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()))
        nodes = [rows[each]["Address"]["NodeID"] if rows.get(each) else "" for each in ids]
        return [node if node.strip("f") else None for node in nodes]  # Ray's id of no node is all f

    def of_actor(self, actor: Any) -> RayNode | None:
        """Return the node of an actor that has started, None where it is not known."""
        (where,) = self.nodes_of([actor])
        return next((node for node in self.nodes() if node.id == where), None)

    def answers(self, node: RayNode) -> bool:
        """Return whether a node's manager accepts connections now; takes up to two seconds."""
        return accepts_connections(node.address, node.port, _ANSWER_TIMEOUT_S)

    def draining(self) -> frozenset[str]:
        """Return the ids of the nodes that are about to be taken away."""
        if not self._is_known:
            return frozenset()
        from ray._private.state import state

        return frozenset(state.get_draining_nodes())

    def available(self) -> Mapping[str, Bundle]:
        """Return what is free on each node that takes new work, by the node's id."""
        if not self._is_known:
            return {}
        from ray._private.state import state

        draining = self.draining()
        free_of = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return {node: free for node, free in free_of.items() if node not in draining}

    def placed(self) -> Sequence[Sequence[tuple[str, Bundle]]]:
        """Return each placement group that has its room: the id of the node and the resources of each bundle."""
        groups = [group for group in _placement_groups() if group["state"] == "CREATED"]
        return [
            [(group["bundles_to_node_id"][index], bundle) for index, bundle in sorted(group["bundles"].items())]
            for group in groups
        ]

    def unplaced(self) -> Sequence[Sequence[Bundle]]:
        """Return the bundles of each placement group that waits for room; also those of other commands."""
        groups = _placement_groups()
        return [list(group["bundles"].values()) for group in groups if group["state"] in ("PENDING", "RESCHEDULING")]


def accepts_connections(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a server accepts a connection now; waits for it no longer than that."""
    with suppress(OSError), socket.create_connection((host, port), timeout=timeout_s):
        return True
    return False


def _placement_groups() -> list[dict[str, Any]]:
    from ray.util.placement_group import placement_group_table

    return list(placement_group_table().values())
