"""PPO's movements, in one thread: what is wanted, what a train batch is, and with which weights it is sampled.

How much memory a train batch takes beside the samples that it is made of.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from rlexp.cluster.pool.pool import Actor, ActorLostError, InlineTaskPool, Ref
from rlexp.optimizers.sync_samples_optimizer import SyncSamplesOptimizer, TrainBatchConfig
from rlexp.policy import LearnResult
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import ACTIONS, FRAME_IDS, OBS, Array, FrameRows, SampleBatch
from tests.lab.doubles import HeldPool, ScriptedLearner, ScriptedPolicy, ScriptedSource, StepFold, rows
from tests.lab.envs import ENDLESS_ENV
from tests.lab.rollout import fleet_of, spec_of

NUM_SAMPLES, ROWS, NUMBERS = 32, 64, 1024
SAMPLE_BYTES = ROWS * NUMBERS * 4


class MeasuringLearner(ScriptedLearner):
    """Knows the most memory that was in use at once before its batch."""

    peak_bytes = 0
    last_obs = 0.0

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        _, self.peak_bytes = tracemalloc.get_traced_memory()
        assert batch[OBS].shape == (NUM_SAMPLES * ROWS, NUMBERS)
        self.last_obs = float(batch[OBS][-1, -1])
        return LearnResult({})


def sent(value: float) -> FrameRows:
    """Return rows as a worker sends large vectors: each is a frame."""
    numbers = np.arange(ROWS)
    frames = np.full((ROWS, NUMBERS), value, np.float32)
    return FrameRows(SampleBatch({FRAME_IDS: numbers[:, None]}), frames, numbers)


def test_sync_samples_optimizer_joins_large_rows_one_sample_after_another() -> None:
    """The samples themselves, the train batch, and at most a few samples more: no third copy of all rows."""
    source, learner = ScriptedSource(), MeasuringLearner()
    config = TrainBatchConfig(NUM_SAMPLES * ROWS, ROWS, num_workers=0, overlaps=False)
    optimizer = SyncSamplesOptimizer(InlineTaskPool(), source, learner, config)
    optimizer.start()
    tracemalloc.start()
    try:
        for number in range(NUM_SAMPLES):
            source.give(sent(number))
            optimizer.step()
    finally:
        tracemalloc.stop()
    assert learner.last_obs == NUM_SAMPLES - 1
    assert learner.peak_bytes < (2 * NUM_SAMPLES + 4) * SAMPLE_BYTES


SIZE = 12
PLAIN = TrainBatchConfig(size=SIZE, steps_per_call=4, num_workers=0, overlaps=False)
NUM_ENVS = 2


class RememberingLearner(ScriptedLearner):
    """Remembers its batches, and what ``source`` was asked for before each."""

    def __init__(self, source: ScriptedSource) -> None:
        super().__init__()
        self.batches: list[SampleBatch] = []
        self.polls: list[int] = []
        self._source = source

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        self.batches.append(batch)
        self.polls.append(len(self._source.wanted))
        return super().learn_on_batch(batch)


class Bench:
    """An optimizer whose samples a test gives."""

    def __init__(self, config: TrainBatchConfig = PLAIN, pool: InlineTaskPool | None = None) -> None:
        self.source = ScriptedSource()
        self.learner = RememberingLearner(self.source)
        self.optimizer = SyncSamplesOptimizer(pool or InlineTaskPool(), self.source, self.learner, config)
        self.optimizer.start()

    def give(self, value: float, count: int = 4, num_env_steps: int | None = None) -> None:
        """Let the next poll deliver rows that were sampled with the learner's weights."""
        self.source.give(rows(value, count), num_env_steps, self.learner.num_updates)

    def step(self, *values: float) -> None:
        for value in values:
            self.give(value)
        self.optimizer.step()

    def learned(self) -> list[list[float]]:
        """Return the observations of each train batch."""
        return [batch[OBS].tolist() for batch in self.learner.batches]


def test_a_batch_is_learned_once_it_is_complete() -> None:
    bench = Bench()
    for value in (1, 2):
        bench.step(value)
        assert bench.learned() == []
        assert not bench.optimizer.at_rest
    bench.step(3)
    assert bench.learned() == [[1] * 4 + [2] * 4 + [3] * 4]
    assert bench.optimizer.at_rest
    assert bench.source.wanted == [3, 2, 1]
    counters = bench.optimizer.counters
    assert (counters.num_steps_sampled, counters.num_steps_trained) == (12, 12)
    assert bench.learner.progress == [12]


