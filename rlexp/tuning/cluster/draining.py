"""Spot notices: nodes that are about to be taken away, and the trials that have to leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rlexp.tuning.cluster.node_losses import NodeLosses
from rlexp.tuning.cluster.ray_nodes import ClusterNodes, RayNode

_SECONDS_BETWEEN_LOOKS = 5.0


class DrainWatch:
    """Owns which nodes are drained, as of the last look, and which trials were asked to move."""

    def __init__(self, nodes: ClusterNodes, losses: NodeLosses, clock: Callable[[], float]) -> None:
        self._nodes = nodes
        self._losses = losses
        self._clock = clock
        self._next_look_s = 0.0
        self._asked: set[str] = set()

    def to_move(self, running: Iterable[str]) -> dict[str, RayNode]:
        """Return those of the trials that run on a drained node and were not asked yet, with the node; often empty.

        Looks at most every five seconds.
        """
        now_s = self._clock()
        if now_s < self._next_look_s:
            return {}
        self._next_look_s = now_s + _SECONDS_BETWEEN_LOOKS
        draining = self._nodes.draining()
        found: dict[str, RayNode] = {}
        for name in running:
            node = self._losses.node_of(name)
            if node is not None and node.id in draining and name not in self._asked:
                found[name] = node
        self._asked |= found.keys()
        return found

    def is_asked(self, name: str) -> bool:
        """Return whether a trial was asked to move since its process began."""
        return name in self._asked

    def forget(self, name: str) -> None:
        """Forget that a trial was asked: another process begins it, or it has ended."""
        self._asked.discard(name)
