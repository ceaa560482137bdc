"""RayTables: the only reader of Ray's tables of nodes: alive and draining nodes, free resources, nodes of actors.

Also this process's node, and the bundles of its trial.
Trials of a joined cluster use it through the driver; a task pool through its ClusterWatch, which knows which of the
pool's actors wait for room, were lost with their node, or are on a node that ends soon. Importing it does not import
Ray.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlexp.cluster.pool.pool import ONE_NODE, Actor, ClusterState
from rlexp.cluster.shortcuts import NODE_TABLES

Bundle = Mapping[str, float]
"""Amounts of resources that are reserved or free on one node, by Ray's names."""
_ANSWER_TIMEOUT_S = 2.0
"""Seconds that a node may take to accept a connection."""
_FEW_ACTORS = 20
"""Most actors that are asked for one by one; for more, the table of all is faster."""


@dataclass(frozen=True)
class RayNode:
    """One node of Ray's cluster."""

    id: str
    """Ray's id, in hexadecimal digits; a node that comes back has another one."""
    address: str
    port: int
    """Port of the node's manager, Ray's process that all others there need."""
    is_alive: bool
    """Whether Ray has not declared it dead, which takes up to half a minute."""


class RayTables:
    """Reads tables of the Ray to which this process is connected; any thread may use it.

    Ray has no public call for nodes that will end, for free resources of each, nor for actors without its dashboard.
    Ray Train reads the same tables. If these have changed, the answer is that nothing is known.
    """

    def __init__(self) -> None:
        self._is_known = NODE_TABLES.why_off() is None

    def num_alive(self) -> int:
        """Return the number of nodes whose actors can be found; 0 before this process is connected."""
        import ray

        return sum(node.is_alive for node in self.nodes()) if self._is_known and ray.is_initialized() else 0

    def nodes(self) -> Sequence[RayNode]:
        """Return all nodes, with dead ones."""
        import ray

        return [
            RayNode(row["NodeID"], row["NodeManagerAddress"], row["NodeManagerPort"], row["Alive"])
            for row in ray.nodes()  # type: ignore[no-untyped-call]
        ]

    def nodes_of(self, actors: Sequence[Any]) -> Sequence[str | None]:
        """Return the node's id of each actor; None if it has no room yet."""
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
        return [node if node.strip("f") else None for node in nodes]  # Ray's id for no node is all f

    def of_actor(self, actor: Any) -> RayNode | None:
        """Return the node of an actor that has started; None if it is not known."""
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
        """Return what is free on each node that accepts new work, by the node's id."""
        if not self._is_known:
            return {}
        from ray._private.state import state

        draining = self.draining()
        free_of = state.available_resources_per_node()  # type: ignore[no-untyped-call]
        return {node: free for node, free in free_of.items() if node not in draining}

    def placed(self) -> Sequence[Sequence[tuple[str, Bundle]]]:
        """Return each placement group that has its room: node id and resources of each bundle."""
        groups = [group for group in _placement_groups() if group["state"] == "CREATED"]
        return [
            [(group["bundles_to_node_id"][index], bundle) for index, bundle in sorted(group["bundles"].items())]
            for group in groups
        ]

    def unplaced(self) -> Sequence[Sequence[Bundle]]:
        """Return the bundles of each placement group that waits for room; with the groups of other commands."""
        groups = _placement_groups()
        return [list(group["bundles"].values()) for group in groups if group["state"] in ("PENDING", "RESCHEDULING")]


