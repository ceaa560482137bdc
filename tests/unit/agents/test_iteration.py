"""Bounds of an iteration: it ends at the first counter that has reached one, whatever its minimum is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.agent import Agent
from rlexp.agents.iteration import IterationBounds, IterationReport, Progress, ReturnGoal
from rlexp.config.keys.metrics import GROWING_METRICS
from rlexp.optimizers.policy_optimizer import Counters
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.rows import flatten
from tests.lab.agents import MAKERS, STEPS, both_agents, make_dqn
from tests.lab.envs import COUNTING_ENV

ENDLESS: Mapping[str, Any] = {"timesteps_per_iteration": 10**9, "min_iter_time_s": 3600.0}
"""An iteration that only a bound ends."""
GOALS = {
    "timesteps_total": (250, STEPS),
    "info/num_steps_sampled": (310, STEPS),
    "info/num_steps_trained": (160, 160),
    "info/num_updates": (7, 1),
    "info/num_weight_syncs": (7, 10),
    "episodes_total": (12, STEPS),
    "time_total_s": (0.3, 2.0),
}
"""A bound of each counter, and how far beyond it one step of the optimizer can end at most."""


def numbers_in(value: Any) -> list[float]:
    """Return every number in a row, however deep."""
    if isinstance(value, dict):
        return [number for part in value.values() for number in numbers_in(part)]
    if isinstance(value, list):
        return [number for part in value for number in numbers_in(part)]
    return [value] if isinstance(value, int | float) else []


def counter_when_stopped(agent: Agent[Any], bounds: IterationBounds, metric: str) -> float:
    return float(flatten(agent.train(bounds=bounds))[metric])


@both_agents
def test_iteration_ends_at_bound_of_env_steps(run: str) -> None:
    agent = MAKERS[run](**ENDLESS)
    rows = [agent.train(bounds=IterationBounds({"timesteps_total": goal})) for goal in (100, 130, 300)]
    agent.stop()
    assert [row["timesteps_total"] for row in rows] == [100, 140, 300]
    assert [row["timesteps_this_iter"] for row in rows] == [100, 40, 160]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]


@both_agents
@pytest.mark.parametrize("metric", sorted(GOALS))
def test_iteration_ends_within_a_step_of_the_bound_of_each_counter(run: str, metric: str) -> None:
    agent = MAKERS[run](COUNTING_ENV, **ENDLESS)
    goal, most_beyond = GOALS[metric]
    reached = counter_when_stopped(agent, IterationBounds({metric: goal}), metric)
    agent.stop()
    assert goal <= reached <= goal + most_beyond


def test_every_counter_but_three_can_end_an_iteration() -> None:
    beside = {"training_iteration", "info/num_target_updates", "info/num_steps_dropped"}
    assert GROWING_METRICS - set(GOALS) == beside


def test_iteration_ends_at_the_first_of_several_bounds() -> None:
    agent = make_dqn(**ENDLESS)
    bounds = IterationBounds({"timesteps_total": 10**9, "time_total_s": 10**9, "info/num_steps_sampled": 60})
    assert counter_when_stopped(agent, bounds, "timesteps_total") == 60
    agent.stop()


def test_iteration_ends_at_its_minimum_where_the_bound_is_beyond_it() -> None:
    agent = make_dqn(timesteps_per_iteration=100)
    assert counter_when_stopped(agent, IterationBounds({"timesteps_total": 150}), "timesteps_total") == 100
    assert counter_when_stopped(agent, IterationBounds({"timesteps_total": 150}), "timesteps_total") == 160
    assert counter_when_stopped(agent, IterationBounds({"timesteps_total": 900}), "timesteps_total") == 260
    agent.stop()


@both_agents
def test_iteration_ends_when_the_mean_return_comes_to_its_goal_and_not_again_while_it_stays(run: str) -> None:
    agent = MAKERS[run](COUNTING_ENV, metrics_smoothing_episodes=5, **ENDLESS)
    bounds = IterationBounds({"episode_reward_mean": -1e9, "timesteps_total": 2000})
    first, again = agent.train(bounds=bounds), agent.train(bounds=bounds)
    agent.stop()
    assert 5 <= first["episodes_total"] <= 10
    assert first["timesteps_total"] < 1000
    assert again["timesteps_total"] >= 2000


def test_mean_return_counts_once_as_many_episodes_as_it_averages_have_ended() -> None:
    progress = Progress(smoothing_episodes=3)
    goal = ReturnGoal(progress, IterationBounds({"episode_reward_mean": 10.0}))
    found = []
    for returned in (30.0, 0.0, -10.0, 20.0, 20.0):
        progress.add(Episodes(np.array([returned]), np.array([1]), np.array([True])))
        found += [goal.is_reached(), goal.is_reached()]
    assert found == [False] * 8 + [True, False]
    assert not ReturnGoal(progress, IterationBounds({"episode_reward_mean": 10.0})).is_reached()


@pytest.mark.parametrize("metric", ["training_iteration", "info/num_target_updates"])
def test_iteration_is_not_ended_by_metrics_that_only_rows_have(metric: str) -> None:
    agent = make_dqn(timesteps_per_iteration=100)
    assert counter_when_stopped(agent, IterationBounds({metric: -1}), "timesteps_total") == 100
    agent.stop()


def test_iteration_beyond_its_bound_has_steps_of_its_own() -> None:
    agent = make_dqn(**ENDLESS)
    totals = [counter_when_stopped(agent, IterationBounds({"time_total_s": 0.0}), "timesteps_total") for _ in range(3)]
    agent.stop()
    assert totals == [STEPS, 2 * STEPS, 3 * STEPS]


@pytest.fixture
def rests_every_70_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let DQN's optimizer have something half done but where its env steps are a multiple of 70."""
    at_rest = property(lambda optimizer: optimizer.counters.num_steps_sampled % 70 == 0)
    monkeypatch.setattr(SyncReplayOptimizer, "at_rest", at_rest)