def test_weights_are_published_at_the_start_and_after_each_batch() -> None:
    bench = Bench()
    assert bench.source.published == [(0, 0)]
    bench.step(1, 2)
    assert bench.source.published == [(0, 0)]
    bench.step(3)
    bench.step(4, 5, 6)
    assert bench.source.published == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize(("size", "wanted"), [(1, 1), (4, 1), (5, 2), (8, 2), (12, 3)])
def test_so_many_calls_are_wanted_as_the_batch_needs(size: int, wanted: int) -> None:
    bench = Bench(replace(PLAIN, size=size))
    bench.step()
    assert bench.source.wanted == [wanted]


def test_each_worker_contributes_to_each_batch() -> None:
    bench = Bench(replace(PLAIN, size=4, num_workers=3))
    for values, wanted in (([1.0, 2.0, 3.0], 3), ([4.0, 5.0], 3), ([6.0], 1)):
        bench.step(*values)
        assert bench.source.wanted[-1] == wanted
    assert bench.learned() == [[1] * 4 + [2] * 4 + [3] * 4, [4] * 4 + [5] * 4 + [6] * 4]


def test_steps_that_reset_count_as_sampled_but_not_as_rows() -> None:
    bench = Bench(replace(PLAIN, size=8))
    bench.give(1, count=3)
    bench.give(2, count=4)
    bench.optimizer.step()
    assert bench.learned() == [[1] * 3 + [2] * 4]
    assert bench.optimizer.counters.num_steps_sampled == 7
    assert bench.optimizer.at_rest


def test_whole_episodes_count_with_all_their_rows() -> None:
    bench = Bench()
    bench.give(1, count=9)
    bench.optimizer.step()
    assert not bench.optimizer.at_rest
    bench.step(2)
    assert bench.source.wanted == [3, 1]
    assert bench.learned() == [[1] * 9 + [2] * 4]


def test_what_is_still_in_flight_belongs_to_the_batch() -> None:
    bench = Bench()
    bench.source.num_in_flight = 2
    bench.give(1, count=SIZE)
    bench.optimizer.step()
    assert bench.learned() == []
    bench.source.num_in_flight = 0
    bench.source.give(rows(2, 4))
    bench.source.poll = lambda *_: bench.source._samples  # type: ignore[method-assign]
    bench.optimizer.step()
    assert bench.learned() == [[1] * SIZE + [2] * 4]


def test_overlap_asks_for_the_next_batch_before_it_learns() -> None:
    plain, ahead = Bench(), Bench(replace(PLAIN, overlaps=True))
    for bench in (plain, ahead):
        bench.step(1, 2, 3)
    assert plain.learner.polls == [1]
    assert ahead.learner.polls == [2]
    assert ahead.source.wanted == [3, 3]


def test_what_overlap_brings_at_once_belongs_to_the_next_batch() -> None:
    bench = Bench(replace(PLAIN, overlaps=True))
    for value in (1, 2, 3, 4, 5):
        bench.source.give(rows(value, 4))
    bench.optimizer.step()
    assert bench.learned() == [[1] * 4 + [2] * 4 + [3] * 4]
    assert not bench.optimizer.at_rest
    bench.source.give(rows(6, 4), weights_version=1)
    bench.optimizer.step()
    assert bench.source.wanted == [3, 3, 1, 3]
    assert bench.learned()[1:] == [[4] * 4 + [5] * 4 + [6] * 4]
    # The age is that of the weights when a sample comes: those that overlap brings at once are as new as the learner's.
    assert bench.optimizer.stats()["weight_age"] == 0
    bench.source.give(rows(7, 4), weights_version=1)
    bench.optimizer.step()
    assert bench.optimizer.stats()["weight_age"] == 1


def test_older_weights_are_an_error_without_overlap() -> None:
    bench = Bench()
    bench.step(1, 2, 3)
    bench.source.give(rows(4, 4), weights_version=0)
    with pytest.raises(AssertionError, match="worker 0 sampled with weights of 1 updates ago"):
        bench.optimizer.step()


def test_an_optimizer_continues_a_batch_that_is_collected_in_part() -> None:
    first, second, whole = Bench(), Bench(), Bench()
    for bench in (first, whole):
        bench.step(1, 2, 3)
        bench.step(4)
        bench.give(5, count=3)
        bench.optimizer.step()
    second.learner.load_state_dict(first.learner.state_dict())
    second.optimizer.load(first.optimizer.state())
    assert not second.optimizer.at_rest
    assert second.optimizer.learner_stats == first.optimizer.learner_stats == {"loss": 1.0}
    for bench in (second, whole):
        bench.step(6)
        assert bench.learned()[-1:] == [[4] * 4 + [5] * 3 + [6] * 4]
        assert bench.source.wanted[-1] == 1
        assert bench.optimizer.at_rest


