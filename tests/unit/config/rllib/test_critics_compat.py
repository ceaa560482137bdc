"""Keys of RLlib's DDPG, TD3, APEX_DDPG and SAC, in the spellings of several years."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.config.load import Plan, resolved_yaml
from tests.lab.experiment_files import config_of, messages, planned, problems

pytestmark = pytest.mark.usefixtures("in_own_folder")

EARLY = """
    noise_scale: 0.75
    exploration_theta: 0.3
    exploration_sigma: 0.4
    exploration_fraction: 0.4
    exploration_final_eps: 0.02
    schedule_max_timesteps: 50000
    actor_loss_coeff: 0.1
    optimizer_class: SyncReplayOptimizer
    tau: 0.001
    clip_rewards: false
"""
LATE = """
    exploration_config:
      type: OrnsteinUhlenbeckNoise
      random_timesteps: 700
      ou_base_scale: 0.75
      ou_theta: 0.3
      ou_sigma: 0.4
      initial_scale: 0.9
      final_scale: 0.02
      scale_timesteps: 20000
    use_state_preprocessor: false
    replay_buffer_config: {type: MultiAgentReplayBuffer, capacity: 5000, learning_starts: 600}
"""


def plan_of(run: str, keys: str, env: str = "Pendulum-v1") -> Plan:
    return planned(f"p:\n  run: {run}\n  env: {env}\n  config:\n{keys}")


def test_the_noise_of_early_ddpg_is_the_same_by_its_new_names() -> None:
    config = config_of(plan_of("DDPG", EARLY))
    assert (config.exploration_ou_noise_scale, config.exploration_ou_theta) == (0.75, 0.3)
    assert (config.exploration_noise_type, config.exploration_ou_sigma) == ("ou", 0.4)
    assert (config.exploration_final_scale, config.exploration_scale_timesteps) == (0.02, 20_000)


def test_td3_was_spelled_as_ddpg() -> None:
    keys = "    smooth_target_policy: true\n    act_noise: 0.3\n    noise_clip: 0.4\n    twin_q: true\n"
    config = config_of(plan_of("DDPG", keys))
    assert (config.exploration_noise_type, config.exploration_gaussian_sigma) == ("gaussian", 0.3)
    assert config.target_noise_clip == 0.4


def test_td3_had_another_name_of_its_noise_first() -> None:
    keys = "    noise_scale: 0.15\n    exploration_theta: 0.15\n    use_gaussian_noise: true\n    noise_clip: 0.4\n"
    config = config_of(plan_of("DDPG", keys))
    assert (config.exploration_noise_type, config.exploration_gaussian_sigma) == ("gaussian", 0.3)
    assert (config.smooth_target_policy, config.target_noise_clip) == (True, 0.4)
    assert not config_of(plan_of("DDPG", "    use_gaussian_noise: false\n")).smooth_target_policy


@pytest.mark.parametrize(
    ("age", "policy", "torso", "end_of_noise", "random_steps"),
    [
        ("noise_scale: 0.2", (64, 64), (256, 256), 0.02, 0),
        ("framework: torch", (400, 300), (), 1.0, 1000),
        ("num_steps_sampled_before_learning_starts: 600", (400, 300), (), 0.02, 1000),
    ],
)
def test_ddpg_has_the_defaults_of_its_age(
    age: str, policy: Any, torso: Any, end_of_noise: float, random_steps: int
) -> None:
    config = config_of(plan_of("DDPG", f"    {age}\n"))
    assert (config.actor_hiddens, config.critic_hiddens, config.model.fcnet_hiddens) == (policy, policy, torso)
    assert (config.exploration_final_scale, config.pure_exploration_steps) == (end_of_noise, random_steps)


@pytest.mark.parametrize(
    ("keys", "is_prioritized"),
    [
        ("Q_model: {}", False),
        ("num_steps_sampled_before_learning_starts: 9", True),
        (
            "num_steps_sampled_before_learning_starts: 9\n    replay_buffer_config: {type: MultiAgentReplayBuffer}",
            False,
        ),
    ],
)
def test_replay_of_sac_is_prioritized_since_2_0(keys: str, is_prioritized: bool) -> None:
    assert config_of(plan_of("SAC", f"    {keys}\n")).prioritized_replay == is_prioritized


def test_noise_in_the_units_of_an_env_is_told() -> None:
    keys = "    use_pytorch: false\n    exploration_config: {stddev: 0.2}\n"
    assert any("exploration_gaussian_sigma is in half the range" in each for each in messages(plan_of("TD3", keys)))
    later = keys.replace("use_pytorch", "_disable_execution_plan_api")
    assert not any("half the range" in each for each in messages(plan_of("TD3", later)))


@pytest.mark.parametrize("run", ["DDPG", "SAC", "DQN"])
def test_replay_has_a_least_size_for_learning(run: str) -> None:
    env = "CartPole-v1" if run == "DQN" else "Pendulum-v1"
    plan = plan_of(run, "    replay_buffer_config: {min_size_for_sampling: 700}\n", env)
    assert config_of(plan).learning_starts == 700


def test_a_state_preprocessor_is_a_torso() -> None:
    assert config_of(plan_of("DDPG", "    use_state_preprocessor: true\n")).model.fcnet_hiddens == (256, 256)
    images = plan_of("SAC", "    use_state_preprocessor: true\n", "ALE/Pong-v5")
    assert config_of(images).model.fcnet_hiddens == ()


@pytest.mark.parametrize("key", ["use_gaussian_noise", "use_state_preprocessor"])
def test_a_flag_is_true_or_false(key: str) -> None:
    ((_, message, _),) = problems(planned, f"p: {{run: DDPG, env: Pendulum-v1, config: {{{key}: maybe}}}}\n")
    assert message == f"config.{key} must be true or false, got the string 'maybe'"


def test_exploration_config_of_late_ddpg_is_flat_keys() -> None:
    plan = plan_of("DDPG", LATE)
    config = config_of(plan)
    assert (config.exploration_noise_type, config.pure_exploration_steps) == ("ou", 700)
    assert (config.exploration_initial_scale, config.exploration_scale_timesteps) == (0.9, 20_000)
    assert (config.buffer_size, config.learning_starts, config.prioritized_replay) == (5000, 600, False)
    assert any("OrnsteinUhlenbeckNoise is exploration_noise_type: ou" in message for message in messages(plan))
    assert config_of(planned(resolved_yaml(plan))) == config


@pytest.mark.parametrize(
    ("kind", "noise", "per_worker"),
    [("GaussianNoise", "gaussian", False), ("PerWorkerOrnsteinUhlenbeckNoise", "ou", True)],
)
def test_types_of_noise(kind: str, noise: str, per_worker: bool) -> None:
    config = config_of(plan_of("APEX_DDPG", f"    exploration_config: {{type: {kind}}}\n    num_workers: 2\n"))
    assert (config.exploration_noise_type, config.per_worker_exploration) == (noise, per_worker)


def test_noise_that_was_not_to_decrease_stays() -> None:
    keys = "    exploration_should_anneal: false\n    exploration_final_scale: 0.02\n    exploration_fraction: 0.1\n"
    assert config_of(plan_of("DDPG", keys)).exploration_final_scale == 1.0
    assert config_of(plan_of("DDPG", "    exploration_should_anneal: true\n")).exploration_final_scale == 0.02


@pytest.mark.parametrize("age", ["Q_model: {hidden_layer_sizes: [7]}", "q_model_config: {fcnet_hiddens: [7]}"])
def test_the_layers_of_sac_have_one_name(age: str) -> None:
    policy = "policy_model: {hidden_activation: tanh, hidden_layer_sizes: [8, 9]}"
    config = config_of(plan_of("SAC", f"    {age}\n    {policy}\n    exploration_enabled: true\n"))
    assert config.q_model_config.fcnet_hiddens == (7,)
    assert config.policy_model_config.fcnet_hiddens == (8, 9)
    assert config.policy_model_config.fcnet_activation == "tanh"


def test_defaults_of_sac_that_ask_for_nothing_are_accepted() -> None:
    nothing = "{fcnet_hiddens: [64], post_fcnet_hiddens: [], post_fcnet_activation: null, custom_model: null}"
    config = config_of(plan_of("SAC", f"    Q_model: {nothing}\n    policy_model: {nothing}\n    lr: null\n"))
    assert (config.q_model_config.fcnet_hiddens, config.lr) == ((64,), 3e-4)


def test_the_learning_rates_of_the_newest_sac() -> None:
    config = config_of(plan_of("SAC", "    actor_lr: 1e-4\n    critic_lr: 2e-4\n    alpha_lr: 3e-4\n    n_step: 3\n"))
    rates = config.optimization
    assert (rates.actor_learning_rate, rates.critic_learning_rate, rates.entropy_learning_rate) == (1e-4, 2e-4, 3e-4)


def test_keys_that_are_about_other_networks_are_left_out_or_refused() -> None:
    keys = "    normalize_actions: true\n    clip_actions: false\n    policy: GaussianLatentSpacePolicy\n"
    said = messages(plan_of("SAC", f"{keys}    q_model_config: {{post_fcnet_hiddens: [], custom_model: null}}\n"))
    assert any("actions are always scaled to the bounds" in message for message in said)
    found = problems(plan_of, "SAC", "    q_model_config: {custom_model: own.Net}\n")
    assert "rlexp does not support other layers" in found[0][1]


@pytest.mark.parametrize(("name", "run"), [("ddpgtrainer", "DDPG"), ("ApexDDPG", "APEX_DDPG"), ("td3", "TD3")])
def test_names_of_classes_are_names_of_agents(name: str, run: str) -> None:
    assert plan_of(name, "    num_workers: 0\n").trials[0].experiment.run == run


def test_discrete_actions_are_refused_before_a_run() -> None:
    ((_, message, hint),) = problems(plan_of, "TD3", "    num_workers: 0\n", "CartPole-v1")
    assert message == "env CartPole-v1 has discrete actions; DDPG, TD3 and APEX_DDPG need continuous ones"
    assert hint == "use DQN, PPO or SAC"


def test_noise_is_not_of_agents_with_a_choice() -> None:
    found = problems(plan_of, "DQN", "    exploration_config: {type: OrnsteinUhlenbeckNoise}\n", "CartPole-v1")
    assert "it adds noise to continuous actions, and belongs to DDPG and TD3" in found[0][1]


def test_replay_of_early_r2d2_counted_sequences() -> None:
    keys = "    buffer_size: 50000\n    {}: {{}}\n"
    early, late = (messages(plan_of("R2D2", keys.format(key), "CartPole-v1")) for key in ("use_pytorch", "api_stack"))
    assert [each for each in early if "counts steps here; RLlib up to 1.13" in each]
    assert not [each for each in late if "counts steps" in each]


def test_a_key_among_the_metrics_has_one_problem() -> None:
    text = "p:\n  run: TD3\n  env: Pendulum-v1\n  stop: {use_pytorch: false, timesteps_total: 9}\n"
    ((_, message, hint),) = problems(planned, text)
    assert (message, hint) == (
        "stop.use_pytorch is not a metric of the results",
        "use_pytorch is a key of config: move it there",
    )


def test_bullet_s_cart_pole_ends_before_a_soft_horizon() -> None:
    keys = "    horizon: 200\n    soft_horizon: true\n"
    plan = plan_of("SAC", keys, "CartPoleContinuousBulletEnv-v0")
    assert any("the env itself ends its episodes after 200 steps" in message for message in messages(plan))
