"""What every TaskPool promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from rlexp.cluster.pool import ray_pool as ray_pools
from rlexp.cluster.pool.nodes import OwnNode
from rlexp.cluster.pool.pool import (
    Actor,
    ActorLostError,
    ArgumentLostError,
    Completed,
    InlineTaskPool,
    Lane,
    Ref,
    Resources,
    TaskPool,
)
from rlexp.cluster.pool.ray_pool import MANY_CALLS, NICENESS, Process, RayTaskPool, kill_here
from rlexp.errors import TrialError
from tests.lab.process_pool import ProcessTaskPool

SHARED = Resources(cpus=0, gpus=0)
DEADLINE_S = 30.0


class Ledger:
    """A plain class, as pools place them."""

    def __init__(self, first: int) -> None:
        if first < 0:
            raise ValueError("a ledger begins with money")
        self._entries = [first]

    def add(self, entry: int) -> int:
        self._entries.append(entry)
        return sum(self._entries)

    def entries(self) -> list[int]:
        return list(self._entries)

    def divided(self, divisor: int) -> tuple[int, int]:
        return divmod(self._entries[0], divisor)

    def process(self) -> int:
        return os.getpid()

    def niceness(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    def wait_for_ever(self) -> None:
        while True:
            time.sleep(60)


class Lender:
    """Owns values that it hands out by reference: they are lost with it."""

    def lend(self) -> list[Any]:
        import ray

        return [ray.remote(num_cpus=0)(lambda: time.sleep(3600.0)).remote()]  # so no node has a copy of it

    def die(self) -> None:
        os._exit(1)


def ray_pool() -> RayTaskPool:
    from ray import cloudpickle

    # Ray's processes cannot import a test file, so its class is sent whole.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    return RayTaskPool()


class RayTaskPoolOfOneProcess(RayTaskPool):
    """Keeps here what is placed anywhere, as small machines do with replay."""

    def place(  # type: ignore[override]
        self, name: str, resources: Resources | None, make: Callable[..., Ledger], *args: object
    ) -> Actor[Ledger]:
        return super().place(name, None, make, *args)


@pytest.fixture(
    params=[
        InlineTaskPool,
        ProcessTaskPool,
        pytest.param(ray_pool, marks=pytest.mark.ray),
        pytest.param(RayTaskPoolOfOneProcess, marks=pytest.mark.ray),
    ]
)
def pool(request: pytest.FixtureRequest) -> Iterator[TaskPool]:
    make: Callable[[], TaskPool] = request.param
    if make not in (InlineTaskPool, ProcessTaskPool):
        request.getfixturevalue("ray_session")
    pool = make()
    yield pool
    pool.stop()


@pytest.fixture
def rays(ray_session: None) -> Iterator[RayTaskPool]:
    """A pool of Ray's alone, for what only processes do."""
    pool = ray_pool()
    yield pool
    pool.stop()


def place(pool: TaskPool, first: int = 10) -> Actor[Ledger]:
    return pool.place("ledger", SHARED, Ledger, first)


def await_calls(pool: TaskPool, lane: Lane, count: int) -> list[Completed[Ledger, int]]:
    """Wait until ``count`` calls have completed; fails after DEADLINE_S."""
    done: list[Completed[Ledger, int]] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(done) < count:
        assert time.monotonic() < deadline, f"{len(done)} of {count} calls came back"
        pool.wait(1.0)
        done += lane.completed()
    return done


def test_constructs_the_class_with_its_arguments(pool: TaskPool) -> None:
    ledger = place(pool, 7)
    assert ledger.name == "ledger"
    assert pool.get(pool.call(ledger, Ledger.entries), DEADLINE_S) == [7]


def test_calls_to_one_actor_run_in_the_order_made(pool: TaskPool) -> None:
    ledger, lane = place(pool), Lane(pool)
    lane.submit(ledger, Ledger.add, 1)
    pool.call(ledger, Ledger.add, 2)
    lane.submit(ledger, Ledger.add, 3)
    assert pool.get(pool.call(ledger, Ledger.entries), DEADLINE_S) == [10, 1, 2, 3]


def test_call_receives_value_of_ref(pool: TaskPool) -> None:
    ledger = place(pool)
    total = pool.call(ledger, Ledger.add, pool.put(5))
    assert pool.get(pool.call(ledger, Ledger.add, total), DEADLINE_S) == 30


def test_a_kept_value_is_the_same_object_here_and_is_sent_elsewhere(pool: TaskPool) -> None:
    value = [5]
    kept = pool.keep(value)
    assert pool.get(kept, 0.0) is value
    assert pool.get(pool.call(place(pool), Ledger.add, pool.keep(5)), DEADLINE_S) == 15


