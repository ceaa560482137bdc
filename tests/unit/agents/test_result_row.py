from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlexp.agents.result_row import IterationReport
from rlexp.optimizers.policy_optimizer import Counters, OptimizerStats
from rlexp.replay.shard import ShardStats
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.sample_time import SampleTime
from rlexp.rollout.worker import FragmentInfo
from tests.unit.agents.batches import make_batch, make_learner

NO_EPISODES = Episodes(np.empty(0), np.empty(0, np.int64), np.empty(0))


def shard(size: int, num_stale: int) -> ShardStats:
    return ShardStats(size, capacity=100, num_added=size, num_sampled=0, num_stale_priorities=num_stale, nbytes=0)


def fragment(worker_index: int, seconds: float) -> FragmentInfo:
    """What is told about a fragment: 1/2 of its time went into acting, 1/4 into stepping, 1/8 into folding."""
    time = SampleTime(seconds, seconds / 2, seconds / 4, seconds / 8)
    return FragmentInfo(worker_index, 10, 10, NO_EPISODES, np.zeros(1), 0, time)


def make_report() -> IterationReport:
    learner = make_learner(target_network_update_freq=64)
    for _ in range(3):
        learner.learn_on_batch(make_batch())
    stats = OptimizerStats(
        num_weight_syncs=7,
        num_worker_restarts=2,
        shards=(shard(20, 1), shard(40, 2)),
        learner_queue_size=3,
        learner_queue_capacity=16,
        learner_wait_share=0.25,
        learner_time_share={"wait": 0.25, "learning": 0.7},
        weight_age=1.5,
        bottleneck="replay",
        learner={"loss": 0.5},
        timing_s={"wait": 1.0},
    )
    return IterationReport(
        elapsed_s=4.0,
        sampled=200,
        trained=800,
        counters=Counters(num_steps_sampled=1000, num_steps_trained=3000),
        stats=stats,
        learner=learner,
        infos=[fragment(0, 1.0), fragment(1, 3.0), fragment(0, 2.0)],
        epsilons=[np.array([0.4, 0.2]), np.array([0.01, 0.03])],
    )


def test_figures_by_hand() -> None:
    info = make_report().info(timing=True)
    expected = {
        "num_steps_sampled": 1000,
        "num_steps_trained": 3000,
        "num_updates": 3,
        "num_target_updates": 1,
        "num_weight_syncs": 7,
        "num_worker_restarts": 2,
        "sample_throughput": 50.0,
        "train_throughput": 200.0,
        "trained_per_sampled": 4.0,
        "replay_fill": pytest.approx(0.3),
        "replay_fill_per_shard": [0.2, 0.4],
        "num_stale_priorities": 3,
        "learner_queue_size": 3,
        "learner_queue_capacity": 16,
        "learner_wait_share": 0.25,
        # 6 s of work in 4 s of 2 workers.
        "worker_wait_share": 0.25,
        "worker_time_share": {"acting": 0.375, "stepping": 0.1875, "folding": 0.09375, "wait": 0.25},
        "learner_time_share": {"wait": 0.25, "learning": 0.7},
        "weight_age": 1.5,
        "bottleneck": "replay",
        "learner": {"loss": 0.5},
        "timing_s": {"wait": 1.0},
        "min_exploration": 0.01,
        "max_exploration": 0.4,
    }
    assert {name: info[name] for name in expected} == expected
    assert info["exploration_per_worker"] == {"0": pytest.approx(0.3), "1": pytest.approx(0.02)}


def test_an_iteration_in_which_nothing_happened_divides_by_nothing() -> None:
    report = dataclasses.replace(make_report(), elapsed_s=0.0, sampled=0, trained=0, infos=[])
    info = report.info(timing=False)
    assert (info["sample_throughput"], info["trained_per_sampled"], info["worker_wait_share"]) == (0.0, 0.0, 1.0)
    assert "timing_s" not in info


def test_overlapping_workers_never_wait_less_than_nothing() -> None:
    report = dataclasses.replace(make_report(), infos=[fragment(0, 100.0)])
    assert report.info(timing=False)["worker_wait_share"] == 0.0
