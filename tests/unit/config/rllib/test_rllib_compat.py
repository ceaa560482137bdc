"""Files of other ages: each of their keys is understood, or refused with the reason; none is passed over."""

import contextlib
import re
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room.fit import fitted
from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.key_table import key_table
from rlexp.config.load import converted_file, resolved_yaml
from rlexp.config.rllib.names import absent_keys, computed_keys, old_groups, renamed_keys
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError
from tests.lab.experiment_files import Load, config_of, messages, planned, problems


def nested(path: tuple[str, ...], value: str) -> str:
    """Return ``value`` below the keys of ``path``, as lines that follow an experiment's others."""
    lines = [f"{'  ' * (depth + 1)}{key}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {value}\n"


def together(paths: list[tuple[str, ...]], value: Any) -> str:
    """Return the keys at all of the paths with the same value, as lines that follow an experiment's others."""
    experiment: dict[str, Any] = {}
    for path in sorted(paths, key=len, reverse=True):
        group = experiment
        for key in path[:-1]:
            group = group.setdefault(key, {})
        group.setdefault(path[-1], value)
    return "".join(f"  {line}\n" for line in to_yaml(experiment).splitlines())


class TestTable:
    @pytest.mark.parametrize("run", AGENTS)
    def test_new_names_are_keys_and_old_ones_are_not(self, run: str) -> None:
        table = key_table(run)
        assert len(renamed_keys(run)) > 40
        for old, new in renamed_keys(run).items():
            assert new in table
            assert old not in table

    def test_every_rename_serves_some_agent(self) -> None:
        served = {old for run in AGENTS for old in renamed_keys(run)}
        assert ("config", "sgd_stepsize") in served
        assert ("config", "num_env_runners") in served
        assert all(old[: len(group)] != group or len(old) > len(group) for old in served for group in old_groups())

    @pytest.mark.parametrize("run", AGENTS)
    def test_absent_keys_are_no_keys_and_have_a_reason(self, run: str) -> None:
        table = key_table(run)
        paths = [absent.path for absent in absent_keys(run)]
        assert len(paths) == len(set(paths)) > 150
        for absent in absent_keys(run):
            assert absent.path not in table
            assert absent.reason

    def test_computed_keys_set_known_keys(self) -> None:
        tables = {path for run in AGENTS for path in key_table(run)}
        for new in computed_keys().values():
            assert set(new) <= tables

    @pytest.mark.parametrize("run", AGENTS)
    def test_absent_keys_with_null_have_no_notice(self, load: Load, run: str) -> None:
        plan = load(beside=together([absent.path for absent in absent_keys(run)], None), run=run)
        assert messages(plan) == []

    @pytest.mark.parametrize("run", AGENTS)
    def test_keys_without_effect_have_one_notice(self, load: Load, run: str) -> None:
        idle = [absent for absent in absent_keys(run) if not absent.is_feature]
        said = messages(load(beside=together([absent.path for absent in idle], "something"), run=run))
        assert sorted(said) == sorted(f"{'.'.join(absent.path)} has no effect here: {absent.reason}" for absent in idle)

    @pytest.mark.parametrize("run", AGENTS)
    def test_missing_features_are_refused_by_name(self, load: Load, run: str) -> None:
        features = [absent for absent in absent_keys(run) if absent.is_feature]
        found = problems(load, beside=together([absent.path for absent in features], "something"), run=run)
        assert sorted(message for _, message, _ in found) == sorted(
            f"{'.'.join(absent.path)}: rlexp does not support {absent.reason}" for absent in features
        )

    @pytest.mark.parametrize(
        ("first", "every"), [(0, 7), *(pytest.param(each, 1, marks=pytest.mark.slow) for each in range(11))]
    )
    def test_old_key_any_value_raises_config_error_only(self, load: Load, first: int, every: int) -> None:
        keys = [(agent, path) for agent in AGENTS for path in (*renamed_keys(agent), *computed_keys())]
        values = cycle(
            ("null", "-1.5", "x", "[1, x]", "{a: {b: 1}}", "[[0, 1]]", "true", "3", "[]", "{}", "[[0, x], 1]")
        )
        # A seventh of the keys with one value each; slow tests give every key all values.
        for (agent, path), value in zip(keys[::every], islice(values, first, None), strict=False):
            with contextlib.suppress(ConfigError):
                assert load(beside=nested(path, value), run=agent).trials


class TestNames:
    def test_old_name_has_a_notice_with_place(self, load: Load) -> None:
        plan = load("rollout_fragment_length: 20")
        assert config_of(plan).sample_batch_size == 20
        assert [vars(notice) for notice in plan.notices] == [
            {"where": "f.yaml:5:12", "message": "config.rollout_fragment_length is config.sample_batch_size now"}
        ]

    def test_key_under_both_names(self, load: Load) -> None:
        assert config_of(load("num_workers: 0, num_env_runners: 0")).num_workers == 0
        found = problems(load, "num_workers: 2, num_env_runners: 3")
        assert found == [
            (
                "f.yaml:5:28",
                "config.num_env_runners is another name of config.num_workers, but they differ: "
                "2 at f.yaml:5:12, 3 here",
                "keep one of them",
            )
        ]

    @pytest.mark.parametrize("override", ["config.num_env_runners=1", "num_env_runners=1", "num_workers=1"])
    @pytest.mark.parametrize("key", ["num_env_runners", "num_workers", "num_rollout_workers"])
    def test_override_wins_under_any_name(self, load: Load, key: str, override: str) -> None:
        assert config_of(load(f"{key}: 4", override)).num_workers == 1

    def test_override_of_old_group(self, load: Load) -> None:
        plan = load(
            "exploration_config: {final_epsilon: 0.1, epsilon_timesteps: 7}",
            "exploration_config={final_epsilon: 0.3}",
        )
        assert (config_of(plan).exploration_final_eps, config_of(plan).epsilon_timesteps) == (0.3, 7)

    def test_overrides_of_old_keys_beside_config(self, load: Load) -> None:
        plan = load("", "trial_resources.gpu=1", "gpu=true", "checkpoint_config.num_to_keep=2")
        assert config_of(plan).num_gpus == 1
        assert plan.trials[0].experiment.keep_checkpoints_num == 2

    def test_unknown_keys_of_old_groups(self, load: Load) -> None:
        text = "exploration_config: {final_epsilom: 0.1}, replay_buffer_config: {size: 3}"
        assert [message for _, message, _ in problems(load, text)] == [
            "unknown key config.exploration_config.final_epsilom (agent DQN)",
            "unknown key config.replay_buffer_config.size (agent DQN)",
        ]

    def test_allow_unknown_leaves_keys_out(self, load: Load) -> None:
        plan = load("lrr: 1, lr: 2e-3, model: {slot1: lstm}", beside="  wat: 1\n", allow_unknown=True)
        assert config_of(plan).lr == 2e-3
        assert messages(plan) == [
            "unknown key wat: it is left out",
            "unknown key config.lrr (agent DQN): it is left out",
            "unknown key config.model.slot1 (agent DQN): it is left out",
        ]

    def test_allow_unknown_refuses_missing_features(self, load: Load) -> None:
        assert problems(load, "model: {use_lstm: true}", allow_unknown=True) == [
            (
                "f.yaml:5:20",
                "config.model.use_lstm: rlexp does not support LSTM models with this agent",
                "A2C, A3C, APPO, IMPALA, PG, PPO and R2D2 have them",
            )
        ]

    @pytest.mark.parametrize("name", ["apex", "APEX_DQN", "ApexDQN", "ApexTrainer", "apex-dqn"])
    def test_old_agent_names(self, load: Load, name: str) -> None:
        assert load("num_workers: 0", run=name).trials[0].experiment.run == "APEX"

    @pytest.mark.parametrize(
        ("name", "run"), [("DD_PPO", "DDPPO"), ("DD-PPO", "DDPPO"), ("Simple_Q", "SIMPLEQ"), ("apex-r2d2", "APEX_R2D2")]
    )
    def test_names_with_other_signs_between_their_parts(self, load: Load, name: str, run: str) -> None:
        assert load("num_workers: 0", run=name).trials[0].experiment.run == run

    def test_experiment_keys_of_ray_2(self, load: Load) -> None:
        experiment = (
            load(
                beside="  checkpoint_config: {checkpoint_frequency: 3, num_to_keep: 2, checkpoint_at_end: true,\n"
                "    checkpoint_score_attribute: env_runners/episode_return_mean, checkpoint_score_order: min}\n"
                "  failure_config: {max_failures: 4}\n  repeat: 2\n"
            )
            .trials[0]
            .experiment
        )
        assert (experiment.checkpoint_freq, experiment.keep_checkpoints_num, experiment.max_failures) == (3, 2, 4)
        assert experiment.checkpoint_at_end
        assert experiment.checkpoint_score_attr == "min-episode_reward_mean"

    def test_old_stop_metrics(self, load: Load) -> None:
        plan = load("", "stop={sampler_results/episode_reward_mean: 1, env_runners: {episode_len_mean: 2}}")
        assert plan.trials[0].experiment.stop == {"episode_reward_mean": 1, "episode_len_mean": 2}
        plan = load("", "stop={num_env_steps_sampled_lifetime: 5, training_iteration: 3}")
        assert list(plan.trials[0].experiment.stop.items()) == [("timesteps_total", 5), ("training_iteration", 3)]
        plan = load("", "stop={info/num_env_steps_sampled: 5, counters: {num_agent_steps_trained: 3}}")
        assert plan.trials[0].experiment.stop == {"timesteps_total": 5, "info/num_steps_trained": 3}


class TestValues:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("gpu: true", "num_gpus", 1),
            ("gpu: true, gpu_fraction: 0.5", "num_gpus", 0.5),
            ("gpu: false", "num_gpus", 0),
            ("devices: ['/gpu:0', '/cpu:0']", "num_gpus", 1),
            ("_fake_gpus: true, num_gpus: 2", "num_gpus", 0),
            ("_fake_gpus: false, num_gpus: 1", "num_gpus", 1),
            ("exploration_config: {type: SoftQ, temperature: 0.5}", "softmax_temp", 0.5),
            ("exploration_config: {type: SoftQ}", "soft_q", True),
            ("exploration_config: {type: PerWorkerEpsilonGreedy}", "per_worker_exploration", True),
            ("exploration_config: {type: Random}", "exploration_final_eps", 1),
            ("exploration_config: {type: ParameterNoise}", "parameter_noise", True),
            ("exploration_config: {type: ParameterNoise}", "exploration_warmup_timesteps", 10_000),
            ("exploration_config: {type: ParameterNoise, initial_stddev: 0.3}", "parameter_noise_initial_stddev", 0.3),
            ("exploration_config: {initial_epsilon: 0.5}", "exploration_initial_eps", 0.5),
            ("exploration_config: {epsilon_timesteps: 5e4}", "resolved_epsilon_timesteps", 50_000),
            ("schedule_max_timesteps: 1000, exploration_fraction: 0.3", "resolved_epsilon_timesteps", 300),
            ("epsilon: [[0, 1.0], [10000, 0.05]]", "epsilon_timesteps", 10_000),
            ("epsilon: 0.1", "exploration_initial_eps", 0.1),
            ("lr: [[0, 1e-3], [1000, 1e-4]]", "lr_schedule", ((0, 1e-3), (1000, 1e-4))),
            ("replay_buffer_config: {type: MultiAgentReplayBuffer, capacity: 3e4}", "prioritized_replay", False),
            ("replay_buffer_config: {type: PrioritizedEpisodeReplayBuffer}", "prioritized_replay", True),
            ("replay_buffer_config: {capacity: 30000}", "buffer_size", 30_000),
            ("observation_filter: ConcurrentMeanStdFilter", "observation_filter", "MeanStdFilter"),
            ("record_env: true", "monitor", True),
            ("rollout_fragment_length: auto", "sample_batch_size", 1),
            ("rollout_fragment_length: auto, n_step: 3", "sample_batch_size", 3),
            ("tf_session_args: {intra_op_parallelism_threads: 2}", "num_threads_per_worker", 2),
            ("explore: 'True,'", "explore", True),
            ("clip_rewards: 'None'", "clip_rewards", None),
            ("preprocessor_pref: None", "preprocessor_pref", None),
            ("hiddens: '(64, 32)'", "hiddens", (64, 32)),
            ("clip_rewards: 2", "clip_rewards", 2.0),
            ("clip_rewards: [-1, 3]", "clip_rewards", (-1.0, 3.0)),
        ],
    )
    def test_old_values(self, load: Load, text: str, key: str, value: Any) -> None:
        found = getattr(config_of(load(text)), key)
        assert found == value
        assert type(found) is type(value) or isinstance(value, int)

    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("no_framestack: true", "framestack", False),
            ("num_framestacks: 0", "framestack", False),
            ("fcnet_activation: ReLU", "fcnet_activation", "relu"),
            ("fcnet_activation: silu", "fcnet_activation", "swish"),
            ("conv_filters: [[16, [4, 4], 2], [32, 8, [1, 1]]]", "conv_filters", ((16, (4, 4), 2), (32, (8, 8), 1))),
            ("conv_filters: []", "conv_filters", None),
            (
                "conv_filters: [[16, 4, 2, same], [32, 8, 1, valid]]",
                "conv_filters",
                ((16, (4, 4), 2), (32, (8, 8), 1)),
            ),
            ("conv_filters: [[16, 4, 2], [32, 8, 1, valid]]", "conv_filters", ((16, (4, 4), 2), (32, (8, 8), 1))),
            (
                "conv_filters: [[16, 4, 2, valid], [32, 8, 1, same]]",
                "conv_filters",
                ((16, (4, 4), 2, "valid"), (32, (8, 8), 1, "same")),
            ),
        ],
    )
    def test_of_the_model(self, load: Load, text: str, key: str, value: Any) -> None:
        assert getattr(config_of(load(f"model: {{{text}}}")).model, key) == value

    @pytest.mark.parametrize(
        "text",
        [
            "conv_filters: [[16, 2]]",
            "conv_filters: [[16, [4, 4, 4], 2]]",
            "conv_filters: [[16, 8, [1, 2]]]",
            "conv_filters: [[16, 8, 1, full]]",
            "conv_filters: [[16, 8, 1, same, 1]]",
            "conv_filters: 3",
        ],
    )
    def test_invalid_conv_filters_are_refused(self, load: Load, text: str) -> None:
        ((_, message, _),) = problems(load, f"model: {{{text}}}")
        assert re.search(r"must be (a list of )?\[channels, kernel, stride\]", message)

    @pytest.mark.parametrize("value", ["[1]", "[1, 1]", "0", "-2", "x", "[a, b]", "{}"])
    def test_invalid_clip_rewards_are_refused(self, load: Load, value: str) -> None:
        assert len(problems(load, f"clip_rewards: {value}")) == 1

    @pytest.mark.parametrize("value", ["[]", "[[0, 1], [0, 2]]", "[[5, 1], [3, 2]]", "[[0]]", "[[0, -1]]", "3"])
    def test_invalid_schedules_are_refused(self, load: Load, value: str) -> None:
        assert len(problems(load, f"lr_schedule: {value}")) == 1

    def test_parameter_noise_type_sets_epsilon(self, load: Load) -> None:
        text = "exploration_config: {type: ParameterNoise, random_timesteps: 500, initial_stddev: 2.0}"
        plan = load(f"num_workers: 2, {text}", run="APEX")
        made = config_of(plan)
        assert (made.parameter_noise, made.parameter_noise_initial_stddev) == (True, 2.0)
        assert (made.per_worker_exploration, made.exploration_initial_eps) == (False, 1.0)
        assert (made.exploration_warmup_timesteps, made.resolved_epsilon_timesteps) == (500, 0)
        assert made.exploration_final_eps == 0.01
        assert messages(plan) == [
            "config.exploration_config.type: ParameterNoise is parameter_noise: true, per_worker_exploration: false, "
            "exploration_final_eps: 0.01, epsilon_timesteps: 0 now",
            "config.exploration_config.random_timesteps is config.exploration_warmup_timesteps now",
            "config.exploration_config.initial_stddev is config.parameter_noise_initial_stddev now",
        ]

    def test_exploration_type_keeps_given_keys(self, load: Load) -> None:
        plan = load("soft_q: false, exploration_config: {type: SoftQ}")
        assert not config_of(plan).soft_q
        assert messages(plan) == ["config.exploration_config.type: SoftQ has no effect beside config.soft_q"]

    @pytest.mark.parametrize("key", ["noisy", "soft_q"])
    def test_parameter_noise_conflicts_with_other_exploration(self, load: Load, key: str) -> None:
        message = f"config.parameter_noise and {key} are both true, but only one of them can explore"
        found = problems(load, f"exploration_config: {{type: ParameterNoise}}, {key}: true")
        assert found == [("f.yaml:5:33", message, f"write parameter_noise: false or {key}: false")]

    def test_trial_resources_are_divided(self, load: Load) -> None:
        shared = "  trial_resources: {cpu: 2, gpu: 1, extra_cpu: 2}\n"
        made = config_of(load("num_workers: 4", run="APEX", beside=shared))
        assert (made.num_cpus_for_driver, made.num_gpus, made.num_cpus_per_worker) == (2, 1, 0.5)
        made = config_of(load("num_workers: 4", beside="  resources: {cpu: 10, driver_cpu_limit: 2}\n"))
        assert (made.num_cpus_for_driver, made.num_cpus_per_worker) == (2, 2)
        made = config_of(load("num_workers: 3", beside="  resources: {cpu: 9, driver_cpu: 3}\n"))
        assert (made.num_cpus_for_driver, made.num_cpus_per_worker) == (3, 2)

    def test_given_key_wins_over_trial_resources(self, load: Load) -> None:
        plan = load("num_gpus: 1", beside="  resources_per_trial: {gpu: 4}\n")
        assert config_of(plan).num_gpus == 1
        assert messages(plan) == ["resources_per_trial.gpu has no effect beside config.num_gpus"]

    @pytest.mark.parametrize(
        ("name", "run", "other"),
        [
            ("AsyncReplayOptimizer", "APEX", "DQN"),
            ("ApexOptimizer", "APEX", "DQN"),
            ("SyncReplayOptimizer", "DQN", "APEX"),
        ],
    )
    def test_optimizer_class_must_be_of_agent(self, load: Load, name: str, run: str, other: str) -> None:
        text = f"optimizer_class: {name}"
        assert load(text, run=run).trials
        ((_, message, hint),) = problems(load, text, run=other)
        assert message == f"config.optimizer_class: {name} is the optimizer of {run}, but run is {other}"
        assert hint == f"write run: {run}, or leave optimizer_class out"

    @pytest.mark.parametrize(
        "text",
        [
            "exploration_config: {type: GaussianNoise}",
            "exploration_config: {type: ParameterNoise, sub_exploration: {type: EpsilonGreedy}}",
            "model: {custom_model: mine}",
            "multiagent: {policies: {a: 1}}",
            "multiagent: {policies: 4}",
            "multiagent: {policies: mine}",
            "multiagent: {observation_fn: mine}",
            "multiagent: {count_steps_by: agent_steps}",
            "input: /tmp/data",
            "input: {sampler: 0.5, /tmp/data: 0.5}",
            "replay_sequence_length: 4",
            "callbacks: {on_episode_end: x}",
            "optimizer_class: AsyncGradientsOptimizer",
            "replay_buffer_config: {type: MyBuffer}",
            "evaluation_config: {env: MountainCar-v0}",
            "evaluation_config: {model: {use_lstm: true}}",
            "multiagent: {policies: [p0, p1]}",
            "multiagent: {policies: {default_policy: [null, null, null, {lr: 1}]}}",
            "policies: {p0: [null, null, null, {}], p1: [null, null, null, {}]}",
        ],
    )
    def test_missing_features_are_refused(self, load: Load, text: str) -> None:
        assert problems(load, text)

    @pytest.mark.parametrize(
        "text",
        [
            "multiagent: {policies: {}, policy_mapping_fn: null, policies_to_train: null}",
            "multiagent: {policies: {default_policy: [null, null, null, {}]}}",
            "multiagent: {policies: {p0: [null, null, null, {}]}}",
            "multiagent: {policies: {p0: null}, policy_mapping_fn: 'lambda agent: \"p0\"'}",
            "multiagent: {policies: [p0], policies_to_train: [p0], count_steps_by: env_steps}",
            "multiagent: {policies: 1}",
            "policies: [p0]",
            "multiagent: {policies_to_train: [default_policy]}",
            "multiagent: {policies: null}",
            "callbacks: None",
            "input: sampler",
            "model: {use_lstm: false, max_seq_len: 20}",
            "parameter_noise: false",
            "callbacks: {on_episode_start: null}",
            "replay_sequence_length: 1",
            "evaluation_duration_unit: episodes",
        ],
    )
    def test_features_turned_off_are_accepted(self, load: Load, text: str) -> None:
        assert load(text).trials

    def test_several_policies_are_refused_by_their_names(self, load: Load) -> None:
        text = "multiagent: {policies: {p0: null, p1: null}, policy_mapping_fn: {type: a.b.C}, policies_to_train: [p0]}"
        ((place, message, hint),) = problems(load, text)
        assert ":5:" in place
        expected = "config.multiagent.policies: rlexp trains one policy for all agents of an env, not 2 (p0, p1)"
        assert message == expected
        assert "then all agents learn one policy" in (hint or "")
        assert messages(load("multiagent: {policies: [p0], policy_mapping_fn: 'lambda _: \"p0\"'}")) == [
            "config.multiagent.policy_mapping_fn has no effect here, and is not evaluated: all agents learn one policy"
        ]

    @pytest.mark.parametrize(
        ("run", "keys", "message"),
        [
            ("PPO", "resources_per_trial: {CPU: 4}", "resources_per_trial: rlexp does not support CPU"),
            (
                "PPO",
                "config: {worker_resources: [1]}",
                "config.worker_resources must be a mapping of numbers, got a list",
            ),
            ("PPO", "config: {use_kl_loss: 'no!'}", "config.use_kl_loss must be true or false, got the string 'no!'"),
            (
                "PPO",
                "checkpoint_config: {checkpoint_score_order: MIN}",
                "checkpoint_config.checkpoint_score_order must be min or max, got the string 'MIN'",
            ),
            (
                "DDPG",
                "config: {exploration_fraction: a}",
                "config.exploration_fraction must be a number, got the string 'a'",
            ),
            ("DDPG", "config: {exploration_fraction: .inf}", "config.exploration_fraction must be a number, got inf"),
            (
                "DDPG",
                "config: {exploration_fraction: 0.1, schedule_max_timesteps: 1e5x}",
                "config.schedule_max_timesteps must be a whole number >= 1, got the string '1e5x'",
            ),
            (
                "DQN",
                "config: {exploration_config: {type: [a]}}",
                "config.exploration_config.type must be the name of a class, got a list",
            ),
            ("DQN", "config: {exploration_config: a}", "unknown key config.exploration_config (agent DQN)"),
        ],
    )
    def test_a_wrong_value_of_a_computed_key_is_named(self, load: Load, run: str, keys: str, message: str) -> None:
        found = problems(load, run=run, beside=f"  {keys}\n")
        assert [each[1] for each in found] == [message]
        assert all(each[2] != "did you mean exploration_config?" for each in found)

    @pytest.mark.parametrize(
        ("run", "keys"),
        [
            ("DQN", "epsilon: [[0, 1.0], [10000, 0.05]], exploration_final_eps: 0.2, epsilon_timesteps: 5"),
            ("DDPG", "exploration_fraction: 0.1, exploration_scale_timesteps: 7777"),
        ],
    )
    def test_a_notice_names_only_what_is_so(self, load: Load, run: str, keys: str) -> None:
        plan = load(keys, run=run)
        assert not [each for each in messages(plan) if "0.05" in each or "10000" in each]


