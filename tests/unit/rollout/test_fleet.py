"""Workers that die, hang or fail, alone or with their node, wait for room or move, and what becomes of their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlexp.cluster.pool.pool import (
    Actor,
    ActorLostError,
    ArgumentLostError,
    ClusterState,
    Completed,
    Lane,
    Ref,
)
from rlexp.errors import CallbackError, TrialError
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fleet import (
    FAILURES_IN_A_ROW,
    FAILURES_IN_WINDOW,
    START_S,
    STEADY_S,
    SUSPECTED_S,
    WINDOW_S,
    Fleet,
    FleetLimits,
    WorkerLosses,
)
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.worker import SamplingWorker
from tests.lab.doubles import RaisingPool

TIMEOUT_S = 30.0
STEPS = 5

DIES = ActorLostError("its process died")
FAILS = ValueError("this env fails")
HANGS = "hangs"
WORKS = "works"


class FakeWorker:
    """What was placed at an index, and how its calls end from now on."""

    def __init__(self, index: int, attempt: int, fate: Any) -> None:
        self.index = index
        self.attempt = attempt
        self.fate = fate
        self.updates: list[tuple[str, Any]] = []


class FragilePool(RaisingPool):
    """Ends calls as each worker's fate says; a removed worker's late answers come all the same."""

    def __init__(self) -> None:
        self.removed: list[FakeWorker] = []
        self._late: list[Callable[[], None]] = []

    def start(self, lane: Lane, actor: Actor[Any], method: Callable[..., Any], args: tuple[object, ...]) -> None:
        worker = actor.handle
        if method is not SamplingWorker.sample:
            worker.updates.append((method.__name__, args[0].handle if isinstance(args[0], Ref) else args[0]))
            lane.deliver(Completed(actor, (Ref(None),)))
            return
        info = SampleInfo(worker.index, STEPS, STEPS, Episodes.join([]), worker.attempt, SampleTime())
        result: Ref[Any] = Ref(worker.fate if isinstance(worker.fate, Exception) else info)
        answer: Completed[Any, Any] = Completed(actor, (Ref("rows"), result))
        if worker.fate == HANGS:
            self._late.append(lambda: lane.deliver(answer))
        else:
            lane.deliver(answer)

    def remove(self, actor: Actor[Any]) -> None:
        self.removed.append(actor.handle)

    def wake_zombies(self) -> None:
        late, self._late = self._late, []
        for deliver in late:
            deliver()


class Bench:
    """A source over workers whose fates a test decides, and a clock that only the test moves."""

    def __init__(self, num_workers: int = 2, max_restarts: int = 100, pool: FragilePool | None = None) -> None:
        self.now_s = 0.0
        self.pool = pool or FragilePool()
        self.workers: dict[int, FakeWorker] = {}
        self.next_fate: Any = WORKS
        limits = FleetLimits(max_restarts, TIMEOUT_S)
        self.fleet = Fleet(self.pool, self.place, num_workers, limits, lambda: self.now_s)
        self.source = RemoteWorkers(self.pool, self.fleet, queue_depth=1, max_weight_sync_delay=1)

    def place(self, index: int, attempt: int) -> Actor[Any]:
        self.workers[index] = FakeWorker(index, attempt, self.next_fate)
        return Actor(f"worker-{index}", self.workers[index])

    def poll(self, wanted: int | None = None) -> list[int]:
        """Return the indices of the workers whose fragments came."""
        return sorted(sample.info.worker_index for sample in self.source.poll(0, wanted))

    def poll_often(self, times: int, seconds: float) -> None:
        for _ in range(times):
            self.poll()
            self.now_s += seconds


@pytest.mark.parametrize("fate", [DIES, FAILS])
def test_a_lost_worker_is_replaced_at_once_while_the_others_go_on(fate: Exception) -> None:
    bench = Bench()
    bench.workers[1].fate = fate
    lost = bench.workers[1]
    assert bench.poll() == []
    assert bench.poll() == [0]
    assert bench.pool.removed == [lost]
    assert bench.workers[1].attempt == 1
    bench.now_s += 1.8
    assert bench.poll() == [0, 1]
    (event,) = bench.source.drain_events()
    assert str(fate) in event or "its process died" in event
    assert "replaced in 1.8 s (restart 1 of at most 100)" in event
    assert bench.source.drain_events() == []
    assert bench.source.num_worker_restarts == 1
    resumed = Bench()
    resumed.source.load(bench.source.state())
    assert resumed.source.num_worker_restarts == 1


def test_a_replacement_gets_the_newest_weights_and_the_filter_before_it_samples() -> None:
    bench = Bench(num_workers=1)
    bench.source.publish(7, {"layer": np.zeros(1)})
    moments = Moments.none((2,))
    bench.source.set_filter(moments)
    bench.workers[0].fate = DIES
    for _ in range(3):
        bench.poll()
    assert bench.workers[0].attempt == 1
    assert bench.workers[0].updates == [("set_filter", moments), ("set_weights", 7)]


def test_a_worker_that_hangs_is_removed_and_what_it_says_later_is_not_heard() -> None:
    bench = Bench()
    hanging = bench.workers[0]
    bench.poll()
    hanging.fate = HANGS
    assert bench.poll() == [0, 1]
    bench.now_s = TIMEOUT_S - 1
    assert bench.poll() == [1]
    assert bench.pool.removed == []
    bench.now_s = TIMEOUT_S + 1
    assert bench.poll() == [1]
    assert bench.pool.removed == [hanging]
    bench.pool.wake_zombies()
    assert bench.poll() == [0, 1]
    versions = [sample.info.weights_version for sample in bench.source.poll(0) if sample.info.worker_index == 0]
    assert versions == [1]  # the replacement's, which tells its attempt


def test_the_wanted_calls_of_a_lost_worker_are_asked_of_others() -> None:
    bench = Bench(num_workers=3)
    bench.workers[2].fate = bench.next_fate = DIES
    assert bench.poll(3) == []
    assert bench.poll(3) == [0, 1]  # worker 2 died; its replacement, which is asked at once, dies too
    assert bench.poll(1) == []
    assert [attempt for _, attempt in sorted((w.index, w.attempt) for w in bench.workers.values())] == [0, 0, 1]
    assert bench.poll(1) == [0]  # the next replacement comes later
    assert bench.poll(0) == []


def test_the_wanted_calls_of_a_hanging_worker_are_asked_of_others() -> None:
    bench = Bench()
    bench.workers[1].fate = HANGS
    bench.poll(2)
    assert bench.poll(2) == [0]
    assert bench.poll(1) == []
    bench.now_s = TIMEOUT_S + START_S + 1
    bench.workers[0].fate = bench.next_fate = WORKS
    assert bench.poll(1) == []
    assert len(bench.poll(1)) == 1
    bench.pool.wake_zombies()
    assert bench.poll(0) == []


def test_a_worker_has_more_time_for_its_first_fragment() -> None:
    bench = Bench(num_workers=1)
    bench.workers[0].fate = HANGS
    bench.poll()
    bench.now_s = TIMEOUT_S + START_S - 1
    bench.poll()
    assert bench.pool.removed == []
    bench.now_s = TIMEOUT_S + START_S + 1
    bench.poll()
    assert bench.workers[0].attempt == 1


def test_a_worker_is_not_blamed_for_the_time_in_which_nobody_asked() -> None:
    bench = Bench(num_workers=1)
    for _ in range(3):
        bench.poll()
        bench.now_s += 10 * TIMEOUT_S  # its answer has been there all the time
    assert bench.pool.removed == []


def test_an_env_that_always_raises_ends_the_trial_with_its_own_error() -> None:
    bench = Bench()
    bench.next_fate = FAILS
    bench.workers[0].fate = FAILS
    with pytest.raises(ValueError, match="this env fails"):
        bench.poll_often(100, 5.0)
    assert bench.source.num_worker_restarts == FAILURES_IN_A_ROW - 1


class CarriedError(Exception):
    """An error of a worker as Ray carries it: with what was raised as its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("carried")
        self.cause = cause


