"""Where this process is: its node, and the bundles of the trial that it belongs to."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrialGroup:
    """The bundles of a trial, as seen from one of its processes."""

    num_bundles: int
    here: frozenset[int]
    """The numbers of the bundles on this process's node."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """The id of each bundle's node, by the bundle's number."""

    @property
    def is_all_here(self) -> bool:
        """Whether the trial reserves nothing on other nodes."""
        return len(self.here) == self.num_bundles


@dataclass(frozen=True)
class OwnNode:
    """The node of a process."""

    id: str
    """Ray's: hosts may share a name."""
    address: str | None
    """At which the other nodes reach it; None without Ray."""


def own_node() -> OwnNode:
    """Return the node that this process is on; without Ray its host."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return OwnNode(socket.gethostname(), None)
    return OwnNode(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


def trial_group() -> TrialGroup | None:
    """Return the bundles of this process's trial; None in a process that Ray did not start for a trial."""
    # Only Ray's own processes have imported it by then, and asking Ray for a group would start a Ray elsewhere.
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    from ray.util import get_current_placement_group, placement_group_table

    group = get_current_placement_group()
    if group is None:
        return None
    nodes = placement_group_table(group)["bundles_to_node_id"]
    own_node = ray.get_runtime_context().get_node_id()
    here = frozenset(number for number, node in nodes.items() if node == own_node)
    return TrialGroup(len(nodes), here, dict(nodes))
