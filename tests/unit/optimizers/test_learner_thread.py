"""

A learner with late results: what is read when, in order, and at the latest before a pause and at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from rlexp.optimizers import learner_thread
from rlexp.optimizers.learner_thread import LearnerOutput, LearnerThread, PendingUpdates
from rlexp.policy import LearnResult, PipelinedLearner
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.sample_batch import SampleBatch
from tests.lab.doubles import TIMEOUT_S, ScriptedLearner, keyed_rows


@dataclass
class LateUpdate:
    learner: LateLearner
    number: int
    found: LearnResult

    def result(self) -> LearnResult:
        if self.number == self.learner.diverges_at:
            raise FloatingPointError("this update diverged")
        self.learner.read.append(self.number)
        return self.found


class LateLearner(ScriptedLearner):
    """A ScriptedLearner whose results wait; ``read`` are the numbers of the updates whose results were read."""

    def __init__(self, max_pending_updates: int = 2) -> None:
        super().__init__()
        self.max_pending_updates = max_pending_updates
        self.read: list[int] = []
        self.diverges_at: int | None = None

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        return self.submit(batch).result()

    def submit(self, batch: SampleBatch) -> LateUpdate:
        found = super().learn_on_batch(batch)
        return LateUpdate(self, self.num_updates, found)


def running(learner: ScriptedLearner) -> Iterator[LearnerThread[str]]:
    thread: LearnerThread[str] = LearnerThread(learner, queue_capacity=8)
    yield thread
    learner.may_learn.set()
    thread.stop()


@pytest.fixture
def learner() -> LateLearner:
    return LateLearner()


@pytest.fixture
def thread(learner: LateLearner) -> Iterator[LearnerThread[str]]:
    yield from running(learner)


def put(thread: LearnerThread[str], *values: float) -> None:
    for value in values:
        thread.put("a", keyed_rows(value, count=3))


def test_the_double_is_a_pipelined_learner_and_a_plain_one_is_not() -> None:
    assert isinstance(LateLearner(), PipelinedLearner)
    assert not isinstance(ScriptedLearner(), PipelinedLearner)


@pytest.mark.parametrize(("max_pending", "read_after"), [(0, [1, 2, 3, 4]), (1, [0, 1, 2, 3]), (2, [0, 0, 1, 2])])
def test_a_result_is_read_once_so_many_later_updates_have_begun(max_pending: int, read_after: list[int]) -> None:
    learner = LateLearner(max_pending)
    updates: PendingUpdates[str] = PendingUpdates(learner)
    learned, counts = [], []
    for number in range(1, 5):
        learned += updates.learn(str(number), keyed_rows(float(number), count=number))
        counts.append(len(learner.read))
    assert counts == read_after
    assert len(updates) == max_pending
    learned += updates.collect()
    assert [(batch.origin, batch.num_rows) for batch in learned] == [("1", 1), ("2", 2), ("3", 3), ("4", 4)]
    assert [batch.result.stats["loss"] for batch in learned] == [1.0, 2.0, 3.0, 4.0]
    assert len(updates) == 0


def test_any_other_learner_does_one_update_after_the_other() -> None:
    updates: PendingUpdates[str] = PendingUpdates(ScriptedLearner())
    (learned,) = updates.learn("a", keyed_rows(7.0, count=2))
    assert (learned.origin, learned.num_rows, len(updates)) == ("a", 2, 0)
    assert np.asarray(learned.result.td_errors).tolist() == [7.0, 7.0]


def test_an_empty_queue_lets_the_thread_read_all_results(thread: LearnerThread[str], learner: LateLearner) -> None:
    put(thread, 1.0, 2.0)
    thread.start()
    outputs: list[LearnerOutput[str]] = []
    while len(outputs) < 2:
        thread.wait_for_output(TIMEOUT_S)
        found = thread.outputs()
        assert found
        outputs += found
    assert [np.asarray(output.result.td_errors).tolist() for output in outputs] == [[1.0] * 3, [2.0] * 3]
    assert thread.last_stats == {"loss": 2.0}


def test_all_results_are_read_before_a_pause(thread: LearnerThread[str], learner: LateLearner) -> None:
    put(thread, 1.0, 2.0, 3.0, 4.0, 5.0)
    thread.start()
    for _ in range(2):
        assert learner.learned.acquire(timeout=TIMEOUT_S)
    with thread.paused() as held:
        assert held.num_updates >= 2
        assert learner.read == list(range(1, held.num_updates + 1))
        assert len(thread.outputs()) == held.num_updates
        assert thread.queue_size == 5 - held.num_updates


def test_all_results_are_read_at_the_end(thread: LearnerThread[str], learner: LateLearner) -> None:
    put(thread, 1.0, 2.0)
    thread.start()
    for _ in range(2):
        assert learner.learned.acquire(timeout=TIMEOUT_S)
    thread.stop()
    assert learner.read == [1, 2]
    assert len(thread.outputs()) == 2


@pytest.mark.parametrize("pauses", [False, True])
def test_an_error_of_a_late_result_reaches_the_owner(
    thread: LearnerThread[str], learner: LateLearner, pauses: bool
) -> None:
    learner.diverges_at = 2
    put(thread, 1.0, 2.0)
    thread.start()
    for _ in range(2):
        assert learner.learned.acquire(timeout=TIMEOUT_S)
    if pauses:
        with thread.paused():
            pass
    thread.stop()
    with pytest.raises(FloatingPointError, match="this update diverged"):
        thread.outputs()
    assert learner.read == [1]


def test_weights_are_those_after_all_updates_begun(thread: LearnerThread[str], learner: LateLearner) -> None:
    thread.request_weights()
    put(thread, 1.0)
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    with thread.paused():
        snapshot = thread.latest_weights()
    assert (snapshot.version, snapshot.weights["updates"].tolist()) == (1, [1])


@pytest.fixture
def plain_learner() -> ScriptedLearner:
    return ScriptedLearner()


@pytest.fixture
def plain_thread(plain_learner: ScriptedLearner) -> Iterator[LearnerThread[str]]:
    yield from running(plain_learner)


def learn(plain_thread: LearnerThread[str], plain_learner: ScriptedLearner, updates: int) -> list[LearnerOutput[str]]:
    """Start, wait until the last of ``updates`` has begun, and stop, which waits for its end."""
    plain_thread.start()
    for _ in range(updates):
        assert plain_learner.learned.acquire(timeout=TIMEOUT_S)
    plain_thread.stop()
    return plain_thread.outputs()


def test_outputs_raise_the_error_of_an_update_each_time(
    plain_thread: LearnerThread[str], plain_learner: ScriptedLearner
) -> None:
    plain_learner.fails_at = 1
    put(plain_thread, 1.0, 2.0, 3.0)
    with pytest.raises(FloatingPointError, match="this learner fails"):
        learn(plain_thread, plain_learner, updates=2)
    with pytest.raises(FloatingPointError, match="this learner fails"):
        plain_thread.outputs()
    assert plain_learner.num_updates == 1
    assert plain_thread.queue_size == 1


def test_weights_are_copied_only_on_request(plain_thread: LearnerThread[str], plain_learner: ScriptedLearner) -> None:
    put(plain_thread, 1.0, 2.0, 3.0)
    learn(plain_thread, plain_learner, updates=3)
    assert plain_thread.latest_weights().version == 0
    assert plain_learner.num_snapshots == 1


def test_request_copies_weights_once_after_the_next_update(
    plain_thread: LearnerThread[str], plain_learner: ScriptedLearner
) -> None:
    put(plain_thread, 1.0, 2.0, 3.0)
    plain_thread.request_weights()
    assert plain_thread.latest_weights().version == 0
    learn(plain_thread, plain_learner, updates=3)
    snapshot = plain_thread.latest_weights()
    assert (snapshot.version, snapshot.weights["updates"].tolist()) == (1, [1])
    assert plain_learner.num_snapshots == 2


def test_time_s_separates_waiting_from_learning(
    plain_thread: LearnerThread[str], plain_learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    put(plain_thread, 1.0, 2.0, 3.0)
    learn(plain_thread, plain_learner, updates=3)
    # Readings around each part, one second apart; after the last update it may have waited once more.
    assert plain_thread.time_s["wait"] in (3.0, 4.0)
    assert plain_thread.time_s["learning"] == 3.0


def test_stopped_thread_learns_nothing(plain_thread: LearnerThread[str], plain_learner: ScriptedLearner) -> None:
    plain_thread.start()
    plain_thread.stop()
    put(plain_thread, 1.0)
    assert not plain_learner.learned.acquire(timeout=3 * learner_thread.IDLE_WAIT_S)


def test_stop_waits_for_the_update_in_progress_within_its_bound(
    plain_thread: LearnerThread[str], plain_learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_thread, "STOP_TIMEOUT_S", 0.2)
    plain_learner.may_learn.clear()
    put(plain_thread, 1.0)
    plain_thread.start()
    assert plain_learner.learned.acquire(timeout=TIMEOUT_S)
    started = time.monotonic()
    plain_thread.stop()
    assert 0.2 <= time.monotonic() - started < 5.0
    assert plain_thread.outputs() == []


def test_pause_that_times_out_lets_the_thread_learn_again(
    plain_thread: LearnerThread[str], plain_learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_thread, "STOP_TIMEOUT_S", 0.2)
    plain_learner.may_learn.clear()
    put(plain_thread, 1.0, 2.0)
    plain_thread.start()
    assert plain_learner.learned.acquire(timeout=TIMEOUT_S)
    with pytest.raises(TimeoutError, match="has not ended within"), plain_thread.paused():
        pass
    plain_learner.may_learn.set()
    assert plain_learner.learned.acquire(timeout=TIMEOUT_S)
