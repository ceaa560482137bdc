"""NodeLosses: what a fleet reports about nodes that were lost with their workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class NodeLoss:
    """One lost node."""

    lost_at_s: float
    num_workers: int = 0
    missing: set[int] = field(default_factory=set)
    """The indices of those of its workers that have not delivered since."""


class NodeLosses:
    """Writes one event when workers are lost with a node, and one when all of them are back."""

    def __init__(self) -> None:
        self._losses: dict[str, NodeLoss] = {}

    def lost(self, workers: Sequence[tuple[str, int]], ends_soon: bool, now: float) -> list[str]:
        """Return an event for each node of ``workers``, which are pairs of a node and a worker's index."""
        by_node: defaultdict[str, set[int]] = defaultdict(set)
        for node, index in workers:
            by_node[node].add(index)
        return [self._lost(node, indices, ends_soon, now) for node, indices in by_node.items()]

    def back(self, node: str, index: int, now: float) -> list[str]:
        """Return an event if the worker was the last of ``node`` that was missing."""
        loss = self._losses.get(node)
        if loss is None:
            return []
        loss.missing.discard(index)
        if loss.missing:
            return []
        del self._losses[node]
        return [f"{_workers(loss.num_workers)} of node {node} came back after {now - loss.lost_at_s:.1f} s"]

    def _lost(self, node: str, indices: set[int], ends_soon: bool, now: float) -> str:
        loss = self._losses.setdefault(node, NodeLoss(now))
        loss.missing |= indices
        loss.num_workers = len(loss.missing)
        if ends_soon:
            return f"node {node} ends soon: its {_workers(len(indices))} move to others when there is room"
        return f"node {node} is lost with {_workers(len(indices))}: they come back when there is room"


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"
