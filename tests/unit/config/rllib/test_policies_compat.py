"""Files of RLlib for agents with a policy and no replay, beside PPO's: old keys, and the defaults of their ages."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import resolved_yaml
from tests.lab.experiment_files import config_of, messages, planned, problems

pytestmark = pytest.mark.usefixtures("in_own_folder")


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


@pytest.mark.parametrize(("run", "length"), [("PG", "200"), ("A2C", "20"), ("DDPPO", "100")])
def test_a_notice_names_the_lengths_of_fragments_that_differ_between_releases(run: str, length: str) -> None:
    changed = f"config.sample_batch_size: {length} before 2.2, auto since (here {length})"
    assert any(changed in message for message in messages(planned(experiment(run, "framework: torch"))))


def test_fragments_of_pg_are_whole_episodes() -> None:
    plan = planned(experiment("PG", "batch_mode: truncate_episodes"))
    assert config_of(plan).batch_mode == "complete_episodes"
    assert any(each.startswith("config.batch_mode: PG needs the returns of whole episodes") for each in messages(plan))
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


@pytest.mark.parametrize(
    ("run", "keys", "expected"),
    [
        ("IMPALA", "use_pytorch: true", {"vtrace": True, "train_batch_size": 500, "sample_batch_size": 50}),
        ("APPO", "sample_batch_size: 50, use_pytorch: true", {"vtrace": False}),
        ("APPO", "num_rollout_workers: 2", {"vtrace": True}),
        ("APPO", "num_env_runners: 2, circular_buffer_num_batches: 4, circular_buffer_iterations_per_batch: 3", {
            "minibatch_buffer_size": 4, "num_sgd_iter": 3}),
        ("IMPALA", "max_requests_in_flight_per_sampler_worker: 1", {"max_sample_requests_in_flight_per_worker": 1}),
        ("IMPALA", "entropy_coeff: -0.01", {"entropy_coeff": 0.01}),
        ("IMPALA", "replay_ratio: 0.75, replay_buffer_num_slots: 8", {"replay_proportion": 3.0}),
        ("IMPALA", "replay_ratio: 0.0", {"replay_proportion": 0.0}),
        ("IMPALA", "rollout_length: 7, num_accs: 1, num_accs_per_worker: 0", {"sample_batch_size": 7, "num_gpus": 1}),
        ("IMPALA", "num_accs: 1, _fake_accs: true", {"num_gpus": 0}),
        ("APPO", "target_network_update_freq: 2", {"target_update_frequency": 2}),
        ("APPO", "use_kl_loss: true, kl_target: 0.04, tau: 0.5", {"use_kl_loss": True, "kl_target": 0.04}),
    ],
)  # fmt: skip
def test_keys_mean_what_they_meant(run: str, keys: str, expected: dict[str, Any]) -> None:
    config = config_of(planned(experiment(run, keys)))
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("vtrace_drop_last_ts: true", "all steps of a fragment are learned"),
        ("num_aggregation_workers: 1", "the learner's thread trains on them"),
        ("_separate_vf_optimizer: true", "one Adam trains policy and values"),
    ],
)
def test_keys_of_its_machinery_have_no_effect(key: str, reason: str) -> None:
    (message,) = messages(planned(experiment("APPO", key)))
    assert reason in message


@pytest.mark.parametrize("name", ["IMPALATrainer", "APPOTrainer", "impala", "appo"])
def test_their_other_names(name: str) -> None:
    assert planned(experiment(name, "lr: 0.1")).experiments[0].run in {"IMPALA", "APPO"}


def test_a_batch_cannot_have_old_fragments_only() -> None:
    ((_, message, _),) = problems(planned, experiment("IMPALA", "replay_ratio: 1.0"))
    assert message == "config.replay_ratio must be a number >= 0 and < 1, got 1.0"


def test_another_clip_of_the_target_worker_is_refused() -> None:
    ((_, message, _),) = problems(planned, experiment("APPO", "target_worker_clipping: 3.0"))
    assert "another limit than 2" in message


@pytest.mark.parametrize("run", AGENTS)
def test_what_a_run_keeps_is_read_as_the_same_trial(run: str) -> None:
    """A resolved file has every key of its agent, among them names that other agents had in old releases."""
    env = "Pendulum-v1" if run in {"DDPG", "TD3", "APEX_DDPG"} else "CartPole-v1"
    plan = planned(experiment(run, "seed: 1", env))
    again = planned(resolved_yaml(plan))
    assert again.trials == plan.trials
    assert not [message for message in messages(again) if " is config." in message]


def test_the_first_ars_spelled_its_keys_otherwise() -> None:
    keys = "num_deltas: 8, deltas_used: 4, stepsize: 0.3, policy_type: LinearPolicy, noise_size: 250"
    plan = planned(experiment("ARS", keys))
    config = config_of(plan)
    assert (config.num_rollouts, config.rollouts_used, config.lr) == (8, 4, 0.3)
    assert config.model.fcnet_hiddens == ()
    table = "config.noise_size has no effect here: noise is drawn by seeds, and there is no table of it"
    assert table in messages(plan)


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
    assert config_of(planned(experiment("ARS", keys))).model.fcnet_hiddens == layers


def test_the_first_ars_had_two_kinds_of_policies() -> None:
    ((_, message, _),) = problems(planned, experiment("ARS", "policy_type: Other"))
    assert message == "config.policy_type must be LinearPolicy or MLPPolicy, got the string 'Other'"


def test_later_ars_reports_the_mean_of_a_few() -> None:
    keys = "sgd_stepsize: 0.02, report_length: 3, eval_prob: 0.2, offset: 0"
    config = config_of(planned(experiment("ARSTrainer", keys)))
    assert (config.lr, config.metrics_smoothing_episodes, config.eval_prob, config.offset) == (0.02, 3, 0.2, 0.0)


def test_es_counts_env_steps_beside_episodes() -> None:
    keys = "episodes_per_batch: 10000, timesteps_per_batch: 100000, return_proc_mode: centered_rank"
    config = config_of(planned(experiment("ES", keys)))
    assert (config.num_directions, config.least_env_steps) == (5000, 100_000)
    ((_, message, _),) = problems(planned, experiment("ES", "return_proc_mode: sign"))
    assert "other weights of returns than their ranks" in message
