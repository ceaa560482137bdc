from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from rlexp.optimizers import learner_thread
from rlexp.optimizers.learner_thread import LearnerOutput, LearnerThread
from rlexp.replay.shard import ReplayShard
from rlexp.task_pool import Actor
from tests.doubles.scripted import TIMEOUT_S, ScriptedLearner, keyed_rows, make_shard


@pytest.fixture
def learner() -> ScriptedLearner:
    return ScriptedLearner()


@pytest.fixture
def thread(learner: ScriptedLearner) -> Iterator[LearnerThread]:
    thread = LearnerThread(learner, queue_capacity=8)
    yield thread
    learner.may_learn.set()
    thread.stop()


@pytest.fixture
def shards() -> list[Actor[ReplayShard]]:
    return [Actor(f"replay-{index}", make_shard()) for index in range(2)]


def put(thread: LearnerThread, shard: Actor[ReplayShard], *values: float) -> None:
    for value in values:
        thread.put(shard, keyed_rows(value, count=3))


def learn(thread: LearnerThread, learner: ScriptedLearner, updates: int) -> list[LearnerOutput]:
    """Start, wait until the last of ``updates`` has begun, and stop, which waits for its end."""
    thread.start()
    for _ in range(updates):
        assert learner.learned.acquire(timeout=TIMEOUT_S)
    thread.stop()
    return thread.outputs()


def test_tells_each_batchs_td_errors_in_order_and_to_its_shard(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    put(thread, shards[0], 1.0)
    put(thread, shards[1], 2.0)
    put(thread, shards[0], 3.0)
    outputs = learn(thread, learner, updates=3)
    assert [output.shard for output in outputs] == [shards[0], shards[1], shards[0]]
    assert [np.asarray(output.td_errors).tolist() for output in outputs] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert [output.keys.tolist() for output in outputs] == [[0, 1, 2]] * 3
    assert thread.last_stats == {"loss": 3.0}
    assert thread.outputs() == []


def test_its_queue_counts_what_waits(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    put(thread, shards[0], 1.0, 2.0, 3.0)
    assert (thread.queue_size, thread.queue_capacity) == (3, 8)
    learner.may_learn.clear()
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    assert thread.queue_size == 2


def test_an_error_surfaces_in_outputs_and_goes_on_surfacing(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    learner.fails_at = 1
    put(thread, shards[0], 1.0, 2.0, 3.0)
    for _ in range(2):
        with pytest.raises(FloatingPointError, match="this learner fails"):
            learn(thread, learner, updates=2) if not learner.progress else thread.outputs()
        learner.progress.append(0)
    assert learner.num_updates == 1
    assert thread.queue_size == 1


def test_weights_are_copied_only_when_asked_for(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    put(thread, shards[0], 1.0, 2.0, 3.0)
    learn(thread, learner, updates=3)
    assert thread.latest_weights().version == 0
    assert learner.num_snapshots == 1


def test_a_request_is_answered_once_after_the_next_update(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    put(thread, shards[0], 1.0, 2.0, 3.0)
    thread.request_weights()
    assert thread.latest_weights().version == 0
    learn(thread, learner, updates=3)
    snapshot = thread.latest_weights()
    assert (snapshot.version, snapshot.weights["updates"].tolist()) == (1, [1])
    assert learner.num_snapshots == 2


def test_the_time_it_waits_is_counted_and_the_time_it_learns_is_not(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    put(thread, shards[0], 1.0, 2.0, 3.0)
    learn(thread, learner, updates=3)
    # Readings around each part, one second apart; after the last update it may have waited once more.
    assert thread.time_s["wait"] in (3.0, 4.0)
    assert thread.time_s["learning"] == 3.0


def test_after_its_stop_nothing_more_is_learned(
    thread: LearnerThread, learner: ScriptedLearner, shards: list[Actor[ReplayShard]]
) -> None:
    thread.start()
    thread.stop()
    put(thread, shards[0], 1.0)
    assert not learner.learned.acquire(timeout=3 * learner_thread.IDLE_WAIT_S)


def test_the_stop_waits_for_the_update_in_progress_but_not_for_ever(
    thread: LearnerThread,
    learner: ScriptedLearner,
    shards: list[Actor[ReplayShard]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learner_thread, "STOP_TIMEOUT_S", 0.2)
    learner.may_learn.clear()
    put(thread, shards[0], 1.0)
    thread.start()
    assert learner.learned.acquire(timeout=TIMEOUT_S)
    started = time.monotonic()
    thread.stop()
    assert 0.2 <= time.monotonic() - started < 5.0
    assert thread.outputs() == []
