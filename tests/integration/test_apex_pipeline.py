"""What Ape-X must never get wrong, seen through the real pipeline: Ray actors, the async optimizer, the learner thread.

Every observation of ``CountingEnv`` says which env, episode and step it is, so each row of each batch
can be checked against what it must be, wherever it has been in between.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest

from rlexp.agents.apex.gatherers import renewed
from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration, epsilon_ladder
from rlexp.cluster.pool.pool import Actor, Resources, TaskPool
from rlexp.cluster.pool.ray_pool import RayTaskPool
from rlexp.optimizers.async_replay_optimizer import AsyncReplayOptimizer
from rlexp.optimizers.learner_thread import LearnerThread
from rlexp.optimizers.pacing import DataPathConfig, Pacing
from rlexp.optimizers.replay_shards import ReplayShards
from rlexp.policy import LearnResult, Weights
from rlexp.replay import ReplayConfig, ReplayShard
from rlexp.replay.rows import STORAGE_PREFIX
from rlexp.replay.shared_rows import RingSizes, SharedReplay
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.folds import NStep
from rlexp.rollout.gatherer import GatheredInfo, GatheredWorkers, Gatherer, GathererConfig, GathererSpec
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.shared_weights import SharedWeights
from rlexp.rollout.source import Sample
from rlexp.rollout.worker import MessageLimits, RolloutWorker, WorkerSpec
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, KEYS, NEW_OBS, OBS, REWARDS, SampleBatch
from rlexp.schedules import LinearSchedule, derive_seed
from tests.lab import doubles
from tests.lab.checkpoints import in_memory
from tests.lab.doubles import CountingPolicy, ScriptedLearner, own_number
from tests.lab.envs import COUNTING_ENV
from tests.lab.rollout import spec_of

pytestmark = pytest.mark.ray

SEED = 7
N_STEP = 3
GAMMA = 0.9
EPISODE_LENGTHS = np.array([3, 7, 12])
ACTORS, SHARED_MEMORY, GATHERED = "actors", "shared_memory", "gathered"
"""Ways to keep replay: rows are sent to shards in other processes, or written where those in this one sample them.
GATHERED is ACTORS with gatherers, which send them."""
SLOW_GATHERED = pytest.param(GATHERED, marks=pytest.mark.cluster_slow)
"""Gatherers start a second layer of processes, which takes long on two slow cores."""
NUM_WORKERS = 3
NUM_ENVS = 4
QUEUE_DEPTH = 2
SYNC_DELAY = 100
TOGETHER = MessageLimits(num_fragments=3, num_bytes=100_000, seconds=1.0)
"""With ACTORS workers read weights from shared memory, and send several fragments at once; else they are sent them."""
FRAGMENT = 10
MOST_WAITING = NUM_WORKERS * NUM_ENVS * (N_STEP - 1)
"""At most n - 1 steps of each env still wait for their successors."""
LEAST_ROWS = 1000
"""Of each worker, to tell its epsilon from the others'."""
LEARNT = 1000.0
"""What the learner adds to a row's own number: tells a returned priority from a first one."""


def check_rows(batch: Mapping[str, np.ndarray] | SampleBatch) -> None:
    """Assert that every row is the n-step transition which its own observation says it must be."""
    episode, step = batch[OBS][:, 1], batch[OBS][:, 2]
    length = EPISODE_LENGTHS[(episode % 3).astype(int)]
    folded = np.minimum(N_STEP, length - step)
    assert (folded >= 1).all()
    expected_return = sum(np.where(k < folded, GAMMA**k * (step + k + 1), 0) for k in range(N_STEP))
    np.testing.assert_allclose(batch[REWARDS], expected_return, rtol=1e-6)
    terminated = (step + folded == length) & (episode % 2 == 1)
    np.testing.assert_allclose(batch[DISCOUNTS], np.where(terminated, 0, GAMMA**folded), rtol=1e-6)
    np.testing.assert_array_equal(batch[NEW_OBS][:, :2], batch[OBS][:, :2])
    np.testing.assert_array_equal(batch[NEW_OBS][:, 2], step + folded)


class CheckingLearner(ScriptedLearner):
    """Checks every batch instead of learning from it, and answers with numbers that name their rows."""

    def observe_progress(self, num_steps_sampled: int) -> None:
        assert num_steps_sampled >= max(self.progress, default=0)
        self.progress = [num_steps_sampled]

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        check_rows(batch)
        assert ((batch[IMPORTANCE_WEIGHTS] > 0) & (batch[IMPORTANCE_WEIGHTS] <= 1)).all()
        assert len(batch[KEYS]) == batch.count
        self.num_updates += 1
        return LearnResult({}, own_number(batch[OBS]) + LEARNT)

    def get_weights(self) -> Weights:
        return {"version": np.array(float(self.num_updates))}


