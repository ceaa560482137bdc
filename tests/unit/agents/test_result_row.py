from __future__ import annotations

import dataclasses

import numpy as np

from rlexp.agents.iteration import IterationReport, Progress
from rlexp.optimizers.policy_optimizer import Counters
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime

NO_EPISODES = Episodes(np.empty(0), np.empty(0, np.int64), np.empty(0, bool))


def fragment(worker_index: int, seconds: float) -> SampleInfo:
    """What is told about a fragment: 1/2 of its time went into acting, 1/4 into stepping, 1/8 into folding."""
    time = SampleTime(seconds, seconds / 2, seconds / 4, seconds / 8)
    return SampleInfo(worker_index, 10, 10, NO_EPISODES, 0, time)


def make_report() -> IterationReport:
    return IterationReport(
        elapsed_s=4.0,
        sampled=200,
        trained=800,
        counters=Counters(num_steps_sampled=1000, num_steps_trained=3000),
        num_workers=2,
        infos=[fragment(0, 1.0), fragment(1, 3.0), fragment(0, 2.0)],
        figures={"num_updates": 3, "bottleneck": "replay", "learner": {"loss": 0.5}},
    )


def test_figures_by_hand() -> None:
    assert make_report().info() == {
        "num_steps_sampled": 1000,
        "num_steps_trained": 3000,
        "num_updates": 3,
        "sample_throughput": 50.0,
        "train_throughput": 200.0,
        "trained_per_sampled": 4.0,
        # 6 s of work in 4 s of 2 workers.
        "worker_wait_share": 0.25,
        "worker_time_share": {"acting": 0.375, "stepping": 0.1875, "folding": 0.09375, "wait": 0.25},
        "bottleneck": "replay",
        "learner": {"loss": 0.5},
    }


def test_row_has_what_programs_for_rllib_read() -> None:
    figures = {"learner": {"lr": 0.5}, "learner_time_share": {"workers": 0.25, "replay": 0.25, "learner": 0.5}}
    row = dataclasses.replace(make_report(), figures=figures).row(Progress(10))
    assert row["info"]["learner"] == {"lr": 0.5, "cur_lr": 0.5}
    # 200 steps in a quarter of 4 s, 800 rows in half of it
    assert row["timers"] == {"sample_throughput": 200.0, "learn_throughput": 400.0}
    assert [row[f"policy_reward_{name}"] for name in ("min", "max", "mean")] == [{}, {}, {}]


def test_timers_of_workers_that_sample_all_the_time() -> None:
    figures = {"learner_time_share": {"wait": 0.5, "learning": 0.25, "copying_weights": 0.25}}
    report = dataclasses.replace(make_report(), figures=figures)
    assert report.timers() == {"sample_throughput": 50.0, "learn_throughput": 800.0}
    assert dataclasses.replace(report, figures={}, elapsed_s=0.0, sampled=0).timers() == {"sample_throughput": 0.0}


def test_an_iteration_in_which_nothing_happened_divides_by_nothing() -> None:
    report = dataclasses.replace(make_report(), elapsed_s=0.0, sampled=0, trained=0, infos=[])
    info = report.info()
    assert (info["sample_throughput"], info["trained_per_sampled"], info["worker_wait_share"]) == (0.0, 0.0, 1.0)


def test_overlapping_workers_never_wait_less_than_nothing() -> None:
    report = dataclasses.replace(make_report(), infos=[fragment(0, 100.0)])
    assert report.info()["worker_wait_share"] == 0.0
