"""What a watch shows of actors whose nodes come, end and are lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.cluster.pool import ONE_NODE, Actor
from rlexp.cluster.pool.nodes import KEPT_S, ClusterWatch, NodeStates


class FakeNodes:
    """Nodes and the actors on them, as a test says."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.dead: set[str] = set()
        self.draining: set[str] = set()
        self.node_of: dict[str, str] = {}
        self.num_counted = 0

    def num_alive(self) -> int:
        self.num_counted += 1
        return len(self.alive)

    def look(self) -> NodeStates:
        names = {node: f"10.0.0.{node}" for node in self.alive | self.dead}
        return NodeStates(
            alive={node: names[node] for node in self.alive},
            dead={node: names[node] for node in self.dead},
            draining=frozenset(self.draining),
        )

    def nodes_of(self, actors: set[str]) -> Mapping[str, str]:
        return {actor: node for actor, node in self.node_of.items() if actor in actors}

    def id_of(self, actor: Actor[Any]) -> str:
        return actor.name


class Bench:
    """A watch of two actors on two nodes, which looks when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes = FakeNodes("1", "2")
        self.watch = ClusterWatch(self.nodes, lambda: self.now_s)
        self.actors = [Actor[Any](name, None) for name in ("a", "b")]
        for actor in self.actors:
            self.watch.add(actor)
        self.watch.stop()  # its thread; the test looks instead

    def look(self) -> None:
        self.watch.look()


def test_one_node_is_not_watched() -> None:
    nodes = FakeNodes("1")
    watch = ClusterWatch(nodes, lambda: 0.0)
    for name in ("a", "b", "c"):
        watch.add(Actor[Any](name, None))
    assert watch.state is ONE_NODE
    assert not watch.sees_several_nodes
    assert nodes.num_counted == 1
    watch.stop()


def test_actor_has_room_once_it_has_a_node() -> None:
    bench = Bench()
    first, second = bench.actors
    assert bench.watch.sees_several_nodes
    assert not bench.watch.state.has_room(first)
    bench.nodes.node_of["a"] = "1"
    bench.look()
    assert bench.watch.state.has_room(first)
    assert not bench.watch.state.has_room(second)


def test_state_is_the_same_object_while_nothing_changes() -> None:
    bench = Bench()
    bench.nodes.node_of = {"a": "1", "b": "2"}
    bench.look()
    state = bench.watch.state
    bench.look()
    assert bench.watch.state is state


def test_actors_of_dead_and_ending_nodes_are_shown_with_the_nodes_name() -> None:
    bench = Bench()
    first, second = bench.actors
    bench.nodes.node_of = {"a": "1", "b": "2"}
    bench.look()
    bench.nodes.alive.remove("2")
    bench.nodes.dead.add("2")
    bench.nodes.draining.add("1")
    bench.look()
    assert bench.watch.state.lost == {second: "10.0.0.2"}
    assert bench.watch.state.draining == {first: "10.0.0.1"}
    assert not bench.watch.state.has_room(second)


def test_node_of_a_removed_actor_is_remembered_for_a_while() -> None:
    bench = Bench()
    second = bench.actors[1]
    bench.nodes.node_of = {"a": "1", "b": "2"}
    bench.look()
    bench.watch.remove(second)
    bench.nodes.alive.remove("2")
    bench.nodes.dead.add("2")
    bench.now_s = 30.0
    bench.look()
    assert bench.watch.state.lost == {second: "10.0.0.2"}
    bench.now_s = KEPT_S + 1.0
    bench.look()
    assert bench.watch.state.lost == {}


def test_stops_twice() -> None:
    bench = Bench()
    bench.watch.stop()
    bench.watch.stop()
