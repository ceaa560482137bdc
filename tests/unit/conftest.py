"""Trials and rows that look like those of a real run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlexp.config.keys.apex import ApexExperiment
from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RecordedError, RunRecord, Status, TrialRecord

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


@pytest.fixture
def make_trial() -> MakeTrial:
    def make(index: int = 0, name: str | None = None, stop: dict[str, float] | None = None, **config: Any) -> Trial:
        experiment = ApexExperiment.model_validate(
            {
                "name": "cartpole-apex",
                "run": "APEX",
                "env": "CartPole-v1",
                "stop": stop if stop is not None else {"episode_reward_mean": 475, "timesteps_total": 500_000},
                "config": {"seed": 7, **config},
            }
        )
        return Trial(index, name or f"{index:05d}-APEX-CartPole-v1", experiment, {"lr": 0.001}, 0)

    return make


@pytest.fixture
def make_row() -> MakeRow:
    def make(iteration: int = 1, reward: float | None = 20.0, **changes: Any) -> dict[str, Any]:
        return {
            "training_iteration": iteration,
            "timesteps_total": 1_000 * iteration,
            "timesteps_this_iter": 1_000,
            "time_total_s": 2.0 * iteration,
            "episode_reward_mean": reward,
            "done": False,
            "date": "2026-01-02T03:04:05",
            "timestamp": 1_767_323_045,
            "trial_name": "00000-APEX-CartPole-v1",
            "info": {
                "num_steps_sampled": 1_000 * iteration,
                "sample_throughput": 512.5,
                "train_throughput": 2_048.0,
                "trained_per_sampled": 4.0,
                "replay_fill": 0.5,
                "replay_fill_per_shard": [0.25, 0.75],
                "learner_queue_size": 3,
                "learner_queue_capacity": 16,
                "weight_age": 400,
                "min_exploration": 0.02,
                "max_exploration": 0.4,
                "learner_wait_share": 0.37,
                "worker_wait_share": 0.1,
                "worker_time_share": {"acting": 0.2, "stepping": 0.6, "folding": 0.1},
                "bottleneck": "workers",
                "learner": {"loss": 0.125},
            },
        } | changes

    return make


@pytest.fixture
def finished_run() -> RunRecord:
    trials = [
        TrialRecord(
            "00000-APEX-x", "00000-APEX-x", 7, {}, Status.TERMINATED, 12, 12_000, 60.0, 470.0, 475.5, "a/b", 1.0
        ),
        TrialRecord(
            "00001-APEX-x", "00001-APEX-x", 8, {}, Status.ERROR, error=RecordedError("Boom: no\x1b[2J", "e.txt")
        ),
    ]
    trials[0].reason = "episode_reward_mean 475.5 reached 475"
    return RunRecord("cartpole", [], {}, None, "host", 2, "now", trials=trials)
