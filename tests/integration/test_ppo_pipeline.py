"""What PPO must never get wrong, seen through its real pipeline: workers, the fold, the optimizer; in Ray and without.

Every observation of ``CountingEnv`` says which env, episode and step it is, and the policy adds which weights acted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rlexp.cluster.pool.pool import Actor, InlineTaskPool, Resources, TaskPool
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.optimizers.sync_samples_optimizer import SyncSamplesOptimizer, TrainBatchConfig
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.folds import ADVANTAGES, VALUE_TARGETS, VF_PREDS, Advantages
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.worker import RolloutWorker, WorkerSpec
from rlexp.sample_batch import OBS, Array, SampleBatch
from tests.integration.test_apex_pipeline import kill_one
from tests.lab.doubles import VERSION, ScriptedLearner, VersionPolicy
from tests.lab.envs import COUNTING_ENV, episode_length
from tests.lab.rollout import spec_of

SEED = 7
GAMMA = 0.5
NUM_WORKERS = 3
NUM_ENVS = 2
FRAGMENT = 10
CALL = NUM_ENVS * FRAGMENT
SIZE = 5 * CALL - 3
"""Five calls, of three workers."""
UPDATES = 6
"""SGD steps on each train batch."""
LENGTHS = np.array([episode_length(episode) for episode in range(3)])


class CheckingLearner(ScriptedLearner):
    """Checks every batch instead of learning from it, and remembers its rows."""

    def __init__(self, oldest: int | None) -> None:
        super().__init__()
        self.rows: list[Array] = []
        """Env, episode and step of each row ``[B, 3]``, of each batch."""
        self._oldest = oldest
        """How many train batches old the weights that acted may be; None: so old as an episode may be."""

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        check_rows(batch)
        if self._oldest is not None:
            ages = self.num_updates - batch[VERSION]
            assert set(ages.tolist()) <= {age * UPDATES for age in range(self._oldest + 1)}
        self.rows.append(batch[OBS].astype(int))
        self.num_updates += UPDATES
        return LearnResult({})

    def get_weights(self) -> Weights:
        return {"version": np.array(self.num_updates)}


def check_rows(batch: SampleBatch) -> None:
    """Assert that each row has the TD error, with lambda 0, that its own observation says it must have."""
    episode, step = batch[OBS][:, 1].astype(int), batch[OBS][:, 2]
    terminated = (step + 1 == LENGTHS[episode % 3]) & (episode % 2 == 1)
    targets = (step + 1) + GAMMA * np.where(terminated, 0, step + 1)
    np.testing.assert_array_equal(batch[VF_PREDS], step)
    np.testing.assert_allclose(batch[VALUE_TARGETS], targets, rtol=1e-6)
    np.testing.assert_allclose(batch[ADVANTAGES], targets - step, rtol=1e-6)


class Pipeline:
    """PPO with a counting env and policy and a checking learner."""

    def __init__(self, pool: TaskPool, num_workers: int, whole_episodes: bool, overlaps: bool) -> None:
        self.pool = pool
        self.whole_episodes = whole_episodes
        self.learner = CheckingLearner(None if whole_episodes else int(overlaps))
        self.source = self.make_source(num_workers)
        config = TrainBatchConfig(SIZE, CALL, num_workers, overlaps)
        self.optimizer = SyncSamplesOptimizer(pool, self.source, self.learner, config)
        self.optimizer.start()

    def make_source(self, num_workers: int) -> SampleSource:
        if num_workers == 0:
            return LocalWorkers(self.pool, [RolloutWorker(self.make_spec(0, 0))])
        fleet = Fleet(self.pool, self.place_worker, num_workers, FleetLimits(max_restarts=5, sample_timeout_s=60))
        return RemoteWorkers(self.pool, fleet, queue_depth=2, max_weight_sync_delay=0)

    def make_spec(self, index: int, attempt: int) -> WorkerSpec:
        batch_mode = "complete_episodes" if self.whole_episodes else "truncate_episodes"
        fold = Advantages(GAMMA, 0.0, uses_gae=True, uses_critic=True)
        spec = spec_of(COUNTING_ENV, VersionPolicy, NUM_ENVS, fold, fragment_length=FRAGMENT, batch_mode=batch_mode)
        return replace(spec, index=index, seed=SEED + attempt)

    def place_worker(self, index: int, attempt: int) -> Actor[RolloutWorker]:
        return self.pool.place(f"worker-{index}", Resources(0, 0), RolloutWorker, self.make_spec(index, attempt))

    def run_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_done():
            self.optimizer.step()
            assert time.monotonic() < deadline, (self.optimizer.counters, self.learner.num_updates)

    def run(self, num_batches: int) -> None:
        """Step until so many batches are learned, and none is collected in part."""
        self.run_until(lambda: len(self.learner.rows) >= num_batches and self.optimizer.at_rest)

    def stop(self) -> None:
        self.optimizer.stop()
        self.pool.stop()


def assert_each_step_is_learned_once(pipeline: Pipeline) -> None:
    """Assert that the rows of each env are its first steps, without a gap, in order, and all that was counted."""
    rows = np.concatenate(pipeline.learner.rows)
    assert len(rows) == pipeline.optimizer.counters.num_steps_trained
    for env in np.unique(rows[:, 0]):
        seen = [(episode, step) for _, episode, step in rows[rows[:, 0] == env].tolist()]
        everything = [(e, s) for e in range(seen[-1][0] + 1) for s in range(episode_length(e))]
        assert seen == everything[: len(seen)], f"env {env}"


def assert_sizes(pipeline: Pipeline, num_workers: int) -> None:
    """Assert that batches have so many rows as TrainBatchConfig says; call it at rest, after all batches."""
    sizes = [len(rows) for rows in pipeline.learner.rows]
    infos = pipeline.optimizer.drain_infos()
    assert sum(sizes) == sum(info.num_rows for info in infos)
    if pipeline.whole_episodes:
        # A call brings at least its steps in whole episodes; the last one more than all before it lacked.
        assert min(sizes) >= SIZE
        for rows in pipeline.learner.rows:
            for env in np.unique(rows[:, 0]):
                assert rows[rows[:, 0] == env][0, 2] == 0
                assert (rows[rows[:, 0] == env][-1, 2] + 1) in LENGTHS
    else:
        assert len(infos) == 5 * len(sizes)
        assert pipeline.optimizer.counters.num_steps_sampled == sum(sizes)
        # An episode lasts three steps at least, so at most each fourth step of an env resets it.
        assert all(5 * CALL * 3 / 4 <= size < 5 * CALL for size in sizes)
    assert {info.worker_index for info in infos} == set(range(max(num_workers, 1)))


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("whole_episodes", [False, True])
@pytest.mark.parametrize("num_workers", [0, NUM_WORKERS])
def test_batches_are_what_the_workers_sampled(num_workers: int, whole_episodes: bool, overlaps: bool) -> None:
    pipeline = Pipeline(InlineTaskPool(), num_workers, whole_episodes, overlaps and num_workers > 0)
    if overlaps:  # with calls that are done at once, the next batch is begun before this one is learned
        pipeline.run_until(lambda: len(pipeline.learner.rows) >= 4)
        rows = np.concatenate(pipeline.learner.rows)
        assert len(np.unique(rows, axis=0)) == len(rows)
    else:
        pipeline.run(4)
        assert_sizes(pipeline, num_workers)
        assert_each_step_is_learned_once(pipeline)
    pipeline.stop()


@pytest.mark.ray
def test_batches_are_complete_though_a_worker_is_killed_amid_one(ray_session: None) -> None:
    pipeline = Pipeline(RayTaskPool(), NUM_WORKERS, whole_episodes=False, overlaps=False)
    pipeline.run(3)
    assert_sizes(pipeline, NUM_WORKERS)
    pipeline.run_until(lambda: not pipeline.optimizer.at_rest)
    kill_one("RolloutWorker")
    events: list[str] = []

    def is_replaced() -> bool:
        events.extend(pipeline.optimizer.drain_events())
        return bool(events)

    pipeline.run_until(is_replaced)
    pipeline.run(len(pipeline.learner.rows) + 2)
    assert "its process died; replaced in" in events[0]
    assert all(5 * CALL * 3 / 4 <= len(rows) < 5 * CALL for rows in pipeline.learner.rows)
    envs = {env for rows in pipeline.learner.rows for env in rows[:, 0].tolist()}
    assert len(envs) == (NUM_WORKERS + 1) * NUM_ENVS
    assert pipeline.optimizer.counters.num_steps_sampled == pipeline.optimizer.counters.num_steps_trained
    assert_each_step_is_learned_once(pipeline)
    pipeline.stop()


@pytest.mark.ray
def test_whole_episodes_are_sampled_while_the_learner_learns(ray_session: None) -> None:
    pipeline = Pipeline(RayTaskPool(), NUM_WORKERS, whole_episodes=True, overlaps=True)
    pipeline.run_until(lambda: len(pipeline.learner.rows) >= 5)
    pipeline.stop()
    assert_each_step_is_learned_once(pipeline)
    assert min(map(len, pipeline.learner.rows)) >= SIZE