class TestEvaluationConfig:
    def test_evaluation_config_accepts_keys_of_training(self, load: Load) -> None:
        for run in AGENTS:
            paths = {*key_table(run), *renamed_keys(run), *(absent.path for absent in absent_keys(run))}
            names = {path[1] for path in paths if path[0] == "config" and len(path) > 1} - {
                "env",
                "evaluation_config",
                "explore",
            }
            text = ", ".join(f"{name}: " for name in sorted(names))
            assert load(f"evaluation_config: {{{text}}}", run=run).trials

    @pytest.mark.parametrize(
        "key", ["gamma: 0.5", "lr: 0.1", "num_envs_per_worker: 3", "model: {dim: 42}", "framework: tf"]
    )
    def test_evaluation_config_key_without_effect_has_a_notice(self, load: Load, key: str) -> None:
        plan = load(f"evaluation_config: {{{key}, explore: true, horizon: 7}}")
        name = key.partition(":")[0]
        (message,) = messages(plan)
        assert message.startswith(f"config.evaluation_config.{name} has no effect here: ")
        made = config_of(plan).evaluation_config
        assert (made.explore, made.horizon) == (True, 7)

    @pytest.mark.parametrize("key", ["record_env", "monitor"])
    def test_evaluation_config_videos_set_monitor(self, load: Load, key: str) -> None:
        assert config_of(load(f"evaluation_config: {{{key}: true}}")).monitor
        assert not config_of(load(f"evaluation_config: {{{key}: false}}")).monitor

    def test_evaluation_config_refuses_other_env(self, load: Load) -> None:
        assert messages(load("evaluation_config: {env: CartPole-v1}")) == []
        found = problems(load, "evaluation_config: {env: MountainCar-v0}")
        message = "config.evaluation_config.env: rlexp does not support evaluation in another environment"
        assert [said for _, said, _ in found] == [message]

    def test_short_name_of_evaluation_metric(self, load: Load) -> None:
        score = "  checkpoint_score_attr: min-eval/episode_reward_mean\n"
        plan = load("evaluation_interval: 1", "stop={eval/episode_reward_mean: 3}", beside=score)
        assert plan.trials[0].experiment.checkpoint_score_attr == "min-evaluation/episode_reward_mean"
        assert plan.trials[0].experiment.stop == {"evaluation/episode_reward_mean": 3}


