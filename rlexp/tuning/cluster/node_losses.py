"""Whether a trial's process died with its node, which does not count as a failure of the trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ray.exceptions import RayError

from rlexp.tuning.cluster.ray_nodes import ClusterNodes, RayNode

_LOOKS = 3
_BETWEEN_LOOKS_S = 0.4
"""A node that is killed does not lose all of its processes in the same instant."""


class NodeLosses:
    """Owns where each trial's process is, and the failures of the trials that count."""

    def __init__(self, nodes: ClusterNodes, wait: Callable[[float], None] = time.sleep) -> None:
        self._nodes = nodes
        self._wait = wait
        self._node_of: dict[str, RayNode] = {}
        self._may_be_on: dict[str, Sequence[RayNode]] = {}
        """Where a process may be that starts after a loss, until it begins its trial."""
        self._failed_at: dict[str, list[RayNode | None]] = {}
        """The node of each failure that counted when it came."""

    def begin(self, name: str, actor: Any) -> None:
        """Remember where the process of a trial is, an actor that has started."""
        self._node_of.pop(name, None)
        self._may_be_on.pop(name, None)
        with suppress(RayError):  # the head is lost, which the session reports
            node = self._nodes.of_actor(actor)
            if node is not None:
                self._node_of[name] = node

    def node_of(self, name: str) -> RayNode | None:
        """Return the node of the trial's process, or of the last that it had."""
        return self._node_of.get(name)

    def lost_node(self, name: str) -> RayNode | None:
        """Return the node of a trial whose process has just died, None where the node lives.

        Ray declares a node dead after up to half a minute, so that a node is also lost that accepts no connection; and
        one that is drained ends its processes by itself. Takes about a second where the node lives.

        The next process may die before it begins the trial. Then any node is returned that was lost meanwhile.
        """
        node = self._node_of.get(name)
        nodes = self._may_be_on.get(name, [] if node is None else [node])
        for look in range(_LOOKS if nodes else 0):
            if look:
                self._wait(_BETWEEN_LOOKS_S)
            lost = next((node for node in nodes if self._is_lost(node)), None)
            if lost is not None:
                self._node_of[name] = lost
                self._may_be_on[name] = [node for node in self._nodes.nodes() if node.is_alive and node.id != lost.id]
                return lost
        return None

    def count(self, name: str) -> int:
        """Count a failure of a trial; return its number of failures, without those whose node has died since."""
        failed_at = self._failed_at.setdefault(name, [])
        failed_at.append(self._node_of.get(name))
        dead = {node.id for node in self._nodes.nodes() if not node.is_alive}
        failed_at[:] = [node for node in failed_at if node is None or node.id not in dead]
        return len(failed_at)

    def _is_lost(self, node: RayNode) -> bool:
        alive = {each.id for each in self._nodes.nodes() if each.is_alive}
        return node.id not in alive or node.id in self._nodes.draining() or not self._nodes.answers(node)
