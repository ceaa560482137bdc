"""Calls that Ray runs elsewhere, by refs that become ready when a test says so.

What a watch shows of actors whose nodes come, end and are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlexp.cluster.pool.nodes import KEPT_S, ClusterWatch, RayNode
from rlexp.cluster.pool.pool import ONE_NODE, Actor, ClusterState, Completed, InlineTaskPool, Lane, Ref
from rlexp.cluster.pool.ray_pool import MANY_CALLS, RayCalls
from tests.lab.cluster import FakeNodes


class Bench:
    """A watch of two actors, to which the test gives places on two nodes; it looks when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes = FakeNodes()
        self.watch = ClusterWatch(self.nodes, lambda: self.now_s)
        self.actors = [Actor[Any](name, name) for name in ("first", "second")]
        for actor in self.actors:
            self.watch.add(actor)
        self.watch.stop()  # its thread; the test looks instead

    def look(self, **places: str) -> ClusterState:
        self.nodes.places |= places
        self.watch.look()
        return self.watch.state


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_node_is_not_watched() -> None:
    nodes = FakeNodes([RayNode("a", "10.0.0.1", 1, True)])
    watch = ClusterWatch(nodes, lambda: 0.0)
    for name in ("first", "second", "third"):
        watch.add(Actor[Any](name, None))
    assert watch.state is ONE_NODE
    assert not watch.sees_several_nodes
    assert nodes.num_counted == 1
    watch.stop()


def test_actor_has_room_once_it_has_a_node(bench: Bench) -> None:
    assert bench.watch.sees_several_nodes
    assert [bench.watch.state.has_room(actor) for actor in bench.actors] == [False, False]
    assert [bench.look(first="a").has_room(actor) for actor in bench.actors] == [True, False]


def test_state_is_the_same_object_while_nothing_changes(bench: Bench) -> None:
    state = bench.look(first="a", second="b")
    assert bench.look() is state


def test_actors_of_dead_and_ending_nodes_are_shown_with_the_nodes_name(bench: Bench) -> None:
    first, second = bench.actors
    bench.look(first="a", second="b")
    bench.nodes.declare_dead("b")
    bench.nodes.drained.add("a")
    state = bench.look()
    assert (state.lost, state.draining) == ({second: "10.0.0.2"}, {first: "10.0.0.1"})
    assert not state.has_room(second)


def test_node_of_a_removed_actor_is_remembered_for_a_while(bench: Bench) -> None:
    bench.look(first="a", second="b")
    bench.watch.remove(bench.actors[1])
    bench.nodes.declare_dead("b")
    bench.now_s = 30.0
    assert bench.look().lost == {bench.actors[1]: "10.0.0.2"}
    bench.now_s = KEPT_S + 1.0
    assert bench.look().lost == {}


def test_stops_twice(bench: Bench) -> None:
    bench.watch.stop()
    bench.watch.stop()


WORKER, OTHER = Actor[Any]("worker", None), Actor[Any]("other", None)


class FakeRef:
    """A value elsewhere; ``end`` makes it ready."""

    def __init__(self) -> None:
        self.is_ready = False
        self._callbacks: list[Callable[[object], None]] = []

    def _on_completed(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        self.is_ready = True
        for callback in self._callbacks:
            callback(None)


class CallsBench:
    """Calls of one lane with results of two parts: rows, and a report about them."""

    def __init__(self, fetches: bool = False, is_large: bool = False) -> None:
        """Large is with so many other calls in flight that Ray reports each."""
        self.fetched: list[bool] = []
        self.calls = RayCalls(self.wait)
        self.calls.fetches = fetches
        self.lane = Lane(InlineTaskPool(), num_returns=2)
        self.others = [Actor[Any](f"other-{index}", None) for index in range(MANY_CALLS + 1 if is_large else 0)]
        for other in self.others:
            self.start(other)

    def start(self, actor: Actor[Any]) -> tuple[FakeRef, FakeRef]:
        rows, report = FakeRef(), FakeRef()
        self.calls.add(self.lane, Completed(actor, (Ref(rows), Ref(report))))
        return rows, report

    def wait(
        self, refs: list[FakeRef], num_returns: int, timeout: float, fetch_local: bool
    ) -> tuple[list[FakeRef], list[FakeRef]]:
        self.fetched.append(fetch_local)
        ready = [ref for ref in refs if ref.is_ready][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def done(self) -> list[FakeRef]:
        """Return the rows of the calls that have completed."""
        self.calls.wait(0.0)
        return [call.refs[0].handle for call in self.lane.completed()]


@pytest.fixture(params=[False, True], ids=["few", "many"])
def is_large(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("fetches", [False, True])
def test_calls_of_an_actor_complete_in_the_order_made(is_large: bool, fetches: bool) -> None:
    bench = CallsBench(fetches, is_large)
    first, second, third = bench.start(WORKER), bench.start(WORKER), bench.start(OTHER)
    for ref in (*second, *third):
        ref.end()
    assert bench.done() == [third[0]]
    for ref in first:
        ref.end()
    assert bench.done() == [first[0], second[0]]
    assert bench.done() == []


def test_call_completes_when_its_rows_are_on_this_node(is_large: bool) -> None:
    bench = CallsBench(fetches=True, is_large=is_large)
    rows, report = bench.start(WORKER)
    report.end()
    assert bench.done() == []
    rows.end()
    assert bench.done() == [rows]
    assert all(bench.fetched)


def test_call_on_one_node_waits_for_no_fetch(is_large: bool) -> None:
    bench = CallsBench(is_large=is_large)
    rows, report = bench.start(WORKER)
    report.end()
    assert bench.done() == [rows]
    assert not any(bench.fetched)


def test_rows_that_do_not_come_hold_no_other_actor_up(is_large: bool) -> None:
    bench = CallsBench(fetches=True, is_large=is_large)
    _, report = bench.start(OTHER)
    report.end()
    for _ in range(3):
        refs = bench.start(WORKER)
        for ref in refs:
            ref.end()
        assert bench.done() == [refs[0]]


def test_forgotten_calls_do_not_complete(is_large: bool) -> None:
    bench = CallsBench(is_large=is_large)
    refs = bench.start(WORKER)
    bench.calls.forget(WORKER)
    for ref in refs:
        ref.end()
    assert bench.done() == []


def test_wait_returns_at_once_where_nothing_is_in_flight() -> None:
    bench = CallsBench()
    assert not bench.calls.wait(60.0)
    bench.start(WORKER)
    assert bench.calls.wait(0.0)
    bench.calls.clear()
    assert not bench.calls.wait(60.0)
