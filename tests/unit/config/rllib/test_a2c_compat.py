"""Files of RLlib for A2C, A3C and PG: their old keys, and the defaults of their ages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lab.experiment_files import config_of, messages, planned, problems

pytestmark = pytest.mark.usefixtures("in_own_folder")


@pytest.fixture
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def experiment(run: str, keys: str, env: str = "CartPole-v0") -> str:
    return f"a:\n  run: {run}\n  env: {env}\n  stop: {{training_iteration: 1}}\n  config: {{{keys}}}\n"


def test_flat_keys_of_the_first_a3c() -> None:
    keys = "batch_size: 20, use_lstm: false, reward_filter: NoFilter, optimizer: {grads_per_step: 100}"
    plan = planned(experiment("A3C", f"{keys}, preprocessing: {{grayscale: true, dim: 80, zero_mean: false}}"))
    config = config_of(plan)
    assert config.sample_batch_size == 20
    assert (config.model.grayscale, config.model.dim, config.model.zero_mean) == (True, 80, False)
    assert "config.batch_size is config.sample_batch_size: 20 now" in messages(plan)


@pytest.mark.parametrize(
    ("keys", "feature"),
    [("model: {use_attention: true}", "attention models"), ("reward_filter: MeanStdFilter", "filters of rewards")],
)
def test_flat_keys_that_ask_for_what_is_not_here(keys: str, feature: str) -> None:
    ((_, message, _),) = problems(planned, experiment("A3C", keys))
    assert message.endswith(f": rlexp does not support {feature}")


@pytest.mark.parametrize("run", ["A2C", "A3C", "APPO", "IMPALA", "PG", "PPO", "DDPPO"])
def test_keys_of_an_lstm_of_every_age(run: str) -> None:
    model = "use_lstm: true, lstm_cell_size: 32, max_seq_len: 30, lstm_use_prev_action_reward: true"
    found = config_of(planned(experiment(run, f"model: {{{model}}}"))).model
    assert (found.use_lstm, found.lstm_cell_size, found.sequence_length) == (True, 32, 30)
    assert found.lstm_use_prev_action
    assert found.lstm_use_prev_reward
    plan = planned(experiment(run, "use_lstm: true, model: {vf_share_layers: false}"))
    assert config_of(plan).model.use_lstm
    assert ("config.use_lstm is config.model.use_lstm now") in messages(plan)
    alone = planned(experiment(run, "model: {max_seq_len: 5}"))
    assert config_of(alone).model.sequence_length is None
    assert any(message.startswith("config.model.max_seq_len has no effect") for message in messages(alone))


def test_batch_size_of_other_agents_is_unknown() -> None:
    ((_, message, hint),) = problems(planned, experiment("A2C", "batch_size: 20"))
    assert message == "unknown key config.batch_size (agent A2C)"
    assert hint == "did you mean train_batch_size?"


def test_fragments_of_pg_are_whole_episodes() -> None:
    plan = planned(experiment("PG", "batch_mode: truncate_episodes"))
    assert config_of(plan).batch_mode == "complete_episodes"
    (message,) = messages(plan)
    assert message.startswith("config.batch_mode: PG needs the returns of whole episodes")
    with_critic = planned(experiment("PG", "batch_mode: truncate_episodes, use_gae: true, use_critic: true"))
    assert config_of(with_critic).batch_mode == "truncate_episodes"


@pytest.mark.parametrize(
    ("run", "keys", "default"),
    [
        ("A2C", "use_pytorch: true", {"train_batch_size": 200, "sample_batch_size": 20}),
        ("A2C", "num_rollout_workers: 2, enable_connectors: false", {"train_batch_size": 32}),
        ("A2C", "num_env_runners: 2", {"train_batch_size": 32, "sample_batch_size": "auto"}),
        ("PG", "num_env_runners: 2", {"train_batch_size": 200, "sample_batch_size": "auto"}),
        ("SimpleQ", "num_env_runners: 2", {"min_iter_time_s": None, "sample_batch_size": 4}),
    ],
)
def test_defaults_of_an_age(run: str, keys: str, default: dict[str, Any]) -> None:
    config = config_of(planned(experiment(run, keys)))
    assert {key: getattr(config, key) for key in default} == default


def test_a_divergence_of_0_is_no_penalty() -> None:
    assert config_of(planned(experiment("DDPPO", "kl_coeff: 0.2, kl_target: 0.0"))).kl_coeff == 0


def test_the_first_files_wrote_alg() -> None:
    text = experiment("A3C", "summarize: false")
    assert planned(text.replace("run:", "alg:")).experiments[0].run == "A3C"


@pytest.mark.parametrize("run", ["A2C", "A3C", "PG", "DDPPO"])
def test_actions_are_scaled_from_release_1_6_on(run: str) -> None:
    new = config_of(planned(experiment(run, "num_env_runners: 2", "Pendulum-v1")))
    assert (new.normalize_actions, new.continuous_actions) == (True, "normalized")
    old = config_of(planned(experiment(run, "use_pytorch: true", "Pendulum-v0")))
    assert (old.normalize_actions, old.continuous_actions) == (False, "clipped")