def test_rllib_1_13_replay_keys_have_notices(load: Load) -> None:
    keys = "_enable_replay_buffer_api: true, replay_batch_size: 64, type: LocalReplayBuffer"
    plan = load(f"replay_buffer_config: {{{keys}}}, prioritized_replay: false")
    assert not config_of(plan).prioritized_replay
    assert [message.partition(" has no effect here: ")[0] for message in messages(plan)] == [
        f"config.replay_buffer_config.{key.partition(':')[0]}" for key in keys.split(", ")
    ]


@pytest.mark.parametrize(("gpus", "said"), [("num_gpus: 2", ", and num_gpus: 2 is left out"), ("lr: 1", "")])
def test_fake_gpus_reserve_no_gpu(load: Load, gpus: str, said: str) -> None:
    plan = load(f"_fake_gpus: true, {gpus}")
    assert config_of(plan).num_gpus == 0
    assert messages(plan) == [f"config._fake_gpus: the learner uses the CPU{said}"]


@pytest.mark.parametrize("key", ["min_time_s_per_iteration", "min_time_s_per_reporting", "min_iter_time_s"])
def test_null_minimum_is_none(load: Load, key: str) -> None:
    assert config_of(load(f"{key}: null")).min_iter_time_s is None
    assert config_of(load("timesteps_per_iteration: null")).timesteps_per_iteration is None
    assert config_of(load("", f"{key}=null")).min_iter_time_s is None


