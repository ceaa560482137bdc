"""Learning without replay, in one thread: what a train batch is, how often it is learned, how old it may be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.cluster.pool.pool import ActorLostError, InlineTaskPool, Ref
from rlexp.optimizers.async_samples_optimizer import (
    AgedRows,
    AsyncSamplesConfig,
    AsyncSamplesOptimizer,
    BatchRing,
    OldFragments,
    PolicyLags,
)
from rlexp.optimizers.learner_thread import LearnerRunner, LearnerThread
from rlexp.optimizers.policy_optimizer import InlineLearnerRunner
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.folds import IS_STEP
from rlexp.sample_batch import OBS, SampleBatch
from tests.lab.doubles import RaisingPool, ScriptedLearner, ScriptedSource, rows

CALL, SIZE = 4, 12


class RememberingLearner(ScriptedLearner):
    """Remembers the observations of its batches, and how many updates it had made before each."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, list[float]]] = []

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        self.batches.append((self.num_updates, batch[OBS].tolist()))
        return super().learn_on_batch(batch)


class HeldLearnerThread(LearnerThread[int]):
    """Learns when a test says so, in the test's thread."""

    def start(self) -> None:
        return None

    def learn(self, updates: int) -> None:
        for _ in range(min(updates, self.queue_size)):
            self._learn_once()


class Bench:
    """An optimizer whose samples a test gives; each has CALL rows, whose observation is the version that acted."""

    def __init__(self, queue: int | None = None, pool: InlineTaskPool | None = None, **changes: float | None) -> None:
        """Learn at once without a ``queue``."""
        self.source, self.learner = ScriptedSource(), RememberingLearner()
        self.source.wants_weights = True
        self.thread = None if queue is None else HeldLearnerThread(self.learner, queue, copy_interval=1)
        runner: LearnerRunner[int] = self.thread or InlineLearnerRunner(self.learner, copy_interval=1)
        config = AsyncSamplesConfig(**{"train_batch_size": SIZE, "steps_per_call": CALL, **changes})  # type: ignore[arg-type]
        rng = np.random.default_rng(0)
        self.optimizer = AsyncSamplesOptimizer(pool or InlineTaskPool(), self.source, runner, config, rng)
        self.optimizer.start()

    def give(self, version: int, count: int = 1) -> None:
        for _ in range(count):
            self.source.give(rows(version, CALL), weights_version=version)

    def step(self, *versions: int) -> None:
        for version in versions:
            self.give(version)
        self.optimizer.step()

    def learned(self) -> list[list[float]]:
        return [batch for _, batch in self.learner.batches]


def test_fragments_are_learned_once_there_are_enough_of_them() -> None:
    bench = Bench()
    bench.step(0)
    bench.step(0)
    assert bench.learned() == []
    assert bench.optimizer.at_rest
    bench.step(0)
    assert bench.learned() == [[0] * SIZE]
    counters = bench.optimizer.counters
    assert (counters.num_steps_sampled, counters.num_steps_trained) == (SIZE, SIZE)
    assert bench.source.wanted == [None] * 3


def test_rows_that_are_no_steps_are_neither_counted_nor_trained() -> None:
    bench = Bench(train_batch_size=CALL)
    marked = rows(0, CALL + 1).with_columns(**{IS_STEP: np.array([True] * CALL + [False])})
    bench.source.give(marked, num_env_steps=CALL)
    bench.optimizer.step()
    assert bench.learned() == [[0] * (CALL + 1)]
    assert bench.optimizer.counters.num_steps_trained == CALL