def accepts_connections(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a server accepts a connection now, within ``timeout_s``."""
    with suppress(OSError), socket.create_connection((host, port), timeout=timeout_s):
        return True
    return False


def _placement_groups() -> list[dict[str, Any]]:
    from ray.util.placement_group import placement_group_table

    return list(placement_group_table().values())


@dataclass(frozen=True)
class TrialGroup:
    """The bundles of a trial, seen from one of its processes."""

    num_bundles: int
    here: frozenset[int]
    """The numbers of the bundles on this process's node."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """The node id of each bundle, by the bundle's number."""

    @property
    def is_all_here(self) -> bool:
        """Whether the trial reserves nothing on other nodes."""
        return len(self.here) == self.num_bundles


@dataclass(frozen=True)
class OwnNode:
    """The node of a process."""

    id: str
    """Ray's id, as hosts may share a name."""
    address: str | None
    """Address at which other nodes reach it; None without Ray."""


def own_node() -> OwnNode:
    """Return this process's node; without Ray, its host."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return OwnNode(socket.gethostname(), None)
    return OwnNode(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())


def trial_group() -> TrialGroup | None:
    """Return the bundles of this process's trial; None in a process that Ray did not start for a trial."""
    # Only Ray's own processes have imported it by this time; elsewhere, asking Ray for a group would start a Ray.
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


LOOK_S, LOOK_SOON_S = 2.0, 1.0
"""Seconds between two looks at the nodes; the shorter one while the node of an actor is not known."""
KEPT_S = 120.0
"""Seconds for which the node of a removed actor is stored: Ray notices a dead node up to a minute late."""
STOP_TIMEOUT_S = 5.0
"""Most seconds to wait for a look in progress."""


class ClusterWatch:
    """Owns a thread that looks at the nodes every few seconds, once there are several; ends with ``stop``."""

    def __init__(self, nodes: RayTables, clock: Callable[[], float] = time.monotonic) -> None:
        """Initialise; the thread also asks ``nodes``."""
        self.state = ONE_NODE
        """The result of the newest look; a new object if something has changed."""
        self.sees_several_nodes = False
        self._nodes = nodes
        self._clock = clock
        self._lock = threading.Lock()
        self._node_of: dict[Actor[Any], str | None] = {}
        self._removed_s: dict[Actor[Any], float] = {}
        self._counted_s: float | None = None
        self._shall_stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, actor: Actor[Any]) -> None:
        """Watch an actor that was placed; the first one on one of several nodes starts the thread."""
        with self._lock:
            self._node_of[actor] = None
        now = self._clock()
        if self._thread is None and (self._counted_s is None or now - self._counted_s > LOOK_S):
            self._counted_s = now
            if self._nodes.num_alive() > 1:
                self.sees_several_nodes = True
                self.state = ClusterState(placed=frozenset())
                self._thread = threading.Thread(target=self._run, name="cluster-watch", daemon=True)
                self._thread.start()

    def remove(self, actor: Actor[Any]) -> None:
        """Store for a while where a removed actor was."""
        with self._lock:
            self._removed_s[actor] = self._clock()

    def look(self) -> None:
        nodes, draining = self._nodes.nodes(), self._nodes.draining()
        with self._lock:
            unknown = [actor for actor, node in self._node_of.items() if node is None]
        found = self._nodes.nodes_of([actor.handle for actor in unknown]) if unknown else []
        with self._lock:
            self._node_of |= {actor: node for actor, node in zip(unknown, found, strict=True) if actor in self._node_of}
            self._forget_old()
            state = self._state_of(nodes, draining)
        if state != self.state:
            self.state = state

    def stop(self) -> None:
        """End the thread; idempotent."""
        self._shall_stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._shall_stop.wait(LOOK_SOON_S if self._lacks_nodes() else LOOK_S):
            try:
                self.look()
            except Exception as error:  # the head may be away for a while; the last known state stays
                logging.getLogger(__name__).debug("no look at the nodes: %s", error)

    def _lacks_nodes(self) -> bool:
        with self._lock:
            return any(node is None and actor not in self._removed_s for actor, node in self._node_of.items())

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_S
        for actor in [actor for actor, removed_s in self._removed_s.items() if removed_s < oldest]:
            del self._removed_s[actor]
            self._node_of.pop(actor, None)

    def _state_of(self, nodes: Sequence[RayNode], draining: Set[str]) -> ClusterState:
        known = {actor: node for actor, node in self._node_of.items() if node is not None}
        alive = {node.id: node.address for node in nodes if node.is_alive}
        dead = {node.id: node.address for node in nodes if not node.is_alive}
        return ClusterState(
            placed=frozenset(actor for actor, node in known.items() if node in alive),
            lost={actor: dead[node] for actor, node in known.items() if node in dead},
            draining={actor: alive[node] for actor, node in known.items() if node in draining and node in alive},
        )
