"""NodeLosses: what a fleet reports about nodes that were lost with their workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class NodeLoss:
    """One lost node."""

    lost_at_s: float
    lost: set[int] = field(default_factory=set)
    """The indices of those that were lost with it."""
    missing: set[int] = field(default_factory=set)
    """Those of them that have not delivered since."""


class NodeLosses:
    """Writes one event when members of a fleet are lost with a node, and one when all of them are back."""

    def __init__(self, num_workers_of: Callable[[int], int]) -> None:
        """``num_workers_of`` returns how many workers are lost with the member of an index."""
        self._num_workers_of = num_workers_of
        self._losses: dict[str, NodeLoss] = {}

    def lost(self, members: Sequence[tuple[str, int]], ends_soon: bool, now: float) -> list[str]:
        """Return an event for each node of ``members``, which are pairs of a node and a member's index."""
        by_node: defaultdict[str, set[int]] = defaultdict(set)
        for node, index in members:
            by_node[node].add(index)
        return [self._lost(node, indices, ends_soon, now) for node, indices in by_node.items()]

    def back(self, node: str, index: int, now: float) -> list[str]:
        """Return an event if the member was the last of ``node`` that was missing."""
        loss = self._losses.get(node)
        if loss is None:
            return []
        loss.missing.discard(index)
        if loss.missing:
            return []
        del self._losses[node]
        return [f"{self._workers(loss.lost)} of node {node} came back after {now - loss.lost_at_s:.1f} s"]

    def _lost(self, node: str, indices: set[int], ends_soon: bool, now: float) -> str:
        loss = self._losses.setdefault(node, NodeLoss(now))
        loss.missing |= indices
        loss.lost = set(loss.missing)
        if ends_soon:
            return f"node {node} ends soon: its {self._workers(indices)} move to others when there is room"
        return f"node {node} is lost with {self._workers(indices)}: they come back when there is room"

    def _workers(self, indices: Iterable[int]) -> str:
        count = sum(map(self._num_workers_of, indices))
        return f"{count} worker" if count == 1 else f"{count} workers"
