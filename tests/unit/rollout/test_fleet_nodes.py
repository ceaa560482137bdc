"""Workers that are lost with their node, wait for room, or are on a node that ends soon."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.cluster.pool import Actor, ActorLostError, ArgumentLostError, ClusterState
from rlexp.errors import TrialError
from rlexp.rollout.fleet_member import FAILURES_IN_WINDOW, START_S, SUSPECTED_S, NodeLosses
from tests.unit.rollout.test_fleet import DIES, TIMEOUT_S, Bench, FakeWorker, FragilePool

NODES = ("10.0.0.2", "10.0.0.3")


class ClusterPool(FragilePool):
    """A pool over two nodes; worker i is on node i % 2 while there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.actors: list[Actor[Any]] = []
        self.full: set[str] = set()
        self.dead: set[Actor[Any]] = set()
        self.draining: set[str] = set()
        self._placed: set[Actor[Any]] = set()
        self._state = ClusterState(placed=frozenset())

    def look(self) -> None:
        """Show what is the case now, as a watch does every few seconds."""
        self._placed |= {actor for actor in self.actors if node_of(actor) not in self.full}
        self._state = ClusterState(
            placed=frozenset(self._placed - self.dead),
            lost={actor: node_of(actor) for actor in self.dead},
            draining={actor: node_of(actor) for actor in self._placed if node_of(actor) in self.draining},
        )

    def end(self, node: str) -> None:
        """Let a node be found dead with all that runs on it; what is placed there waits."""
        self.dead |= {actor for actor in self._placed if node_of(actor) == node}
        self.full.add(node)
        self.look()

    def cluster_state(self) -> ClusterState:
        return self._state


class ClusterBench(Bench):
    """A fleet on two nodes, whose workers have all delivered."""

    def __init__(self, num_workers: int = 4, max_restarts: int = 100) -> None:
        super().__init__(num_workers, max_restarts, ClusterPool())
        self.cluster.look()
        self.poll()
        assert self.poll() == list(range(num_workers))

    @property
    def cluster(self) -> ClusterPool:
        assert isinstance(self.pool, ClusterPool)
        return self.pool

    def place(self, index: int, attempt: int) -> Actor[Any]:
        actor = super().place(index, attempt)
        self.cluster.actors.append(actor)
        return actor

    def kill(self, node: str) -> None:
        """Let the processes of a node die, before anybody knows why."""
        for worker in self.workers.values():
            if NODES[worker.index % 2] == node:
                worker.fate = DIES


def node_of(actor: Actor[Any]) -> str:
    worker: FakeWorker = actor.handle
    return NODES[worker.index % 2]


def test_worker_without_room_is_neither_asked_nor_hangs() -> None:
    pool = ClusterPool()
    bench = Bench(2, pool=pool)
    for _ in range(20):
        assert bench.poll(2) == []
        assert bench.source.num_in_flight == 0
        bench.now_s += TIMEOUT_S + START_S
    assert pool.removed == []
    assert bench.source.num_worker_restarts == 0


def test_workers_lost_with_their_node_cost_no_restart_and_come_back() -> None:
    bench = ClusterBench()
    bench.cluster.end("10.0.0.3")
    bench.poll()
    assert bench.source.drain_events() == [
        "node 10.0.0.3 is lost with 2 workers: they come back when there is room",
    ]
    for _ in range(60):
        bench.now_s += 5.0
        bench.cluster.look()
        assert bench.poll() == [0, 2]
    assert bench.source.num_worker_restarts == 0
    bench.cluster.full.clear()
    bench.cluster.look()
    bench.poll()
    assert bench.poll() == [0, 1, 2, 3]
    assert bench.source.drain_events() == ["2 workers of node 10.0.0.3 came back after 300.0 s"]
    assert bench.source.num_worker_restarts == 0