def test_lane_returns_each_call_once(pool: TaskPool) -> None:
    ledgers, lane = [place(pool, first) for first in (100, 200)], Lane(pool)
    for ledger in ledgers:
        lane.submit(ledger, Ledger.add, 1)
    done = await_calls(pool, lane, 2)
    assert {id(call.actor): pool.get(call.ref, DEADLINE_S) for call in done} == {
        id(ledgers[0]): 101,
        id(ledgers[1]): 201,
    }
    assert lane.completed() == []


def test_lane_counts_calls_in_flight(pool: TaskPool) -> None:
    ledger, idle, lane = place(pool), place(pool), Lane(pool)
    for entry in (1, 2, 3):
        lane.submit(ledger, Ledger.add, entry)
    assert (lane.in_flight(ledger), lane.in_flight(idle)) == (3, 0)
    await_calls(pool, lane, 3)
    assert lane.in_flight(ledger) == 0


def test_lanes_are_separate(pool: TaskPool) -> None:
    ledger, adding, reading = place(pool), Lane(pool), Lane(pool)
    adding.submit(ledger, Ledger.add, 1)
    assert len(await_calls(pool, adding, 1)) == 1
    assert reading.completed() == []
    assert reading.in_flight(ledger) == 0


def test_a_tuple_comes_back_as_one_ref_for_each_part(pool: TaskPool) -> None:
    ledger, lane = place(pool, 17), Lane(pool, num_returns=2)
    lane.submit(ledger, Ledger.divided, 5)
    (call,) = await_calls(pool, lane, 1)
    assert [pool.get(ref, DEADLINE_S) for ref in call.refs] == [3, 2]


def test_waiting_for_nothing_returns(pool: TaskPool) -> None:
    started = time.monotonic()
    pool.wait(60.0)
    assert time.monotonic() - started < 5.0


def test_stops_twice(pool: TaskPool) -> None:
    place(pool)
    pool.stop()
    pool.stop()


def test_inline_the_error_of_a_call_surfaces_in_its_caller() -> None:
    pool = InlineTaskPool()
    ledger, lane = place(pool), Lane(pool)
    with pytest.raises(ZeroDivisionError):
        lane.submit(ledger, Ledger.divided, 0)


@pytest.mark.ray
def test_the_error_of_a_remote_call_surfaces_where_its_result_is_wanted(rays: RayTaskPool) -> None:
    ledger, lane = place(rays), Lane(rays, num_returns=2)
    lane.submit(ledger, Ledger.divided, 0)
    (call,) = await_calls(rays, lane, 1)
    with pytest.raises(ZeroDivisionError):
        rays.get(call.refs[1], DEADLINE_S)


@pytest.mark.ray
def test_a_wait_for_a_remote_value_is_bounded(rays: RayTaskPool) -> None:
    ref: Ref[None] = rays.call(place(rays), Ledger.wait_for_ever)
    with pytest.raises(TimeoutError):
        rays.get(ref, 0.1)


@pytest.mark.ray
def test_a_stopped_pool_has_ended_its_actors(rays: RayTaskPool) -> None:
    ledger = place(rays)
    assert rays.get(rays.call(ledger, Ledger.entries), DEADLINE_S) == [10]
    rays.stop()
    deadline = time.monotonic() + DEADLINE_S

    def ask_until_it_is_dead() -> None:  # an actor may answer once more before it dies
        while time.monotonic() < deadline:
            rays.get(rays.call(ledger, Ledger.entries), DEADLINE_S)

    with pytest.raises(ActorLostError):
        ask_until_it_is_dead()


@pytest.mark.ray
@pytest.mark.parametrize("is_stopped", [False, True], ids=["hangs", "stopped by a signal"])
def test_a_removed_actor_is_killed_whatever_it_does_and_its_calls_are_forgotten(
    rays: RayTaskPool, is_stopped: bool
) -> None:
    gone, other = place(rays), place(rays)
    process = psutil.Process(rays.get(rays.call(gone, Ledger.process), DEADLINE_S))
    lane = Lane(rays)
    lane.submit(gone, Ledger.wait_for_ever)
    if is_stopped:
        process.suspend()
    rays.remove(gone)
    lane.forget(gone)
    process.wait(DEADLINE_S)
    assert lane.in_flight(gone) == 0
    assert not rays.wait(0.1)  # nothing is in flight any more
    rays.remove(gone)
    lane.submit(other, Ledger.add, 1)
    (call,) = await_calls(rays, lane, 1)
    assert call.actor is other


@pytest.mark.ray
def test_an_actor_that_gives_way_has_a_lower_priority_than_its_pool(rays: RayTaskPool) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    here = rays.place("ledger", None, Ledger, 10)
    patient = rays.place("ledger", replace(SHARED, gives_way=True), Ledger, 10)
    found = [rays.get(rays.call(each, Ledger.niceness), DEADLINE_S) for each in (here, place(rays), patient)]
    assert found == [own, own, min(own + NICENESS, 19)]


