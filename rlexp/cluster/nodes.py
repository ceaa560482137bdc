"""The nodes of a joined cluster as Ray's own tables have them: who lives, who is drained, where an actor is."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray._private.state import state
from ray.util.placement_group import placement_group_table

Bundle = Mapping[str, float]
"""Amounts of resources that are reserved or free on one node, by Ray's names."""
_ANSWER_TIMEOUT_S = 2.0
"""How long a node may take to accept a connection."""


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


class ClusterNodes(Protocol):
    """What is asked about the nodes of a cluster."""

    def nodes(self) -> Sequence[RayNode]:
        """Return all, also those that are dead."""

    def of_actor(self, actor: Any) -> RayNode | None:
        """Return the node of an actor that has started, None where it is not known."""

    def answers(self, node: RayNode) -> bool:
        """Return whether a node's manager accepts connections now; takes up to two seconds."""

    def draining(self) -> frozenset[str]:
        """Return the ids of the nodes that are about to be taken away."""

    def available(self) -> Mapping[str, Bundle]:
        """Return what is free on each node that takes new work, by the node's id."""

    def placed(self) -> Sequence[Sequence[tuple[str, Bundle]]]:
        """Return each placement group that has its room: the id of the node and the resources of each bundle."""

    def unplaced(self) -> Sequence[Sequence[Bundle]]:
        """Return the bundles of each placement group that waits for room; also those of other commands."""


class RayTables:
    """Asks Ray, to which this process is connected.

    Ray has no public call for some of it without its dashboard; Ray Train reads the same tables.
    """

    def nodes(self) -> list[RayNode]:
        return [
            RayNode(row["NodeID"], row["NodeManagerAddress"], row["NodeManagerPort"], row["Alive"])
            for row in ray.nodes()  # type: ignore[no-untyped-call]
        ]

    def of_actor(self, actor: Any) -> RayNode | None:
        row = state.actor_table(actor._ray_actor_id.hex())
        where = row.get("Address", {}).get("NodeID")
        return next((node for node in self.nodes() if node.id == where), None)

    def answers(self, node: RayNode) -> bool:
        with suppress(OSError), socket.create_connection((node.address, node.port), timeout=_ANSWER_TIMEOUT_S):
            return True
        return False

    def draining(self) -> frozenset[str]:
        return frozenset(state.get_draining_nodes())

    def available(self) -> dict[str, Bundle]:
        draining = self.draining()
        free_of = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return {node: free for node, free in free_of.items() if node not in draining}

    def placed(self) -> list[list[tuple[str, Bundle]]]:
        groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
        return [
            [(group["bundles_to_node_id"][index], bundle) for index, bundle in sorted(group["bundles"].items())]
            for group in groups
        ]

    def unplaced(self) -> list[list[Bundle]]:
        groups = placement_group_table().values()
        return [list(group["bundles"].values()) for group in groups if group["state"] in ("PENDING", "RESCHEDULING")]