REPLAY = replace(doubles.REPLAY, capacity=100_000, learning_starts=200, train_batch_size=64)


class CountedWorkers(RemoteWorkers):
    """Remembers how many env steps came from each worker."""

    def __init__(self, pool: TaskPool, fleet: Fleet, shared_weights: SharedWeights | None) -> None:
        super().__init__(pool, fleet, QUEUE_DEPTH, SYNC_DELAY, shared_weights)
        self.num_steps_of: Counter[int] = Counter()

    def poll(self, num_steps_sampled: int, wanted: int | None = None) -> list[Sample]:
        samples = super().poll(num_steps_sampled, wanted)
        for sample in samples:
            self.num_steps_of[sample.info.worker_index] += sample.info.num_env_steps
        return samples

    def least(self) -> int:
        """Return the env steps of the worker that has fewest."""
        return min(self.num_steps_of[index] for index in range(NUM_WORKERS))


LIMITS = FleetLimits(max_restarts=5, sample_timeout_s=60)
GROUPS = ((0, 2), (1,))
"""The workers of each gatherer."""


class Pipeline:
    """Ape-X with a counting env and policy and a checking learner."""

    def __init__(self, pool: TaskPool, replay: ReplayConfig, num_shards: int, storage: str) -> None:
        self.pool = pool
        self.replay = replay
        self.shared: SharedReplay | None = None
        self.weights = SharedWeights(NUM_WORKERS, SYNC_DELAY) if storage == ACTORS else None
        if storage == SHARED_MEMORY:
            sizes = RingSizes(replay.capacity, NUM_WORKERS, headroom=2 * QUEUE_DEPTH * FRAGMENT * NUM_ENVS)
            self.shared = SharedReplay(num_shards, sizes)
        self.shards = ReplayShards(pool, self.place_shard, num_shards)
        self.learner = CheckingLearner()
        self.workers: RemoteWorkers = self.make_workers() if storage != GATHERED else self.make_gatherers(num_shards)
        self.optimizer = AsyncReplayOptimizer(
            pool,
            self.workers,
            self.shards,
            LearnerThread(self.learner, 8),
            DataPathConfig(replay_depth=2, store_depth=6, beta=LinearSchedule(0.4, 0.4, 0)),
            Pacing(None, REPLAY.train_batch_size),
            np.random.default_rng(SEED),
        )
        self.optimizer.start()

    def make_workers(self) -> RemoteWorkers:
        return CountedWorkers(self.pool, Fleet(self.pool, self.place_worker, NUM_WORKERS, LIMITS), self.weights)

    def make_gatherers(self, num_shards: int) -> GatheredWorkers:
        fleet = Fleet(self.pool, self.place_gatherer, len(GROUPS), LIMITS, name_of="gatherer {}".format)
        gathered = GatheredWorkers(self.pool, fleet, SYNC_DELAY)
        for index in range(num_shards):
            gathered.set_shard(index, self.shards[index])
        return gathered

    def place_gatherer(self, index: int, attempt: int) -> Actor[Any]:
        config = GathererConfig(
            limits=LIMITS,
            queue_depth=QUEUE_DEPTH,
            max_weight_sync_delay=SYNC_DELAY,
            joined_rows=2 * FRAGMENT * NUM_ENVS,
            reported_rows=4 * FRAGMENT * NUM_ENVS,
            longest_wait_s=0.5,
            store_depth=2,
        )
        workers = tuple((self.worker_spec(worker, 10 * attempt), Resources(0, 0)) for worker in GROUPS[index])
        spec = GathererSpec(index, attempt, SEED, workers, renewed, type(self.pool), config)
        return self.pool.place(f"gatherer-{index}", Resources(0, 0), Gatherer, spec)

    def place_worker(self, index: int, attempt: int) -> Actor[RolloutWorker]:
        return self.pool.place(f"worker-{index}", Resources(0, 0), RolloutWorker, self.worker_spec(index, attempt))

    def worker_spec(self, index: int, attempt: int) -> WorkerSpec:
        epsilon = ConstantEpsilon((epsilon_ladder(NUM_WORKERS)[index],) * NUM_ENVS)
        make_policy = partial(CountingPolicy, PolicyExploration(epsilon, SEED + attempt, index))
        return replace(
            spec_of(COUNTING_ENV, make_policy, NUM_ENVS, NStep(N_STEP, GAMMA), fragment_length=FRAGMENT),
            index=index,
            seed=SEED + attempt,
            row_writer=self.shared.writer(index, seed=index) if self.shared else None,
            weights=self.weights.reader(index) if self.weights else None,
            message=TOGETHER,
        )

    def place_shard(self, index: int, generation: int) -> Actor[ReplayShard]:
        resources = None if self.shared else Resources(0, 0)
        rows = self.shared.rows(index) if self.shared else None
        shard = self.pool.place(f"replay-{index}", resources, ReplayShard, self.replay, index, rows)
        if generation and isinstance(self.workers, GatheredWorkers):
            self.workers.set_shard(index, shard)
        return shard

    def least_steps(self) -> int:
        """Return the env steps of the worker that has fewest; behind gatherers those that are rows already."""
        if isinstance(self.workers, CountedWorkers):
            return self.workers.least()
        env_ids = np.concatenate([rows_of(in_memory(state))[OBS][:, 0] for state in self.shards.states()]).astype(int)
        return min(int(np.isin(env_ids, env_ids_of(index)).sum()) for index in range(NUM_WORKERS))

    def run(self, num_steps: int, num_updates: int) -> None:
        counters = self.optimizer.counters
        self.run_until(lambda: counters.num_steps_sampled >= num_steps and self.learner.num_updates >= num_updates)

    def run_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 150
        while not is_done():
            self.optimizer.step()
            assert time.monotonic() < deadline, (self.optimizer.counters, self.learner.num_updates)

    def stop(self) -> list[dict[str, Any]]:
        """Stop, and return what each shard holds."""
        self.optimizer.step()
        if isinstance(self.workers, GatheredWorkers):
            self.count_what_gatherers_store()
        self.optimizer.stop()
        states = [in_memory(state) for state in self.shards.states()]
        self.pool.stop()
        return states

    def count_what_gatherers_store(self) -> None:
        """Ask gatherers for nothing more, count what they still report, and wait until their rows are in the shards."""
        counters, deadline = self.optimizer.counters, time.monotonic() + 60
        while self.workers.num_in_flight:
            self.workers.wait(0.1)
            counters.num_steps_sampled += sum(sample.info.num_env_steps for sample in self.workers.poll(0, 0))
            assert time.monotonic() < deadline
        while sum(shard.num_added for shard in self.shards.stats()) < counters.num_steps_sampled - MOST_WAITING:
            if time.monotonic() > deadline:
                return  # the tests that count fail