@pytest.mark.ray
def test_failed_constructor_is_reported_in_a_line(rays: RayTaskPool) -> None:
    cannot_be_made: Actor[Ledger] = rays.place("ledger", SHARED, Ledger, -1)
    with pytest.raises(TrialError) as failure:
        rays.get(rays.call(cannot_be_made, Ledger.entries), DEADLINE_S)
    assert failure.value.message == "ValueError: a ledger begins with money"


@pytest.mark.ray
def test_an_object_here_is_given_what_calls_elsewhere_returned(rays: RayTaskPool) -> None:
    there, here = place(rays, 1), rays.place("ledger", None, Ledger, 2)
    total = rays.call(there, Ledger.add, 10)
    assert rays.get(rays.call(here, Ledger.add, total), DEADLINE_S) == 13
    assert (there.is_here, here.is_here) == (False, True)


@pytest.mark.ray
def test_a_lost_argument_is_not_the_loss_of_the_callee(rays: RayTaskPool) -> None:
    ledger, here, lane = place(rays), rays.place("ledger", None, Ledger, 20), Lane(rays)
    lender = rays.place("lender", SHARED, Lender)
    lane.submit(lender, Lender.lend)
    (lending,) = await_calls(rays, lane, 1)
    with pytest.raises(ActorLostError):
        rays.get(rays.call(lender, Lender.die), DEADLINE_S)
    result: Ref[Any] = lending.ref
    (handle,) = rays.get(result, DEADLINE_S)  # from now on Ray asks its owner, which is dead
    lent: Ref[int] = Ref(handle)
    lane.submit(ledger, Ledger.add, lent)
    lane.submit(here, Ledger.add, lent)
    for call in await_calls(rays, lane, 2):
        with pytest.raises(ArgumentLostError):
            rays.get(call.ref, DEADLINE_S)
    assert rays.get(rays.call(ledger, Ledger.entries), DEADLINE_S) == [10]
    assert rays.get(rays.call(here, Ledger.entries), DEADLINE_S) == [20]


@pytest.mark.ray
@pytest.mark.parametrize("fetches", [False, True], ids=["one node", "several nodes"])
def test_many_calls_come_back_in_the_order_of_each_actor(rays: RayTaskPool, fetches: bool) -> None:
    ledgers, lane = [place(rays, 0), place(rays, 0)], Lane(rays)
    rays._calls.fetches = fetches
    for _ in range(MANY_CALLS):
        for ledger in ledgers:
            lane.submit(ledger, Ledger.add, 1)
    done = await_calls(rays, lane, 2 * MANY_CALLS)
    for ledger in ledgers:
        sums = [rays.get(call.ref, DEADLINE_S) for call in done if call.actor is ledger]
        assert sums == list(range(1, MANY_CALLS + 1))
    assert not rays.wait(0.1)


def test_process_that_ends_during_inspection_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = iter([["ray::RolloutWorker.sample"], []])

    class EndingProcess:
        """Loses its command line after the first look, as a process does that becomes a zombie."""

        def __init__(self, pid: int) -> None:
            self.pid = pid

        def cmdline(self) -> list[str]:
            return next(titles)

        def kill(self) -> None:
            raise psutil.NoSuchProcess(self.pid)

    monkeypatch.setattr(psutil, "Process", EndingProcess)
    monkeypatch.setattr(ray_pools, "_started", lambda pid: "7")
    monkeypatch.setattr(ray_pools, "own_node", lambda: OwnNode("here", None))
    kill_here(Process("here", 1, "7"))
    kill_here(Process("here", 1, "7"))


@pytest.fixture
def titled_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks as one of Ray's does."""
    with subprocess.Popen(
        ["ray::Ledger", "-c", "input()"], executable=sys.executable, stdin=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("change", [{"node_id": "another"}, {"started": "1"}], ids=["node", "start"])
def test_process_of_the_same_number_is_not_killed(
    change: dict[str, Any], titled_process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_pools, "own_node", lambda: OwnNode("here", None))
    pid = titled_process.pid
    process = Process("here", pid, ray_pools._started(pid))
    kill_here(replace(process, **change))
    with pytest.raises(subprocess.TimeoutExpired):
        titled_process.wait(0.3)
    kill_here(process)
    assert titled_process.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_process_that_dies_answers_none_of_its_calls() -> None:
    pool = ProcessTaskPool()
    ledger, lane = place(pool), Lane(pool)
    lane.submit(ledger, Ledger.wait_for_ever)
    ref = pool.call(ledger, Ledger.entries)
    os.kill(ledger.handle, signal.SIGKILL)
    (call,) = await_calls(pool, lane, 1)
    refs: list[Ref[Any]] = [call.ref, ref, pool.call(ledger, Ledger.entries)]
    for lost in refs:
        with pytest.raises(ActorLostError):
            pool.get(lost, DEADLINE_S)
    pool.stop()