def test_null_under_one_name_keeps_value_of_other_name(load: Load) -> None:
    for text in (
        "min_time_s_per_iteration: null, min_time_s_per_reporting: 5",
        "min_time_s_per_reporting: null, min_iter_time_s: 5",
        "min_iter_time_s: null, min_time_s_per_reporting: 5",
    ):
        assert config_of(load(text)).min_iter_time_s == 5


class TestGrids:
    def test_axis_has_current_name(self, load: Load) -> None:
        plan = load("rollout_fragment_length: {grid_search: [4, 8]}")
        assert [trial.varied for trial in plan.trials] == [{"sample_batch_size": 4}, {"sample_batch_size": 8}]
        assert len(messages(plan)) == 1

    def test_axis_of_computed_values(self, load: Load) -> None:
        plan = load("gpu: {grid_search: [true, false]}")
        assert [trial.varied for trial in plan.trials] == [{"num_gpus": 1}, {"num_gpus": 0}]
        assert "num_gpus:\n      grid_search: [1.0, 0.0]" in resolved_yaml(plan)

    @pytest.mark.parametrize(
        ("text", "key", "found"),
        [
            (
                "exploration_config: {grid_search: [{type: EpsilonGreedy, final_epsilon: 0.1}, {type: SoftQ}]}",
                "exploration_config",
                [(False, 0.1, 50_000), (True, 0.02, 50_000)],
            ),
            (
                "exploration_config: {type: {grid_search: [PerWorkerEpsilonGreedy, SoftQ]}}",
                "exploration_config.type",
                [(False, 0.02, 50_000), (True, 0.02, 50_000)],
            ),
            (
                "replay_buffer_config: {grid_search: [{capacity: 100, type: ReplayBuffer}, {capacity: 200}]}",
                "replay_buffer_config",
                [(False, 0.02, 100), (False, 0.02, 200)],
            ),
        ],
    )
    def test_grid_over_an_old_mapping_sets_all_of_its_keys(
        self, load: Load, text: str, key: str, found: list[Any]
    ) -> None:
        plan = load(text)
        configs = [trial.experiment.config for trial in plan.trials]
        assert [(made.soft_q, made.exploration_final_eps, made.buffer_size) for made in configs] == found  # type: ignore[attr-defined]
        assert [list(trial.varied) for trial in plan.trials] == [[key], [key]]
        for text_of_plan in (resolved_yaml(plan), converted_file(Path("f.yaml"))):
            again = planned(text_of_plan, seed=0)
            assert [trial.experiment for trial in again.trials] == [trial.experiment for trial in plan.trials]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "framework: {grid_search: [tf, torch]}",
                "config.framework has no effect here: rlexp computes with PyTorch; "
                "the 2 values of its grid_search make one trial",
            ),
            (
                "model: {fcnet_activation: {grid_search: [relu, ReLU]}}",
                "model.fcnet_activation: in grid_search, ReLU makes the same trial as relu, which runs once",
            ),
            (
                "lr: {grid_search: [1e-3, 0.001]}",
                "lr: in grid_search, 0.001 makes the same trial as 0.001, which runs once",
            ),
            (
                "sigma0: {grid_search: [0.1, 0.2]}",
                "sigma0: in grid_search, 0.2 makes the same trial as 0.1, which runs once",
            ),
        ],
    )
    def test_grid_values_that_make_the_same_trial_run_once(self, load: Load, text: str, message: str) -> None:
        plan = load(text)
        assert len(plan.trials) == 1
        assert plan.trials[0].varied == {}
        assert message in messages(plan)
        assert "grid_search" not in resolved_yaml(plan)

    def test_variants_that_differ_in_keys_without_effect_run_once(self, load: Load) -> None:
        plan = load("noisy: {grid_search: [true, false]}, sigma0: {grid_search: [0.1, 0.2]}")
        assert [trial.varied for trial in plan.trials] == [
            {"noisy": True, "sigma0": 0.1},
            {"noisy": True, "sigma0": 0.2},
            {"noisy": False, "sigma0": 0.1},
        ]
        assert "a: 1 of 4 variants differ from others only in keys without effect and are left out" in messages(plan)
        assert planned(resolved_yaml(plan)).trials == plan.trials

    def test_variants_that_fit_makes_equal_run_once(self, load: Load) -> None:
        machine = Machine(cpus=2, gpus=0, memory_total=2**34, memory_available=2**34)
        text = "num_cpus_per_worker: 0.5, num_workers: {grid_search: [1, 8, 16]}"
        plan = load(text, run="APEX", adjust=partial(fitted, cluster=Cluster.of(machine)))
        assert [trial.experiment.config.num_workers for trial in plan.trials] == [1, 2]
        assert "num_workers: in grid_search, 16 makes the same trial as 8, which runs once" in messages(plan)
        assert planned(resolved_yaml(plan)).trials == plan.trials

    @pytest.mark.parametrize("text", ["gpu: {grid_search: [false]}", "framework: {grid_search: [tf]}"])
    def test_grid_of_one_old_value_is_that_value(self, load: Load, text: str) -> None:
        (trial,) = load(text).trials
        assert trial.varied == {}

    def test_grid_keeps_the_values_that_differ(self, load: Load) -> None:
        plan = load("lr: {grid_search: [1, 2, 1.0]}, gamma: {grid_search: [0.9, 0.5]}")
        assert [trial.varied for trial in plan.trials] == [
            {"lr": lr, "gamma": gamma} for lr in (1, 2) for gamma in (0.9, 0.5)
        ]

    def test_switch_may_be_searched_beside_its_keys(self, load: Load) -> None:
        plan = load("noisy: {grid_search: [true, false]}, sigma0: 0.1")
        assert [trial.experiment.config.sigma0 for trial in plan.trials] == [0.1, 0.1]  # type: ignore[attr-defined]


