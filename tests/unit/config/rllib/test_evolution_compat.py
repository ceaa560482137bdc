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


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ("policy_type: MLPPolicy, fcnet_hiddens: [16, 8]", (16, 8)),
        ("policy_type: MLPPolicy", (32, 32)),
        ("fcnet_hiddens: [16, 8]", ()),
        ("num_deltas: 8", ()),
        ("num_deltas: 8, model: {fcnet_hiddens: [4]}", (4,)),
        ("num_rollouts: 8", (256, 256)),
    ],
)
def test_the_first_ars_had_a_linear_policy_unless_it_is_given(keys: str, layers: tuple[int, ...]) -> None:
    plan = planned(f"p:\n  run: ARS\n  env: CartPole-v1\n  config: {{{keys}}}\n")
    assert config_of(plan).model.fcnet_hiddens == layers


def test_the_first_ars_had_two_kinds_of_policies() -> None:
    ((_, message, _),) = problems(plan_of, "ARS", "    policy_type: Other\n")
    assert message == "config.policy_type must be LinearPolicy or MLPPolicy, got the string 'Other'"


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
