"""Calls that Ray runs elsewhere, by refs that become ready when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlexp.cluster.pool import Actor, Completed, InlineTaskPool, Lane, Ref
from rlexp.cluster.pool.ray_calls import MANY_CALLS, RayCalls


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


class Bench:
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
    bench, worker, other = Bench(fetches, is_large), Actor[Any]("worker", None), Actor[Any]("next", None)
    first, second, third = bench.start(worker), bench.start(worker), bench.start(other)
    for ref in (*second, *third):
        ref.end()
    assert bench.done() == [third[0]]
    for ref in first:
        ref.end()
    assert bench.done() == [first[0], second[0]]
    assert bench.done() == []


def test_call_completes_when_its_rows_are_on_this_node(is_large: bool) -> None:
    bench, worker = Bench(fetches=True, is_large=is_large), Actor[Any]("worker", None)
    rows, report = bench.start(worker)
    report.end()
    assert bench.done() == []
    rows.end()
    assert bench.done() == [rows]
    assert all(bench.fetched)


def test_call_on_one_node_waits_for_no_fetch(is_large: bool) -> None:
    bench, worker = Bench(is_large=is_large), Actor[Any]("worker", None)
    rows, report = bench.start(worker)
    report.end()
    assert bench.done() == [rows]
    assert not any(bench.fetched)


def test_rows_that_do_not_come_hold_no_other_actor_up(is_large: bool) -> None:
    bench, lost, worker = Bench(fetches=True, is_large=is_large), Actor[Any]("lost", None), Actor[Any]("worker", None)
    _, report = bench.start(lost)
    report.end()
    for _ in range(3):
        refs = bench.start(worker)
        for ref in refs:
            ref.end()
        assert bench.done() == [refs[0]]


def test_forgotten_calls_do_not_complete(is_large: bool) -> None:
    bench, worker = Bench(is_large=is_large), Actor[Any]("worker", None)
    refs = bench.start(worker)
    bench.calls.forget(worker)
    for ref in refs:
        ref.end()
    assert bench.done() == []


def test_wait_returns_at_once_where_nothing_is_in_flight() -> None:
    bench, worker = Bench(), Actor[Any]("worker", None)
    assert not bench.calls.wait(60.0)
    bench.start(worker)
    assert bench.calls.wait(0.0)
    bench.calls.clear()
    assert not bench.calls.wait(60.0)