class TestIdleKeys:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("sigma0: 0.3", "noisy is false"),
            ("parameter_noise_initial_stddev: 0.3", "parameter_noise is false"),
            ("v_min: -5", "num_atoms is 1"),
            ("softmax_temp: 3", "soft_q is false"),
            ("learner_precision: tf32", "num_gpus is 0, and only GPUs have tf32"),
            ("prioritized_replay: false, prioritized_replay_alpha: 0.3", "prioritized_replay is false"),
            ("epsilon_timesteps: 10, exploration_fraction: 0.5", "epsilon_timesteps is given"),
        ],
    )
    def test_ineffective_key_has_a_notice(self, load: Load, text: str, reason: str) -> None:
        (message,) = messages(load(text))
        assert message.endswith(f"has no effect: {reason}")

    def test_ineffective_key_at_default_has_no_notice(self, load: Load) -> None:
        assert messages(load("sigma0: 0.5, v_min: -10, softmax_temp: 1")) == []

    def test_resolved_file_has_no_notices(self, load: Load) -> None:
        plan = load("num_workers: 2, exploration_final_eps: 0.1, sigma0: 0.3", run="APEX")
        again = planned(resolved_yaml(plan))
        assert messages(again) == []
        assert resolved_yaml(again) == resolved_yaml(plan)