def test_steps_that_reset_an_env_need_no_further_fragment() -> None:
    bench = Bench()
    for _ in range(SIZE // CALL):
        bench.source.give(rows(0, CALL - 1), num_env_steps=CALL - 1)
    bench.optimizer.step()
    trained = SIZE - SIZE // CALL
    assert bench.learned() == [[0] * trained]
    assert bench.optimizer.counters.num_steps_trained == trained


@pytest.mark.parametrize(
    ("num_slots", "expected"),
    [(1, [0, 0, 0, 1, 1, 1, 2, 2, 2]), (2, [0, 1, 2, 1, 2, 3, 2, 3, 4, 3])],
    ids=["one after another", "in a ring that fills with fewer passes"],
)
def test_each_batch_is_learned_several_times(num_slots: int, expected: list[int]) -> None:
    bench = Bench(train_batch_size=CALL, num_passes=3, num_slots=num_slots)
    for number in range(6):
        bench.step(number)
    for _ in range(12):
        bench.step()
    assert [int(batch[0]) for batch in bench.learned()][: len(expected)] == expected


def test_no_more_samples_are_taken_while_a_whole_batch_waits_for_room() -> None:
    bench = Bench(queue=2, train_batch_size=CALL)
    bench.give(0, 5)
    for _ in range(4):
        bench.optimizer.step()
    assert bench.optimizer.counters.num_steps_sampled == 5 * CALL
    assert bench.optimizer.stats()["learner_queue_size"] == 2
    polls = len(bench.source.wanted)
    bench.step(0)
    assert len(bench.source.wanted) == polls
    assert bench.thread is not None
    bench.thread.learn(2)
    bench.step()
    assert bench.optimizer.counters.num_steps_trained == 2 * CALL
    assert bench.optimizer.stats()["learner_queue_size"] == 2


def test_the_age_of_a_policy_is_that_at_its_update() -> None:
    """Three batches wait for the learner, all of weights without an update."""
    bench = Bench(queue=8, train_batch_size=CALL)
    for _ in range(3):
        bench.step(0)
    assert bench.optimizer.stats()["policy_lag"] == {"mean": 1.0, "p95": 2.0, "max": 2.0}
    assert bench.optimizer.stats()["policy_lag"] == {"mean": 0.0, "p95": 0.0, "max": 0.0}


def test_steps_of_too_old_policies_are_dropped_and_counted() -> None:
    bench = Bench(train_batch_size=CALL, max_policy_lag=1)
    for version in (0, 1, 0, 2, 1, 3):
        bench.step(version)
    assert [batch[0] for batch in bench.learned()] == [0, 1, 2, 3]
    assert bench.optimizer.stats()["num_steps_dropped"] == 2 * CALL
    assert bench.optimizer.counters.num_steps_sampled == 6 * CALL
    assert bench.optimizer.counters.num_steps_trained == 4 * CALL


def test_later_passes_of_learned_steps_are_not_counted_as_dropped() -> None:
    bench = Bench(train_batch_size=CALL, num_passes=3, max_policy_lag=1)
    for _ in range(4):
        bench.step(bench.learner.num_updates)
    assert {before - int(batch[0]) for before, batch in bench.learner.batches} == {0, 1}
    assert bench.optimizer.stats()["num_steps_dropped"] == 0


def test_a_batch_is_sampled_after_the_last_pass_of_the_one_before_if_they_take_turns() -> None:
    bench = Bench(train_batch_size=CALL, num_passes=3)
    polled = []
    for number in range(6):
        polls = len(bench.source.wanted)
        bench.step(*[number] * (number % 3 == 0))
        polled.append(len(bench.source.wanted) > polls)
    assert polled == [True, False, False, True, False, False]


def test_workers_are_not_asked_for_what_would_be_too_old() -> None:
    """Two batches of weights 0 may be learned: the second one is of weights that are one update behind."""
    bench = Bench(queue=8, max_policy_lag=1)
    bench.step()
    assert bench.source.wanted[-1] == 2 * SIZE / CALL
    bench.step(0)
    bench.step()
    assert bench.source.wanted[-1] == 5
    bench.step(0, 0)
    bench.step()
    assert bench.source.wanted[-1] == 3
    bench.step(0, 0, 0)
    bench.step()
    assert bench.source.wanted[-1] == 0
    assert bench.thread is not None
    bench.thread.learn(1)
    bench.step()
    bench.step()
    assert bench.source.wanted[-1] == 3


def test_held_workers_get_newer_weights_though_none_asks_for_them() -> None:
    """A worker that is held cannot ask, and the learner has no update left after which weights would be copied."""
    bench = Bench(queue=8, train_batch_size=CALL, max_policy_lag=2)
    bench.source.wants_weights = False
    for _ in range(3):
        bench.step(0)
    bench.step()
    assert bench.source.wanted[-1] == 0
    assert bench.thread is not None
    bench.thread.learn(3)
    bench.step()
    bench.step()
    assert bench.source.published[-1][0] == 3
    assert bench.source.wanted[-1] == 3


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), min_size=5, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_late_nothing_older_than_the_limit_is_learned(
    limit: int, num_passes: int, num_slots: int, rounds: list[tuple[int, int]]
) -> None:
    """A fragment may be of any earlier version, as of a worker that stalled; the learner may be slow or fast."""
    bench = Bench(queue=4, max_policy_lag=limit, num_passes=num_passes, num_slots=num_slots, train_batch_size=2 * CALL)
    given_steps = 0
    for late, updates in rounds:
        bench.give(max(bench.learner.num_updates - late, 0))
        given_steps += CALL
        bench.optimizer.step()
        assert bench.thread is not None
        bench.thread.learn(updates)
    for before, batch in bench.learner.batches:
        assert before - min(batch) <= limit
    stats = bench.optimizer.stats()
    assert stats["policy_lag"]["max"] <= limit
    assert stats["num_steps_dropped"] <= given_steps