def test_calls_without_rows_count_and_make_no_batch() -> None:
    bench = Bench(replace(PLAIN, size=8))
    bench.give(0, count=0)
    bench.step(1)
    assert bench.learned() == [[1] * 4]
    for _ in range(2):
        bench.give(0, count=0)
    bench.optimizer.step()
    assert bench.learner.num_updates == 1
    assert bench.optimizer.at_rest


def frame_rows(first: int) -> FrameRows:
    """Return two rows of stacks of two frames, of which they share one."""
    frames = np.arange(first, first + 3, dtype=np.uint8)[:, None, None, None] * np.ones((2, 2, 1), np.uint8)
    columns: dict[str, Array] = {FRAME_IDS: np.array([[0, 1], [1, 2]], np.int32), ACTIONS: np.arange(2)}
    return FrameRows(SampleBatch(columns), frames, np.arange(first, first + 3))


def test_rows_of_frames_are_joined_as_stacks_also_behind_a_checkpoint() -> None:
    first, second = Bench(replace(PLAIN, size=8)), Bench(replace(PLAIN, size=8))
    first.source.give(frame_rows(10))
    first.optimizer.step()
    second.optimizer.load(first.optimizer.state())
    for bench in (first, second):
        bench.source.give(frame_rows(20))
        bench.optimizer.step()
        (batch,) = bench.learner.batches
        assert set(batch) == {OBS, ACTIONS}
        assert batch[OBS].shape == (4, 2, 2, 2)
        assert batch[OBS][:, 0, 0].tolist() == [[10, 11], [11, 12], [20, 21], [21, 22]]


class LosingPool(InlineTaskPool):
    """Has lost every batch with two rows."""

    def get(self, ref: Ref[object], timeout: float) -> object:  # type: ignore[override]
        if len(ref.handle) == 2:
            raise ActorLostError("its result is lost")
        return super().get(ref, timeout)


def test_a_lost_batch_is_wanted_again_and_counts_nowhere() -> None:
    bench = Bench(replace(PLAIN, size=8), LosingPool())
    bench.give(1)
    bench.give(2, count=2, num_env_steps=4)
    bench.optimizer.step()
    assert bench.optimizer.counters.num_steps_sampled == 4
    bench.step(3)
    assert bench.source.wanted == [2, 1]
    assert bench.learned() == [[1] * 4 + [3] * 4]
    assert len(bench.optimizer.drain_infos()) == 2


def make_worker(index: int) -> RolloutWorker:
    spec = spec_of(ENDLESS_ENV, ScriptedPolicy, NUM_ENVS, StepFold(), fragment_length=2)
    return RolloutWorker(replace(spec, index=index))


class Fleet:
    """An optimizer over real workers, whose calls run when a test lets them."""

    def __init__(self, overlaps: bool, size: int, num_workers: int = 2) -> None:
        self.pool = HeldPool()
        actors: list[Actor[RolloutWorker]] = [
            Actor(f"worker-{index}", make_worker(index)) for index in range(num_workers)
        ]
        self.source = RemoteWorkers(self.pool, fleet_of(self.pool, actors), queue_depth=2, max_weight_sync_delay=0)
        self.learner = ScriptedLearner()
        self.in_flight: list[int] = []
        """When each update began."""
        learn_on_batch = self.learner.learn_on_batch

        def learn(batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
            self.in_flight.append(self.source.num_in_flight)
            return learn_on_batch(batch.with_columns(**{OBS: batch[OBS][:, 0]}))

        self.learner.learn_on_batch = learn  # type: ignore[method-assign]
        config = TrainBatchConfig(size, steps_per_call=4, num_workers=num_workers, overlaps=overlaps)
        self.optimizer = SyncSamplesOptimizer(self.pool, self.source, self.learner, config)
        self.optimizer.start()

    def run(self, num_updates: int) -> list[int]:
        """Step until so many updates are done, one call at a time; return the weights that each sample came from."""
        while self.learner.num_updates < num_updates:
            self.optimizer.step()
            self.pool.let_run(1)
        return [info.weights_version for info in self.optimizer.drain_infos()]


def test_fleet_has_nothing_in_flight_while_it_learns_and_acts_with_the_newest_weights() -> None:
    fleet = Fleet(overlaps=False, size=12)
    assert fleet.run(3) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert fleet.in_flight == [0, 0, 0]
    assert fleet.optimizer.counters.num_steps_trained == fleet.optimizer.counters.num_steps_sampled == 36


def test_fleet_that_overlaps_samples_while_it_learns_with_weights_of_one_batch_ago() -> None:
    fleet = Fleet(overlaps=True, size=12)
    assert fleet.run(4) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert fleet.in_flight == [3, 3, 3, 3]
