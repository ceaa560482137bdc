"""The models: strict values, RLlib's defaults, what fits together, and a docstring for every key."""

from typing import Any

import pytest
from pydantic import ValidationError

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.apex import ApexConfig, ApexExperiment
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import required_cpus, required_gpus
from rlexp.config.keys.key_table import key_table


def error_types(**keys: Any) -> list[str]:
    with pytest.raises(ValidationError) as caught:
        ApexConfig.model_validate(keys)
    return [detail["type"] for detail in caught.value.errors()]


@pytest.mark.parametrize("value", [True, "3", 3.7, float("nan"), float("inf"), None, [3]])
def test_count_refuses_other_types(value: Any) -> None:
    assert error_types(n_step=value) == ["int_type"]


@pytest.mark.parametrize("value", [3, 3.0])
def test_count_accepts_whole_floats(value: Any) -> None:
    n_step = ApexConfig.model_validate({"n_step": value}).n_step
    assert (n_step, type(n_step)) == (3, int)


@pytest.mark.parametrize("value", [True, "0.1", None, [0.1]])
def test_number_refuses_other_types(value: Any) -> None:
    assert error_types(lr=value) == ["float_type"]


def test_numbers_must_be_finite_at_any_depth() -> None:
    assert error_types(lr=float("nan")) == ["finite_number"]
    assert error_types(env_config={"a": [{"b": float("inf")}]}) == ["finite_number"]


def test_configs_are_frozen() -> None:
    config = ApexConfig()
    with pytest.raises(ValidationError):
        config.lr = 1.0  # type: ignore[misc]


def test_apex_defaults_are_rllibs_without_gpu() -> None:
    config = ApexConfig()
    assert (config.num_workers, config.n_step, config.buffer_size, config.learning_starts) == (32, 3, 2_000_000, 50_000)
    assert (config.train_batch_size, config.sample_batch_size, config.target_network_update_freq) == (512, 50, 500_000)
    assert (config.timesteps_per_iteration, config.min_iter_time_s) == (25_000, 30)
    assert config.per_worker_exploration
    assert config.worker_side_prioritization
    assert (config.optimizer.max_weight_sync_delay, config.optimizer.num_replay_buffer_shards) == (400, 4)
    assert config.num_gpus == 0


def test_apex_beta_is_constant_by_default() -> None:
    assert ApexConfig(prioritized_replay_beta=0.5).resolved_final_prioritized_replay_beta == 0.5
    assert ApexConfig(final_prioritized_replay_beta=1.0).resolved_final_prioritized_replay_beta == 1.0
    assert DQNConfig().resolved_final_prioritized_replay_beta == 0.4


@pytest.mark.parametrize(
    ("num_workers", "epsilon_ladder", "resolved"),
    [(0, None, "env"), (1, None, "env"), (2, None, "worker"), (2, "env", "env"), (1, "worker", "worker")],
)
def test_resolved_epsilon_ladder_follows_num_workers(num_workers: int, epsilon_ladder: Any, resolved: str) -> None:
    config = ApexConfig(num_workers=num_workers, epsilon_ladder=epsilon_ladder)
    assert config.resolved_epsilon_ladder == resolved


def conflicts(**keys: Any) -> list[tuple[tuple[str, ...], str]]:
    with pytest.raises(ValidationError) as caught:
        ApexConfig.model_validate(keys)
    return [(conflict.keys, conflict.message) for conflict in caught.value.errors()[0]["ctx"]["conflicts"]]


def test_conflicts_are_reported_together_and_mark_defaults() -> None:
    assert conflicts(buffer_size=100, v_min=10.0) == [
        (
            ("train_batch_size", "buffer_size"),
            "train_batch_size is 512 (its default), more than buffer_size, which is 100",
        ),
        (("v_min", "v_max"), "v_min is 10.0, but must be less than v_max, which is 10.0"),
    ]


def test_conflict_more_shards_than_transitions() -> None:
    found = conflicts(buffer_size=3, learning_starts=0, train_batch_size=1)
    assert [keys for keys, _ in found] == [("optimizer.num_replay_buffer_shards", "buffer_size")]


def test_required_resources() -> None:
    config = {"num_workers": 16, "num_cpus_per_worker": 0.5, "num_gpus": 1, "num_gpus_per_worker": 0.25}
    experiment = ApexExperiment.model_validate({"name": "a", "run": "APEX", "env": "CartPole-v1", "config": config})
    assert required_cpus(experiment) == 9.0
    assert required_gpus(experiment) == 5.0


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "ALE/Pong-v5", "my.package:Maze", "my_pkg:ns/Maze-v0", "PongNoFrameskip-v4"]
)
def test_env_names_accepted(env: str) -> None:
    assert AGENTS["DQN"].model_validate({"name": "a", "run": "DQN", "env": env}).env == env


@pytest.mark.parametrize("env", ["", " ", "a b", "../x", "/etc", "a//b", ":Class", "mod:", "1mod:Class", "a\nb", "é"])
def test_env_names_refused(env: str) -> None:
    with pytest.raises(ValidationError):
        AGENTS["DQN"].model_validate({"name": "a", "run": "DQN", "env": env})


@pytest.mark.parametrize("name", ["", ".", "..", "../../x", "a/b", "a\\b", "a\x00b", "a\x1b[31m", "x" * 101])
def test_experiment_names_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        AGENTS["DQN"].model_validate({"name": name, "run": "DQN", "env": "CartPole-v1"})


@pytest.mark.parametrize("run", AGENTS)
def test_every_key_has_meaning_and_expectation(run: str) -> None:
    table = key_table(run)
    assert len(table) > 40
    for key in table.values():
        assert len(key.meaning) > 10, key.path
        assert key.meaning.rstrip().endswith((".", ")")), key.path
        assert key.expects, key.path


def test_key_table_matches_models() -> None:
    table = key_table("APEX")
    assert table["config", "n_step"].expects == "a whole number >= 1"
    assert table["config", "gamma"].expects == "a number >= 0 and <= 1"
    assert table["config", "grad_norm_clipping"].expects == "a number > 0 or null"
    assert table["config", "model", "fcnet_hiddens"].expects == "a list of whole numbers >= 1"
    assert table["config", "model", "fcnet_hiddens"].items_expect == "a whole number >= 1"
    assert table["config", "double_q"].expects == "true or false"
    assert table["config", "n_step"].default == 3
    assert key_table("DQN")["config", "n_step"].default == 1
    assert table["env",].required
    assert ("name",) not in table
    assert table["config", "optimizer"].is_group
