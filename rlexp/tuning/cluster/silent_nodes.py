"""Nodes of trials that do not answer: Ray itself needs up to a minute to find out that a machine is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from rlexp.sessions.reachability import Reachability
from rlexp.tuning.cluster.ray_nodes import RayNode

NOTED_AFTER_S = 2.5
"""How long a node has not answered when that is shown."""
LOST_AFTER_S = 8.0
"""How long it has not answered when its trials are started elsewhere."""
INTERVAL_S = 1.0


class Server(Protocol):
    """A server that is tried again and again."""

    def silent_s(self) -> float:
        """Return for how long it has not answered; never waits."""

    def close(self) -> None:
        """Give up the try in progress."""


def _server_of(node: RayNode) -> Server:
    return Reachability(node.address, node.port, interval_s=INTERVAL_S)


class SilentNodes:
    """Owns the tries to reach the nodes on which trials run, until ``close``; nothing here waits."""

    def __init__(self, server_of: Callable[[RayNode], Server] = _server_of) -> None:
        self._server_of = server_of
        self._servers: dict[str, Server] = {}

    def look(self, running: Mapping[str, RayNode]) -> dict[str, float]:
        """Return for how many seconds the node of each running trial has not answered; often 0 for all."""
        nodes = {node.id: node for node in running.values()}
        for node_id in self._servers.keys() - nodes.keys():
            self._servers.pop(node_id).close()
        for node_id in nodes.keys() - self._servers.keys():
            with suppress(OSError):  # its name is not known at this moment
                self._servers[node_id] = self._server_of(nodes[node_id])
        silent_s = {node_id: server.silent_s() for node_id, server in self._servers.items()}
        return {name: silent_s.get(node.id, 0.0) for name, node in running.items()}

    def close(self) -> None:
        """Give up every try; idempotent."""
        while self._servers:
            self._servers.popitem()[1].close()