@pytest.mark.usefixtures("rests_every_70_steps")
@pytest.mark.parametrize(
    ("minimum", "bound", "expected"), [(100, 10**9, 140), (10**9, 100, 140), (150, 200, 280), (140, 140, 140)]
)
def test_iteration_ends_where_the_optimizer_is_at_rest(minimum: int, bound: int, expected: int) -> None:
    agent = make_dqn(timesteps_per_iteration=minimum)
    assert counter_when_stopped(agent, IterationBounds({"timesteps_total": bound}), "timesteps_total") == expected
    agent.stop()


@pytest.mark.usefixtures("rests_every_70_steps")
def test_iteration_that_is_asked_to_stop_does_not_wait_for_rest() -> None:
    agent = make_dqn(**ENDLESS)
    row = agent.train(should_stop=lambda: agent.optimizer.counters.num_steps_sampled >= 100)
    agent.stop()
    assert row["timesteps_total"] == 100


@both_agents
def test_bounds_count_from_the_beginning_also_after_a_checkpoint(run: str, tmp_path: Path) -> None:
    agent = MAKERS[run](**ENDLESS)
    agent.train(bounds=IterationBounds({"timesteps_total": 200}))
    path = agent.save(tmp_path / "checkpoint_000001", {})
    agent.stop()
    resumed = MAKERS[run](checkpoint=read_checkpoint(path), **ENDLESS)
    row = resumed.train(bounds=IterationBounds({"timesteps_total": 300}))
    resumed.stop()
    assert (row["timesteps_total"], row["timesteps_this_iter"], row["training_iteration"]) == (300, 100, 2)


@both_agents
def test_row_of_a_single_step_has_only_finite_rates(run: str) -> None:
    agent = MAKERS[run](COUNTING_ENV, **ENDLESS)
    agent.train(bounds=IterationBounds({"info/num_steps_trained": 1}))  # rewards, fill and loss are known from here on
    rows = [agent.train(bounds=IterationBounds({"timesteps_total": 0})) for _ in range(5)]
    agent.stop()
    assert all(row["timesteps_this_iter"] <= STEPS for row in rows)
    assert all(math.isfinite(number) for row in rows for number in numbers_in(row))


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
