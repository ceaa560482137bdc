"""DQN's two movements, in one thread; some with real workers and learner, so that runs can be compared bit by bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.cluster.pool.pool import Actor, InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models.network_config import QNetworkConfig, torso_config_of
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.replay.shard import ReplayShard
from rlexp.rollout.remote_workers import RemoteWorkers
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import KEYS, OBS, Array, SampleBatch
from rlexp.schedules import LinearSchedule, PiecewiseSchedule, derive_seed
from tests.lab.doubles import REPLAY, ScriptedLearner, ScriptedSource, make_shard, rows
from tests.lab.dqn import PLAIN_HEAD
from tests.lab.envs import ENDLESS_ENV
from tests.lab.rollout import fleet_of, spec_of

NUM_ENVS = 2
FRAGMENT_LENGTH = 4
BATCH_SIZE = 16
CONSTANT_BETA = LinearSchedule(0.4, 0.4, 0)


def make_learner(network: QNetworkConfig) -> DQNLearner:
    config = DQNLearnerConfig(
        lr=PiecewiseSchedule(((0, 1e-3),)),
        adam_epsilon=1e-8,
        grad_norm_clipping=40.0,
        double_q=True,
        target_network_update_freq=50,
        target_counts_trained=False,
        device="cpu",
    )
    return DQNLearner(network, config, derive_seed(0, "learner"))


def make_worker(network: QNetworkConfig, index: int) -> RolloutWorker:
    exploration = PolicyExploration(ConstantEpsilon((0.3,) * NUM_ENVS), 0, index)
    spec = spec_of(ENDLESS_ENV, partial(DQNPolicy, network, exploration), NUM_ENVS, fragment_length=FRAGMENT_LENGTH)
    return RolloutWorker(replace(spec, index=index, seed=0))


def make_optimizer(
    num_workers: int = 0, learning_starts: int = 40, max_weight_sync_delay: int = 1
) -> SyncReplayOptimizer:
    torso = torso_config_of(DQNConfig(model=ModelConfig(fcnet_hiddens=(8,))))
    network = QNetworkConfig((3,), 1000, torso, PLAIN_HEAD)
    pool = InlineTaskPool()
    workers = [make_worker(network, index) for index in range(max(num_workers, 1))]
    source: SampleSource = LocalWorkers(pool, workers)
    if num_workers:
        actors: list[Actor[RolloutWorker]] = [Actor(f"worker-{index}", worker) for index, worker in enumerate(workers)]
        source = RemoteWorkers(pool, fleet_of(pool, actors), 1, max_weight_sync_delay)
    shard = make_shard(learning_starts=learning_starts, train_batch_size=BATCH_SIZE, capacity=1000)
    learner = make_learner(network)
    optimizer = SyncReplayOptimizer(pool, source, shard, learner, len(workers), CONSTANT_BETA, Pacing(None, BATCH_SIZE))
    optimizer.start()
    return optimizer


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_trained_per_sampled_is_exact_once_learning_has_started(num_workers: int) -> None:
    optimizer = make_optimizer(num_workers=num_workers)
    while optimizer.counters.num_steps_trained == 0:
        optimizer.step()
    sampled, trained = optimizer.counters.num_steps_sampled, optimizer.counters.num_steps_trained
    for _ in range(25):
        optimizer.step()
    sampled, trained = optimizer.counters.num_steps_sampled - sampled, optimizer.counters.num_steps_trained - trained
    assert sampled == 25 * FRAGMENT_LENGTH * NUM_ENVS * max(num_workers, 1)
    assert trained / sampled == BATCH_SIZE / (FRAGMENT_LENGTH * NUM_ENVS * max(num_workers, 1))


def test_workers_have_weights_before_their_first_step() -> None:
    optimizer = make_optimizer(num_workers=2, max_weight_sync_delay=1_000_000)
    for _ in range(3):
        optimizer.step()
    assert optimizer.drain_events() == []  # a network without weights raises, and its worker is replaced
    assert optimizer.stats()["num_weight_syncs"] == 2


def test_nothing_is_learned_before_learning_starts() -> None:
    optimizer = make_optimizer(learning_starts=40)
    trained = []
    for _ in range(6):
        optimizer.step()
        trained.append((optimizer.counters.num_steps_sampled, optimizer.counters.num_steps_trained))
    assert trained == [(8, 0), (16, 0), (24, 0), (32, 0), (40, BATCH_SIZE), (48, 2 * BATCH_SIZE)]


def make_scripted(
    beta: LinearSchedule = CONSTANT_BETA, round_size: int = 2, intensity: float | None = None
) -> tuple[SyncReplayOptimizer, ScriptedSource]:
    source = ScriptedSource()
    source.wants_weights = True
    shard = make_shard()
    pacing = Pacing(intensity, batch_rows=4)
    return SyncReplayOptimizer(InlineTaskPool(), source, shard, ScriptedLearner(), round_size, beta, pacing), source


class RecordingShard(ReplayShard):
    """Remembers the exponents it was asked with, and which rows got which TD errors."""

    def __init__(self) -> None:
        super().__init__(REPLAY, seed=0)
        self.betas: list[float] = []
        self.batches: list[SampleBatch] = []
        self.priorities: list[tuple[list[int], list[float]]] = []

    def replay(self, beta: float) -> SampleBatch | None:
        self.betas.append(beta)
        batch = super().replay(beta)
        if batch is not None:
            self.batches.append(batch)
        return batch

    def update_priorities(self, keys: Array, td_errors: Array) -> int:
        self.priorities.append((keys.tolist(), td_errors.tolist()))
        return super().update_priorities(keys, td_errors)


def learn_rounds(beta: LinearSchedule, rounds: int) -> RecordingShard:
    source, shard = ScriptedSource(), RecordingShard()
    optimizer = SyncReplayOptimizer(InlineTaskPool(), source, shard, ScriptedLearner(), 1, beta, Pacing(None, 2))
    for value in range(rounds):
        source.give(rows(float(value), 2))
        optimizer.step()
    return shard


def test_beta_follows_the_trained_steps() -> None:
    shard = learn_rounds(LinearSchedule(0.4, 1.0, timesteps=12), rounds=5)
    # Four rows in every update: the third of twelve steps each.
    assert shard.betas == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_td_errors_of_every_update_return_to_their_rows() -> None:
    shard = learn_rounds(CONSTANT_BETA, rounds=5)
    assert len(shard.batches) == 5
    # The scripted TD error of a row is its observation.
    assert shard.priorities == [(batch[KEYS].tolist(), batch[OBS].tolist()) for batch in shard.batches]


def test_an_incomplete_round_waits_and_two_rounds_at_once_are_two_updates() -> None:
    optimizer, source = make_scripted()
    trained = []
    for batches in (1, 0, 1, 4, 3, 1):
        for _ in range(batches):
            source.give(rows(1.0, 2))
        optimizer.step()
        trained.append(optimizer.counters.num_steps_trained // 4)
    assert trained == [0, 0, 1, 3, 4, 5]


def test_weights_are_published_at_the_start_and_after_every_update() -> None:
    optimizer, source = make_scripted(round_size=1)
    optimizer.start()
    for _ in range(3):
        source.give(rows(1.0, 2))
        optimizer.step()
    assert source.published == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_the_learner_and_the_source_are_told_the_sampled_steps() -> None:
    optimizer, source = make_scripted(round_size=1)
    for _ in range(3):
        source.give(rows(1.0, 2), num_env_steps=7)
        optimizer.step()
    assert source.clocks == [0, 7, 14]
    with optimizer.paused() as learner:
        assert isinstance(learner, ScriptedLearner)
        assert learner.progress == [7, 14, 21]


def test_a_batch_without_rows_belongs_to_its_round() -> None:
    optimizer, source = make_scripted()
    source.give(rows(1.0, 4), num_env_steps=4)
    source.give(rows(1.0, 0), num_env_steps=3)
    optimizer.step()
    assert optimizer.counters.num_steps_sampled == 7
    assert optimizer.counters.num_steps_trained == 4
    assert [info.num_rows for info in optimizer.drain_infos()] == [4, 0]
    assert optimizer.drain_infos() == []


def test_stats_tell_of_the_shard_and_the_last_update() -> None:
    optimizer, source = make_scripted(round_size=1)
    source.give(rows(1.0, 3), weights_version=-4)
    optimizer.step()
    stats = optimizer.stats()
    assert stats["replay_fill_per_shard"] == [3 / 64]
    assert (stats["num_updates"], stats["num_weight_syncs"], stats["num_worker_restarts"]) == (1, 1, 0)
    assert stats["learner"] == {"loss": 1.0}
    assert stats["weight_age"] == 4.0
    assert (stats["learner_queue_size"], stats["learner_queue_capacity"]) == (0, 0)
    assert stats["bottleneck"] in stats["learner_time_share"]
    assert set(stats["learner_time_share"]) == {"workers", "replay", "learner"}
    assert 0.0 <= stats["learner_wait_share"] <= 1.0