def test_restarts_are_not_counted_when_the_node_turns_out_dead() -> None:
    bench = ClusterBench(max_restarts=2)
    bench.kill("10.0.0.3")
    bench.poll()
    assert bench.poll() == [0, 2]
    assert bench.source.num_worker_restarts == 0
    bench.cluster.full.add("10.0.0.3")
    bench.now_s += 20.0
    bench.cluster.end("10.0.0.3")
    bench.poll()
    assert bench.source.num_worker_restarts == 0
    assert "is lost with 2 workers" in bench.source.drain_events()[-1]
    bench.now_s += SUSPECTED_S + 1.0
    assert bench.source.num_worker_restarts == 0
    bench.workers[0].fate = DIES
    bench.poll_often(2, 1.0)
    bench.cluster.look()
    bench.poll_often(2, 1.0)
    assert "(restart 1 of at most 2)" in bench.source.drain_events()[-1], "both are taken back from the limit"


def test_worker_removed_for_good_is_placed_again_when_its_node_turns_out_dead() -> None:
    bench = ClusterBench(max_restarts=0)
    bench.kill("10.0.0.3")
    bench.poll()
    bench.poll()
    assert len(bench.source.drain_events()) == 2  # both were removed
    bench.cluster.end("10.0.0.3")
    bench.cluster.full.clear()
    bench.poll()
    bench.cluster.look()
    bench.poll()
    assert bench.poll() == [0, 1, 2, 3]
    assert bench.source.num_worker_restarts == 0


def test_node_lost_many_times_removes_nobody() -> None:
    bench = ClusterBench(max_restarts=1)
    for _ in range(2 * FAILURES_IN_WINDOW):
        bench.cluster.end("10.0.0.3")
        bench.poll()
        bench.cluster.full.clear()
        bench.cluster.look()
        bench.poll()
        assert bench.poll() == [0, 1, 2, 3]
    assert bench.source.num_worker_restarts == 0


def test_process_that_dies_on_a_living_node_is_counted() -> None:
    bench = ClusterBench()
    bench.workers[1].fate = DIES
    bench.poll()
    bench.poll()
    bench.cluster.look()
    bench.poll()
    assert bench.poll() == [0, 1, 2, 3]
    assert bench.source.num_worker_restarts == 0  # its node may turn out to be lost
    bench.now_s += SUSPECTED_S + 1.0
    assert bench.source.num_worker_restarts == 1
    bench.cluster.end("10.0.0.3")
    bench.poll()
    assert bench.source.num_worker_restarts == 1


def test_worker_on_a_node_that_ends_soon_is_moved() -> None:
    bench = ClusterBench()
    bench.cluster.draining.add("10.0.0.3")
    bench.cluster.full.add("10.0.0.3")
    bench.cluster.look()
    bench.poll()
    assert bench.source.drain_events() == [
        "node 10.0.0.3 ends soon: its 2 workers move to others when there is room",
    ]
    assert {worker.index for worker in bench.pool.removed} == {1, 3}
    assert bench.poll() == [0, 2]
    assert bench.source.num_worker_restarts == 0


def test_wanted_calls_of_a_lost_node_are_asked_of_the_others() -> None:
    bench = ClusterBench()
    for worker in bench.workers.values():
        worker.fate = "hangs" if worker.index % 2 else "works"
    bench.poll(8)
    bench.cluster.end("10.0.0.3")
    bench.poll(4)
    assert bench.source.num_in_flight <= 2
    collected: list[int] = []
    for _ in range(4):
        collected += bench.poll(4 - len(collected))
    assert set(collected) == {0, 2}


@pytest.mark.parametrize("error", [ActorLostError("its process died"), ArgumentLostError("its result is lost")])
def test_failed_calls_of_a_dead_node_make_one_event_and_are_not_counted(error: TrialError) -> None:
    bench = ClusterBench()
    bench.cluster.end("10.0.0.3")
    for worker in [actor for actor in bench.fleet if actor.handle.index % 2]:
        bench.fleet.failed(worker, error)
    bench.poll()
    assert bench.source.num_worker_restarts == 0
    assert len(bench.source.drain_events()) == 1
    assert {actor.handle.index for actor in bench.fleet} == {0, 2}


def test_events_of_nodes_count_the_workers_of_each_gatherer() -> None:
    losses = NodeLosses(lambda index: 3)
    assert "with 6 workers" in losses.lost([("10.0.0.3", 0), ("10.0.0.3", 1)], False, 0.0)[0]
    assert losses.back("10.0.0.3", 0, 1.0) == []
    assert losses.back("10.0.0.3", 1, 2.0) == ["6 workers of node 10.0.0.3 came back after 2.0 s"]
