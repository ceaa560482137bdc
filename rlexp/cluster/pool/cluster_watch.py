"""ClusterWatch: which of a pool's actors wait for room, were lost with their node, or are on one that ends soon."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Any

from rlexp.cluster.nodes import RayNode, RayTables
from rlexp.cluster.pool.pool import ONE_NODE, Actor, ClusterState

LOOK_S, LOOK_SOON_S = 2.0, 1.0
"""Between two looks at the nodes; the shorter one while an actor has no known node."""
KEPT_S = 120.0
"""How long the node of a removed actor is remembered: Ray notices up to a minute late that a node is dead."""
STOP_TIMEOUT_S = 5.0
"""Bound of the wait for a look in progress."""


class ClusterWatch:
    """Owns a thread that looks at the nodes every few seconds, once there are several; ends with ``stop``."""

    def __init__(self, nodes: RayTables, clock: Callable[[], float] = time.monotonic) -> None:
        """``nodes`` are asked in the thread too."""
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

    def _state_of(self, nodes: Sequence[RayNode], draining: Set[str]) -> ClusterState:
        known = {actor: node for actor, node in self._node_of.items() if node is not None}
        alive = {node.id: node.address for node in nodes if node.is_alive}
        dead = {node.id: node.address for node in nodes if not node.is_alive}
        return ClusterState(
            placed=frozenset(actor for actor, node in known.items() if node in alive),
            lost={actor: dead[node] for actor, node in known.items() if node in dead},
            draining={actor: alive[node] for actor, node in known.items() if node in draining and node in alive},
        )
