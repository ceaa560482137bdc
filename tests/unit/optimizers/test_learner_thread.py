from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from rlexp.optimizers import learner_thread
from rlexp.optimizers.learner_thread import LearnerOutput, LearnerThread
from tests.doubles.scripted import TIMEOUT_S, ScriptedLearner, keyed_rows


@pytest.fixture
def learner() -> ScriptedLearner:
    return ScriptedLearner()


@pytest.fixture
def thread(learner: ScriptedLearner) -> Iterator[LearnerThread[str]]:
    thread: LearnerThread[str] = LearnerThread(learner, queue_capacity=8)
    yield thread
    learner.may_learn.set()
    thread.stop()


def put(thread: LearnerThread[str], origin: str, *values: float) -> None:
    for value in values:
        thread.put(origin, keyed_rows(value, count=3))


def learn(thread: LearnerThread[str], learner: ScriptedLearner, updates: int) -> list[LearnerOutput[str]]:
    """Start, wait until the last of ``updates`` has begun, and stop, which waits for its end."""
    thread.start()
    for _ in range(updates):
        assert learner.learned.acquire(timeout=TIMEOUT_S)
    thread.stop()
    return thread.outputs()


def test_outputs_have_origins_and_td_errors_in_order(thread: LearnerThread[str], learner: ScriptedLearner) -> None:
    put(thread, "a", 1.0)
    put(thread, "b", 2.0)
    put(thread, "a", 3.0)
    outputs = learn(thread, learner, updates=3)
    assert [output.origin for output in outputs] == ["a", "b", "a"]
    assert [np.asarray(output.td_errors).tolist() for output in outputs] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert [output.num_rows for output in outputs] == [3] * 3
    assert thread.last_stats == {"loss": 3.0}
    assert thread.outputs() == []


def test_queue_size_counts_waiting_batches(thread: LearnerThread[str], learner: ScriptedLearner) -> None:
    put(thread, "a", 1.0, 2.0, 3.0)
    assert (thread.queue_size, thread.queue_capacity) == (3, 8)
    learner.may_learn.clear()
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    assert thread.queue_size == 2


def test_outputs_raise_the_error_of_an_update_each_time(thread: LearnerThread[str], learner: ScriptedLearner) -> None:
    learner.fails_at = 1
    put(thread, "a", 1.0, 2.0, 3.0)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="this learner fails"):
            learn(thread, learner, updates=2) if not learner.progress else thread.outputs()
        learner.progress.append(0)
    assert learner.num_updates == 1
    assert thread.queue_size == 1


def test_weights_are_copied_only_on_request(thread: LearnerThread[str], learner: ScriptedLearner) -> None:
    put(thread, "a", 1.0, 2.0, 3.0)
    learn(thread, learner, updates=3)
    assert thread.latest_weights().version == 0
    assert learner.num_snapshots == 1


def test_request_copies_weights_once_after_the_next_update(
    thread: LearnerThread[str], learner: ScriptedLearner
) -> None:
    put(thread, "a", 1.0, 2.0, 3.0)
    thread.request_weights()
    assert thread.latest_weights().version == 0
    learn(thread, learner, updates=3)
    snapshot = thread.latest_weights()
    assert (snapshot.version, snapshot.weights["updates"].tolist()) == (1, [1])
    assert learner.num_snapshots == 2


def test_time_s_separates_waiting_from_learning(
    thread: LearnerThread[str], learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    put(thread, "a", 1.0, 2.0, 3.0)
    learn(thread, learner, updates=3)
    # Readings around each part, one second apart; after the last update it may have waited once more.
    assert thread.time_s["wait"] in (3.0, 4.0)
    assert thread.time_s["learning"] == 3.0


def test_stopped_thread_learns_nothing(thread: LearnerThread[str], learner: ScriptedLearner) -> None:
    thread.start()
    thread.stop()
    put(thread, "a", 1.0)
    assert not learner.learned.acquire(timeout=3 * learner_thread.IDLE_WAIT_S)


def test_stop_waits_for_the_update_in_progress_within_its_bound(
    thread: LearnerThread[str], learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_thread, "STOP_TIMEOUT_S", 0.2)
    learner.may_learn.clear()
    put(thread, "a", 1.0)
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    started = time.monotonic()
    thread.stop()
    assert 0.2 <= time.monotonic() - started < 5.0
    assert thread.outputs() == []


def test_pause_that_times_out_lets_the_thread_learn_again(
    thread: LearnerThread[str], learner: ScriptedLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_thread, "STOP_TIMEOUT_S", 0.2)
    learner.may_learn.clear()
    put(thread, "a", 1.0, 2.0)
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    with pytest.raises(TimeoutError, match="has not ended within"), thread.paused():
        pass
    learner.may_learn.set()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