def test_weights_are_published_at_most_once_in_broadcast_interval_updates() -> None:
    bench = Bench(train_batch_size=CALL, broadcast_interval=3)
    for version in range(8):
        bench.step(version)
    assert [version for version, _ in bench.source.published] == [0, 3, 6]


def test_old_fragments_are_learned_beside_new_ones() -> None:
    bench = Bench(train_batch_size=3 * CALL, replay_proportion=2.0, num_replay_slots=2)
    for version in range(6):
        bench.step(version)
    for number, batch in enumerate(bench.learned()):
        newest = {number, max(number - 1, 0)}
        assert len(batch) == 3 * CALL
        assert batch[0] == number
        assert set(batch) <= newest
    assert bench.optimizer.counters.num_steps_sampled == 6 * CALL
    assert bench.optimizer.counters.num_steps_trained == 18 * CALL


def test_old_fragments_come_in_proportion() -> None:
    old = OldFragments(0.25, 10, np.random.default_rng(0))
    found = sum(len(old.beside(AgedRows.of(rows(0, 1), 0))) for _ in range(2000))
    assert found == pytest.approx(500, rel=0.15)
    assert OldFragments(1.0, 0, np.random.default_rng(0)).beside(AgedRows.of(rows(0, 1), 0)) == []


def test_a_fragment_that_is_lost_with_its_machine_is_counted() -> None:
    bench = Bench(pool=RaisingPool(), train_batch_size=CALL)
    bench.give(0, 2)
    bench.source._samples[0] = replace(bench.source._samples[0], batch=Ref(ActorLostError("gone")))
    bench.optimizer.step()
    assert bench.optimizer.stats()["num_fragments_lost"] == 1
    assert bench.optimizer.counters.num_steps_sampled == CALL


def test_workers_that_may_not_sample_with_too_old_weights_get_newer_ones_without_asking() -> None:
    bench = Bench(train_batch_size=CALL, max_policy_lag=2)
    bench.source.wants_weights = False  # workers ask when they sample
    for _ in range(50):
        bench.step(bench.source.published[-1][0])
    assert bench.learner.num_updates > 40
    assert bench.source.wanted[-1]


def test_workers_act_on_with_the_weights_that_they_had_before_an_interrupt() -> None:
    first = Bench(train_batch_size=CALL, broadcast_interval=3)
    for _ in range(4):
        first.step(0)
    assert (first.learner.num_updates, first.source.published[-1][0]) == (4, 3)
    resumed = Bench(train_batch_size=CALL, broadcast_interval=3)
    resumed.learner.num_updates = 4
    resumed.optimizer.load(first.optimizer.state())
    assert resumed.source.published[-1] == first.source.published[-1]
    assert resumed.optimizer.state()["published"] == first.optimizer.state()["published"]


def test_what_waits_and_what_has_passes_left_continues_from_a_state() -> None:
    def made() -> Bench:
        return Bench(num_passes=2, num_slots=2, replay_proportion=0.5, num_replay_slots=3)

    whole, first = made(), made()
    for bench in (whole, first):
        for version in (0, 0, 0, 1, 1, 1, 2):
            bench.step(version)
    resumed = made()
    resumed.learner.num_updates = first.learner.num_updates
    resumed.source = first.source
    resumed.optimizer = AsyncSamplesOptimizer(
        InlineTaskPool(),
        resumed.source,
        InlineLearnerRunner(resumed.learner),
        first.optimizer._config,
        np.random.default_rng(5),
    )
    resumed.optimizer.start()
    resumed.optimizer.load(first.optimizer.state())
    before = len(whole.learner.batches)
    for bench in (whole, resumed):
        for version in (2, 2, 3, 3, 3):
            bench.step(version)
    assert whole.learner.batches[before:] == resumed.learner.batches
    assert len(resumed.learner.batches) > 2


def test_a_ring_of_another_size_begins_anew() -> None:
    ring = BatchRing(2, 3)
    ring.fill([AgedRows.of(rows(0, 1), 0)])
    other = BatchRing(3, 3)
    other.load(ring.state())
    assert other.needs_batch


def test_the_95th_percentile_is_over_steps() -> None:
    lags = PolicyLags()
    lags.add(1, 94)
    lags.add(7, 5)
    lags.add(20, 1)
    assert lags.drain() == {"mean": pytest.approx(1.49), "p95": 7.0, "max": 20.0}