def rows_of(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name.removeprefix(STORAGE_PREFIX): state[name] for name in state if name.startswith(STORAGE_PREFIX)}


def check_priorities(state: Mapping[str, Any]) -> int:
    """Assert that each row has its own first priority or the learned one; return how many have this."""
    own = own_number(rows_of(state)[OBS])
    deltas = state["priorities_to_alpha"] ** (1 / REPLAY.alpha) - REPLAY.eps
    learnt = deltas > LEARNT
    np.testing.assert_allclose(deltas, own + learnt * LEARNT, rtol=1e-4)
    return int(learnt.sum())


def env_ids_of(worker: int) -> list[int]:
    """Return the numbers that the envs of a worker have in their observations."""
    seed = derive_seed(SEED, "worker", worker, "env")
    return [(seed + env) % 2**20 for env in range(NUM_ENVS)]


Held = tuple[Pipeline, list[dict[str, Any]]]
"""A pipeline that was stopped, and what each shard holds."""


@pytest.fixture(scope="module", params=[ACTORS, SHARED_MEMORY, SLOW_GATHERED])
def held(request: pytest.FixtureRequest, ray_session: None) -> Held:
    """A run through Ray with shards that overwrite nothing; the learner has checked every batch of it."""
    pipeline = Pipeline(RayTaskPool(), REPLAY, num_shards=2, storage=request.param)
    pipeline.run(num_steps=6_500, num_updates=60)
    # On a busy machine one worker may begin when the others have done all that.
    while pipeline.least_steps() <= 2 * LEAST_ROWS:
        pipeline.run(pipeline.optimizer.counters.num_steps_sampled + LEAST_ROWS, num_updates=0)
    return pipeline, pipeline.stop()


def test_every_stored_row_is_the_transition_it_says(held: Held) -> None:
    for state in held[1]:
        check_rows(rows_of(state))