@pytest.mark.parametrize("carry", [lambda error: error, CarriedError], ids=["itself", "carried"])
def test_what_callbacks_raise_ends_the_trial_at_once(carry: Callable[[Exception], Exception]) -> None:
    bench = Bench()
    bench.workers[0].fate = error = carry(CallbackError("callbacks mine:Mine: KeyError"))
    with pytest.raises(type(error)):
        bench.poll_often(100, 5.0)
    assert bench.source.num_worker_restarts == 0


def test_an_env_that_raises_now_and_then_does_not() -> None:
    bench = Bench(num_workers=1)
    for _ in range(2 * FAILURES_IN_A_ROW):
        bench.workers[0].fate = FAILS
        while bench.poll():
            pass
        bench.now_s += WINDOW_S + 1
        while not bench.poll():
            pass
    assert bench.source.num_worker_restarts == 2 * FAILURES_IN_A_ROW


def test_a_worker_that_dies_again_and_again_waits_longer_each_time_and_is_given_up() -> None:
    bench = Bench()
    bench.next_fate = DIES
    bench.workers[0].fate = DIES
    placed_s = []
    attempt = 0
    while bench.now_s < WINDOW_S:
        bench.poll()
        if bench.workers[0].attempt != attempt:
            attempt = bench.workers[0].attempt
            placed_s.append(bench.now_s)
        bench.now_s += 0.25
    gaps = np.diff(placed_s)
    assert len(placed_s) == FAILURES_IN_WINDOW
    assert (np.diff(gaps) >= -0.3).all()
    assert gaps[0] < 2 < 25 < gaps[-1]
    assert "removed" in bench.source.drain_events()[-1]
    assert bench.poll() == [1]


