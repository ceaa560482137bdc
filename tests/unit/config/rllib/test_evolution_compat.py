"""Keys of RLlib's ES and ARS, in the spellings of several years."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.config.load import Plan
from tests.lab.experiment_files import config_of, messages, planned, problems

TABLE = "config.noise_size has no effect here: noise is drawn by seeds, and there is no table of it"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def plan_of(run: str, keys: str) -> Plan:
    return planned(f"p:\n  run: {run}\n  env: CartPole-v1\n  config:\n{keys}")


def test_the_first_ars_spelled_its_keys_otherwise() -> None:
    keys = (
        "    num_deltas: 8\n    deltas_used: 4\n    stepsize: 0.3\n    policy_type: LinearPolicy\n    noise_size: 250\n"
    )
    plan = plan_of("ARS", keys)
    config = config_of(plan)
    assert (config.num_rollouts, config.rollouts_used, config.lr) == (8, 4, 0.3)
    assert config.model.fcnet_hiddens == ()
    assert TABLE in messages(plan)


def test_later_ars_reports_the_mean_of_a_few() -> None:
    keys = "    sgd_stepsize: 0.02\n    report_length: 3\n    eval_prob: 0.2\n    offset: 0\n"
    config = config_of(plan_of("ARSTrainer", keys))
    assert (config.lr, config.metrics_smoothing_episodes, config.eval_prob, config.offset) == (0.02, 3, 0.2, 0.0)


def test_es_counts_env_steps_beside_episodes() -> None:
    keys = "    episodes_per_batch: 10000\n    timesteps_per_batch: 100000\n    return_proc_mode: centered_rank\n"
    config = config_of(plan_of("ES", keys))
    assert (config.num_directions, config.least_env_steps) == (5000, 100_000)
    ((_, message, _),) = problems(plan_of, "ES", "    return_proc_mode: sign\n")
    assert "other weights of returns than their ranks" in message