def test_no_transition_is_lost_or_doubled(held: Held) -> None:
    observations = np.concatenate([rows_of(state)[OBS] for state in held[1]]).astype(int)
    envs = np.unique(observations[:, 0])
    assert len(envs) == NUM_WORKERS * NUM_ENVS
    for env in envs:
        seen = [tuple(row) for row in sorted(observations[observations[:, 0] == env][:, 1:].tolist())]
        first_episode = seen[0][0]
        everything = [
            (episode, step)
            for episode in range(first_episode, seen[-1][0] + 1)
            for step in range(EPISODE_LENGTHS[episode % 3])
        ]
        assert seen == everything[: len(seen)], f"env {env}"


def test_rows_and_steps_are_counted_alike(held: Held) -> None:
    pipeline, states = held
    stored = sum(state["num_added"] for state in states)
    waiting = pipeline.optimizer.counters.num_steps_sampled - stored
    assert 0 <= waiting <= MOST_WAITING


def test_each_worker_explores_with_its_own_epsilon(held: Held) -> None:
    rows = [rows_of(state) for state in held[1]]
    env_ids = np.concatenate([row[OBS][:, 0] for row in rows]).astype(int)
    explored = np.concatenate([row[ACTIONS] for row in rows]) != 0
    for index, epsilon in enumerate(epsilon_ladder(NUM_WORKERS)):
        mine = np.isin(env_ids, env_ids_of(index))
        count, probability = np.count_nonzero(mine), epsilon * 999 / 1000
        assert count > LEAST_ROWS
        deviation = np.sqrt(count * probability * (1 - probability))
        assert abs(explored[mine].sum() - count * probability) < 5 * deviation + 1, (index, epsilon)


def test_priorities_reach_their_own_rows(held: Held) -> None:
    assert sum(check_priorities(state) for state in held[1]) > 100


def test_workers_act_with_newer_and_newer_weights(held: Held) -> None:
    pipeline, _ = held
    versions: dict[int, int] = {}
    for info in pipeline.optimizer.drain_infos():
        if not isinstance(info, GatheredInfo):  # those are of several workers
            assert info.weights_version >= versions.get(info.worker_index, 0)
            assert (info.num_weight_reads is not None) == (pipeline.weights is not None)
        versions[info.worker_index] = info.weights_version
    assert all(version > 0 for version in versions.values()), versions


@pytest.mark.parametrize("storage", [ACTORS, SHARED_MEMORY])
def test_priorities_of_overwritten_rows_are_dropped(storage: str, ray_session: None) -> None:
    replay = replace(REPLAY, capacity=300, learning_starts=300)
    pipeline = Pipeline(RayTaskPool(), replay, num_shards=1, storage=storage)
    pipeline.run(num_steps=4_000, num_updates=40)
    state = pipeline.stop()[0]
    assert state["num_stale_priorities"] > 0, "nothing was overwritten while it was out: the test proves nothing"
    check_priorities(state)


def kill_one(kind: str) -> None:
    """Kill one of the actors of this test's Ray whose class has the name ``kind``."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{kind}"):
                process.kill()
                return
    raise AssertionError(f"there is no {kind}")


@pytest.mark.parametrize(
    ("storage", "kinds"),
    [
        (ACTORS, ["RolloutWorker", "ReplayShard"]),
        pytest.param(SHARED_MEMORY, ["RolloutWorker"], marks=pytest.mark.slow),
        pytest.param(GATHERED, ["Gatherer", "ReplayShard"], marks=pytest.mark.cluster_slow),
    ],
)
def test_workers_and_shards_that_are_killed_are_replaced(storage: str, kinds: list[str], ray_session: None) -> None:
    pipeline = Pipeline(RayTaskPool(), REPLAY, num_shards=2, storage=storage)
    pipeline.run(num_steps=2_000, num_updates=10)
    pipeline.optimizer.stats()
    for kind in kinds:
        kill_one(kind)
    events: list[str] = []

    def all_replaced() -> bool:
        events.extend(pipeline.optimizer.drain_events())
        return len(events) == len(kinds)

    pipeline.run_until(all_replaced)
    counters = pipeline.optimizer.counters
    pipeline.run(counters.num_steps_sampled + 4_000, pipeline.learner.num_updates + 20)
    states = pipeline.stop()
    for state in states:
        check_rows(rows_of(state))
        check_priorities(state)
    noun = "gatherer" if storage == GATHERED else "worker"
    assert any(noun in event and "its process died; replaced in" in event for event in events), events
    assert any("replay shard" in event for event in events) == ("ReplayShard" in kinds), events
    observations = np.concatenate([rows_of(state)[OBS] for state in states]).astype(int)
    assert len(np.unique(observations, axis=0)) == len(observations), "a transition is there twice"
