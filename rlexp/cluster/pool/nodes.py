"""ClusterWatch: which of a pool's actors wait for room, were lost with their node, or are on one that ends soon."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rlexp.cluster.pool.pool import ONE_NODE, Actor, ClusterState

LOOK_S, LOOK_SOON_S = 2.0, 1.0
"""Between two looks at the nodes; the shorter one while an actor has no known node."""
KEPT_S = 120.0
"""How long the node of a removed actor is remembered: Ray notices up to a minute late that a node is dead."""
FEW_ACTORS = 20
"""So many are asked for one by one; the table of all would take longer."""
STOP_TIMEOUT_S = 5.0
"""Bound of the wait for a look in progress."""


@dataclass(frozen=True)
class NodeStates:
    """The nodes of a cluster, each by its id with its name."""

    alive: Mapping[str, str]
    dead: Mapping[str, str]
    draining: frozenset[str]
    """The ids of those that will end soon."""


class Nodes(Protocol):
    """What a cluster knows of its nodes and actors; may be asked in any thread."""

    def num_alive(self) -> int:
        """Return how many nodes there are; 0 before this process is connected to them."""
        ...

    def look(self) -> NodeStates:
        """Return the state of every node."""
        ...

    def nodes_of(self, actors: set[str]) -> Mapping[str, str]:
        """Return the node's id of each of ``actors``, which are ids, that has been given room on one."""
        ...

    def id_of(self, actor: Actor[Any]) -> str:
        """Return the cluster's id of an actor."""
        ...


class RayNodes:
    """The tables of the Ray that this process is connected to.

    Ray has no public call for draining nodes, nor for actors without its dashboard; Ray Train reads these too.
    """

    def num_alive(self) -> int:
        import ray

        if not ray.is_initialized():
            return 0
        return sum(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]

    def look(self) -> NodeStates:
        from ray._private.state import state

        nodes = state.node_table()  # type: ignore[no-untyped-call]
        names = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        return NodeStates(
            alive={node: name for node, name in names.items() if node in alive},
            dead={node: name for node, name in names.items() if node not in alive},
            draining=frozenset(state.get_draining_nodes()),
        )

    def nodes_of(self, actors: set[str]) -> Mapping[str, str]:
        import ray
        from ray._private.state import state

        if len(actors) <= FEW_ACTORS:
            rows = {actor: state.actor_table(actor) for actor in actors}
        else:
            rows = state.actor_table(None, job_id=ray.JobID.from_hex(ray.get_runtime_context().get_job_id()))
        nodes = {actor: rows[actor]["Address"]["NodeID"] for actor in actors if rows.get(actor)}
        return {actor: node for actor, node in nodes.items() if node.strip("f")}  # Ray's id of no node is all f

    def id_of(self, actor: Actor[Any]) -> str:
        return str(actor.handle._actor_id.hex())


class ClusterWatch:
    """Owns a thread that looks at the nodes every few seconds, once there are several; ends with ``stop``."""

    def __init__(self, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self.state = ONE_NODE
        """What the newest look has shown; a new object where something has changed."""
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
                self._start()

    def remove(self, actor: Actor[Any]) -> None:
        """Remember where a removed actor was, for a while."""
        with self._lock:
            self._removed_s[actor] = self._clock()

    def look(self) -> None:
        """Look at the nodes and the actors once."""
        states = self._nodes.look()
        with self._lock:
            unknown = {self._nodes.id_of(actor): actor for actor, node in self._node_of.items() if node is None}
        found = self._nodes.nodes_of(set(unknown)) if unknown else {}
        with self._lock:
            for identity, node in found.items():
                if unknown[identity] in self._node_of:
                    self._node_of[unknown[identity]] = node
            self._forget_old()
            state = self._state_of(states)
        if state != self.state:
            self.state = state

    def stop(self) -> None:
        """End the thread; idempotent."""
        self._shall_stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(STOP_TIMEOUT_S)

    def _start(self) -> None:
        self.sees_several_nodes = True
        self.state = ClusterState(placed=frozenset())
        self._thread = threading.Thread(target=self._run, name="cluster-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._shall_stop.wait(LOOK_SOON_S if self._lacks_nodes() else LOOK_S):
            try:
                self.look()
            except Exception as error:  # the head may be away for a while: what was known last stays true
                logging.getLogger(__name__).debug("no look at the nodes: %s", error)

    def _lacks_nodes(self) -> bool:
        with self._lock:
            return any(node is None and actor not in self._removed_s for actor, node in self._node_of.items())

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_S
        for actor in [actor for actor, removed_s in self._removed_s.items() if removed_s < oldest]:
            del self._removed_s[actor]
            self._node_of.pop(actor, None)

    def _state_of(self, states: NodeStates) -> ClusterState:
        known = {actor: node for actor, node in self._node_of.items() if node is not None}
        return ClusterState(
            placed=frozenset(actor for actor, node in known.items() if node in states.alive),
            lost={actor: states.dead[node] for actor, node in known.items() if node in states.dead},
            draining={
                actor: states.alive[node]
                for actor, node in known.items()
                if node in states.draining and node in states.alive
            },
        )