def test_a_worker_that_delivered_for_a_while_is_replaced_at_once_however_often() -> None:
    bench = Bench()
    for loss in range(FAILURES_IN_WINDOW):
        bench.poll_often(4, STEADY_S / 2)
        bench.workers[0].fate = DIES
        bench.poll()  # takes what had been asked before
        bench.poll()
        assert bench.workers[0].attempt == loss + 1


def test_each_replacement_has_a_number_of_its_own() -> None:
    bench = Bench()
    for worker in bench.workers.values():
        worker.fate = DIES
    bench.poll_often(5, 0.1)
    events = bench.source.drain_events()
    assert [event.partition("(restart ")[2] for event in events] == ["1 of at most 100)", "2 of at most 100)"]


def test_when_every_worker_is_given_up_the_trial_fails() -> None:
    bench = Bench(num_workers=2, max_restarts=3)
    bench.next_fate = DIES
    for worker in bench.workers.values():
        worker.fate = DIES
    with pytest.raises(TrialError, match="every rollout worker was removed") as failure:
        bench.poll_often(1000, 1.0)
    assert "max_num_worker_restarts" in (failure.value.hint or "")
    assert bench.source.num_worker_restarts == 3


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

    def with_room_again(self) -> list[int]:
        """Let both nodes have room, and return the indices of the workers that then deliver."""
        self.cluster.full.clear()
        self.cluster.look()
        self.poll()
        return self.poll()


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
    assert bench.with_room_again() == [0, 1, 2, 3]
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
    bench.poll()
    assert bench.with_room_again() == [0, 1, 2, 3]
    assert bench.source.num_worker_restarts == 0


def test_node_lost_many_times_removes_nobody() -> None:
    bench = ClusterBench(max_restarts=1)
    for _ in range(2 * FAILURES_IN_WINDOW):
        bench.cluster.end("10.0.0.3")
        bench.poll()
        assert bench.with_room_again() == [0, 1, 2, 3]
    assert bench.source.num_worker_restarts == 0


def test_process_that_dies_on_a_living_node_is_counted() -> None:
    bench = ClusterBench()
    bench.workers[1].fate = DIES
    bench.poll()
    bench.poll()
    assert bench.with_room_again() == [0, 1, 2, 3]
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
    losses = WorkerLosses(lambda index: 3)
    assert "with 6 workers" in losses.lost([("10.0.0.3", 0), ("10.0.0.3", 1)], False, 0.0)[0]
    assert losses.back("10.0.0.3", 0, 1.0) == []
    assert losses.back("10.0.0.3", 1, 2.0) == ["6 workers of node 10.0.0.3 came back after 2.0 s"]
