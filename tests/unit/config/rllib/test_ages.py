"""The age of a file: which releases its spelling belongs to, and which defaults and meanings follow from that."""

from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.key_table import key_table, rlexp_only_keys
from rlexp.config.load import Plan, converted_file, resolved_yaml
from rlexp.config.rllib.ages import Age, changed_defaults, dated_values, ignored_keys, spellings
from rlexp.config.rllib.dating import dated
from rlexp.config.yaml.nodes import Place, written
from rlexp.config.yaml.reader import parse
from tests.lab.experiment_files import Load, config_of, messages, planned


def notices_of_age(plan: Plan) -> list[str]:
    return [message for message in messages(plan) if "a is spelled as in RLlib" in message]


def age(text: str, run: str = "DQN") -> Age | None:
    root = parse(text, lambda line, column: Place("f", line, column)).root
    assert root is not None
    return dated(root, run).age


class TestTable:
    def test_releases_of_a_spelling_are_in_order(self) -> None:
        known = (*(one for run in AGENTS for one in spellings(run).items()), *dated_values().items())
        assert not [key for key, releases in known if releases.is_empty]

    def test_keys_of_rlexp_have_no_release(self) -> None:
        assert ("config", "replay_storage") in rlexp_only_keys()
        assert not [run for run in AGENTS if rlexp_only_keys() & spellings(run).keys()]

    def test_changed_defaults_are_keys_of_their_agents_and_in_order(self) -> None:
        for default in changed_defaults():
            releases = [release for release, _ in default.values]
            assert releases == sorted(set(releases))
            assert all(default.path in key_table(run) for run in default.agents)

    @pytest.mark.parametrize("run", AGENTS)
    def test_every_default_of_every_release_is_a_valid_value(self, load: Load, run: str) -> None:
        for default in changed_defaults():
            for _, value in default.values[: None if default.same_as is None else -1]:
                if run in default.agents:
                    groups, name = default.path[1:-1], default.path[-1]
                    key = "".join(f"{group}: {{" for group in groups) + f"{name}: {written(value)}" + "}" * len(groups)
                    assert load(key, run=run).trials

    @pytest.mark.parametrize("run", ["DQN", "APEX"])
    def test_ignored_keys_are_known(self, run: str) -> None:
        known = {*key_table(run), ("config", "replay_buffer_config", "type")}
        assert {ignored.absent.path for ignored in ignored_keys(run)} <= known


class TestAge:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("{config: {rollout_fragment_length: 4}}", "0.8.3 or later"),
            ("{config: {rollout_fragment_length: 4, sample_batch_size: 4}}", "0.8.3 to 0.8.7"),
            ("{config: {sgd_stepsize: 1, sgd_batchsize: 2}}", "0.3.1 to 0.5.2"),
            ("{config: {exploration_config: {grid_search: [{type: SoftQ}]}}}", "0.8.2 or later"),
            ("{config: {replay_buffer_config: {grid_search: [{learning_starts: 3}]}}}", "1.13 to 2.0"),
            ("{stop: {env_runners/episode_return_mean: 3}, config: {lr: 1}}", "2.10 or later"),
            ("{stop: {env_runners: {episode_return_mean: 3}}}", "2.10 or later"),
            ("{config: {optimizer_class: ApexOptimizer}}", "0.4.0"),
            ("{config: {replay_buffer_config: {type: LocalReplayBuffer}}}", "1.9 to 1.10"),
        ],
    )
    def test_age_is_overlap_of_all_spellings(self, text: str, found: str) -> None:
        assert str(age(text)) == found

    @pytest.mark.parametrize(
        "text",
        [
            "{config: {lr: 1, sample_batch_size: 4, n_step: 3, buffer_size: 10}}",  # rlexp's own spelling
            "{config: {rollout_fragment_length: 4, gpu: true}}",  # of different ages
            "{config: {rollout_fragment_length: 4, checkpoint_replay: true}}",
            "{config: {framework: torch, num_replay_buffer_shards: 2}}",
            "{config: {framework: torch, optimizer: {learner_queue_depth: 2}}}",
            "{search: {num_samples: 3}, config: {framework: torch}}",
            "{config: {env_config: {rollout_fragment_length: 4}}}",
            "{}",
        ],
    )
    def test_age_is_unknown_for(self, text: str) -> None:
        assert age(text, "APEX") is None


class TestStaleKeys:
    RAINBOW = (
        "noisy: true, n_step: 3, rollout_fragment_length: 4, learning_starts: 1000, "
        "exploration_config: {epsilon_timesteps: 2, final_epsilon: 0.0}, "
        "final_prioritized_replay_beta: 1.0, prioritized_replay_beta_annealing_timesteps: 4000, "
    )

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("{config: {gpu: true, rollout_fragment_length: 4, exploration_config: {type: SoftQ}}}", "0.8.3 or later"),
            ("{config: {framework: torch, _fake_gpus: false, gpu_fraction: 0.5}}", "0.8.6 or later"),
            ("{config: {num_env_runners: 1, num_epochs: 2, minibatch_size: 9, horizon: 7}}", "2.30 or later"),
            (
                "{config: {sgd_stepsize: 1, sgd_batchsize: 2, timesteps_per_batch: 9, framework: torch}}",
                "0.3.1 to 0.5.2",
            ),
            ("{config: {num_rollout_workers: 1, framework: torch, repeat: 1}, repeat: 3}", "1.13 to 2.20"),
            # keys that rlexp has under the same name are outvoted by what proves an age, but not if they are more
            ("{config: {num_env_runners: 1, framework: torch, buffer_size: 9}}", "2.10 or later"),
            ("{config: {num_env_runners: 1, buffer_size: 9, learning_starts: 3, sample_batch_size: 4}}", "None"),
        ],
    )
    def test_age_is_that_of_most_keys(self, text: str, found: str) -> None:
        assert str(age(text)) == found

    @pytest.mark.parametrize("key", ["gpu: true", "gpu_fraction: 0.5", "use_gpu_for_workers: true"])
    def test_stale_gpu_changes_nothing_else(self, load: Load, key: str) -> None:
        plan = load(self.RAINBOW + key)
        assert config_of(plan) == config_of(load(self.RAINBOW))
        assert (config_of(plan).epsilon_with_noisy, config_of(plan).exploration_final_eps) == (True, 0.0)
        assert config_of(plan).resolved_final_prioritized_replay_beta == config_of(plan).prioritized_replay_beta
        assert (config_of(plan).num_gpus, config_of(plan).num_gpus_per_worker) == (0, 0)

    def test_notice_names_the_stale_key_with_its_line(self, load: Load) -> None:
        (notice,) = [notice for notice in load(self.RAINBOW + "gpu: true").notices if "config.gpu " in notice.message]
        assert notice.where.startswith("f.yaml:5:")
        assert notice.message == (
            "config.gpu is a key of RLlib 0.5.0 to 0.5.3, but other keys of this file are of RLlib 0.8.3 to 1.13. "
            "It is left out; num_gpus: 1 asks for a GPU"
        )

    def test_gpu_is_used_in_a_file_of_its_age(self, load: Load) -> None:
        assert config_of(load("gpu: true, min_iter_time_s: 1")).num_gpus == 1

    def test_other_stale_key_is_used(self, load: Load) -> None:
        plan = load("num_env_runners: 0, num_epochs: 2, horizon: 50", run="PPO")
        assert config_of(plan).horizon == 50
        assert any(said.startswith("config.horizon is a key of RLlib 0.3.1 to 2.5") for said in messages(plan))

    def test_convert_settles_a_stale_key(self, load: Load) -> None:
        plan = load(self.RAINBOW + "gpu: true")
        text = converted_file(Path("f.yaml"))
        assert "gpu:" not in "".join(line.split("#")[0] for line in text.splitlines())
        assert planned(text, seed=0).trials == plan.trials


class TestEnvIds:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("{env: Pendulum-v1, config: {framework: torch}}", "1.6 or later"),
            ("{env: ALE/Pong-v5, config: {framework: torch}}", "1.6 or later"),
            ("{env: {grid_search: [CartPole-v1, Ant-v5]}, config: {num_rollout_workers: 2}}", "1.13 to 2.20"),
            ("{env: Pendulum-v1, config: {sgd_stepsize: 1}}", "0.3.1 to 0.5.2"),  # brought up to date by its user
            ("{env: Pendulum-v1, config: {lr: 1}}", "None"),
        ],
    )
    def test_new_id_narrows_an_age(self, text: str, found: str) -> None:
        assert str(age(text, "PPO")) == found

    @pytest.mark.parametrize(
        ("run", "config", "found"),
        [
            ("A3C", "use_pytorch: true, batch_size: 20", "0.3.1 to 0.4.0"),
            ("A3C", "use_pytorch: true, gpu: false", "0.5.0 to 0.5.3"),
            ("PPO", "use_pytorch: true", "0.8.2 to 0.8.7"),
            ("ARS", "sgd_stepsize: 0.1, framework: torch", "0.8.6 or later"),
            ("PPO", "sgd_stepsize: 0.1", "0.3.1 to 0.5.2"),
        ],
    )
    def test_agents_had_keys_at_different_times(self, run: str, config: str, found: str) -> None:
        assert str(age(f"{{config: {{{config}}}}}", run)) == found

    def test_pendulum_decides_what_actions_mean(self, load: Load) -> None:
        assert config_of(load("framework: torch", run="PPO", env="Pendulum-v1")).normalize_actions


class TestDefaults:
    @pytest.mark.parametrize(
        ("run", "config", "key", "value"),
        [
            ("APEX", "num_steps_sampled_before_learning_starts: 5", "training_intensity", 1),
            ("APEX", "min_time_s_per_reporting: 5, framework: torch", "training_intensity", None),
            ("APEX", "framework: torch, buffer_size: 600000", "training_intensity", None),
            ("DQN", "num_steps_sampled_before_learning_starts: 5", "min_iter_time_s", None),
            ("DQN", "num_steps_sampled_before_learning_starts: 5", "sample_batch_size", 4),
            ("DQN", "td_error_loss_fn: huber", "sample_batch_size", 1),
            ("DQN", "td_error_loss_fn: huber, n_step: 3", "sample_batch_size", 3),
            ("DQN", "async_updates: false", "sample_batch_size", 1),
            ("DQN", "async_updates: false", "grad_norm_clipping", 10),
            ("DQN", "random_starts: false", "clip_rewards", True),
            ("PPO", "num_env_runners: 1", "sample_batch_size", "auto"),
            ("PPO", "num_env_runners: 1, rollout_fragment_length: 200", "sample_batch_size", 200),
            ("PPO", "_enable_learner_api: true", "sample_batch_size", 200),  # 2.3 to 2.10 had both
            ("PPO", "framework: torch", "sample_batch_size", 200),
            ("PPO", "lr: 1", "sample_batch_size", 200),
            ("PPO", "min_steps_per_task: 200", "gamma", 0.995),
            ("PPO", "min_steps_per_task: 200", "horizon", 2000),
            ("ES", "num_env_runners: 2", "eval_prob", 0.03),
            ("ES", "timesteps_per_batch: 200", "eval_prob", 0.003),
            ("PPO", "timesteps_per_batch: 200", "gamma", 0.99),  # 0.3.1 to 0.5.2 had both
            ("PPO", "framework: torch", "batch_mode", "truncate_episodes"),
            ("PPO", "framework: torch", "observation_filter", "NoFilter"),
            ("PPO", "lr: 1", "batch_mode", "truncate_episodes"),
            ("PPO", "lr: 1", "observation_filter", "NoFilter"),
            ("PPO", "sgd_stepsize: 1", "batch_mode", "complete_episodes"),
            ("PPO", "sgd_batchsize: 64", "observation_filter", "MeanStdFilter"),
            ("PPO", "devices: [/cpu:0]", "batch_mode", "complete_episodes"),
            ("PPO", "straggler_mitigation: false", "batch_mode", "truncate_episodes"),
        ],
    )
    def test_missing_key_has_default_of_age(self, load: Load, run: str, config: str, key: str, value: Any) -> None:
        assert getattr(config_of(load(config, run=run)), key) == value

    @pytest.mark.parametrize(
        ("config", "key", "value"),
        [
            ("framework: torch", "normalize_actions", False),
            ("num_rollout_workers: 1", "normalize_actions", True),
            ("num_rollout_workers: 1, normalize_actions: false", "clip_actions", False),
        ],
    )
    def test_defaults_of_continuous_actions(self, load: Load, config: str, key: str, value: bool) -> None:
        assert getattr(config_of(load(config, run="PPO", env="Hopper-v2")), key) == value
        assert not notices_of_age(load(config, run="PPO"))

    def test_notice_names_age_and_defaults(self, load: Load) -> None:
        plan = load("num_workers: 0, num_rollout_workers: 0", run="PPO", env="Pendulum-v0")
        assert notices_of_age(plan) == [
            "a is spelled as in RLlib 1.13 to 2.20. Keys that it does not give have the "
            "defaults of these releases: "
            "config.normalize_actions: true. To use rlexp's defaults, write config.normalize_actions: false"
        ]
        assert plan.notices[0].where == "f.yaml:1:1"

    @pytest.mark.parametrize(
        ("keys", "length"),
        [
            ("sample_batch_size: 100, num_envs_per_worker: 5, gpu: false", 20),
            ("num_envs_per_worker: 5, gpu: false", 4),
            ("sample_batch_size: 100, num_envs_per_worker: 8, gpu: false", 100),  # RLlib refused it
            ("sample_batch_size: 100, num_envs_per_worker: 5, use_pytorch: false", 100),  # of any age
            ("rollout_fragment_length: 100, num_envs_per_worker: 5", 100),
        ],
    )
    def test_envs_of_a_worker_shared_a_fragment(self, load: Load, keys: str, length: int) -> None:
        plan = load(keys, run="A2C")
        assert config_of(plan).sample_batch_size == length
        said = "for the 5 envs of a worker, as RLlib up to 0.5.3 counted, is"
        assert any(said in message for message in messages(plan)) is (length < 100)
        assert config_of(load(keys, "sample_batch_size=7", run="A2C")).sample_batch_size == 7

    def test_given_key_is_kept(self, load: Load) -> None:
        plan = load("num_workers: 0, num_steps_sampled_before_learning_starts: 5, training_intensity: null", run="APEX")
        assert config_of(plan).training_intensity is None
        assert notices_of_age(plan) == []

    def test_override_is_kept(self, load: Load) -> None:
        text = "num_workers: 0, num_steps_sampled_before_learning_starts: 5"
        assert config_of(load(text, "training_intensity=4", run="APEX")).training_intensity == 4
        assert config_of(load(text, "training_intensity=null", run="APEX")).training_intensity is None

    def test_override_proves_no_age(self, load: Load) -> None:
        plan = load("num_workers: 0", "config.num_steps_sampled_before_learning_starts=5", run="APEX")
        assert config_of(plan).training_intensity is None

    def test_default_without_effect_has_no_notice(self, load: Load) -> None:
        plan = load("exploration_config: {final_epsilon: 0.1}, prioritized_replay: false, prioritized_replay_beta: 0.9")
        assert notices_of_age(plan) == []
        assert not [notice for notice in plan.notices if "final_prioritized_replay_beta" in notice.message]

    def test_default_of_age_in_every_variant(self, load: Load) -> None:
        plan = load("framework: torch, noisy: {grid_search: [true, false]}, exploration_config: {final_epsilon: 0.1}")
        assert [trial.varied for trial in plan.trials] == [{"noisy": True}, {"noisy": False}]
        assert len(notices_of_age(plan)) == 1
        assert planned(resolved_yaml(plan)).trials == plan.trials

    @pytest.mark.parametrize(
        ("run", "config"),
        [
            ("APEX", "num_workers: 0, num_steps_sampled_before_learning_starts: 5"),
            ("DQN", "td_error_loss_fn: huber, n_step: 3"),
            ("DQN", "replay_buffer_config: {prioritized_replay_beta: 0.9}"),
            ("DQN", "noisy: true, exploration_config: {final_epsilon: 0.1}"),
            ("DQN", "learning_starts: 5, replay_buffer_config: {type: MultiAgentReplayBuffer}"),
            ("DQN", "framework: torch, prioritized_replay_beta: 0.9, final_prioritized_replay_beta: 1.0"),
            ("DQN", "_fake_gpus: true, num_gpus: 2"),
            ("PPO", "num_workers: 0, min_steps_per_task: 200"),
            ("PPO", "num_workers: 0, framework: torch"),
            ("PPO", "num_env_runners: 3"),
        ],
    )
    def test_convert_writes_defaults_of_age(self, load: Load, run: str, config: str) -> None:
        plan = load(config, run=run)
        text = converted_file(Path("f.yaml"))
        again = planned(text, seed=0)
        assert again.trials == plan.trials
        assert notices_of_age(again) == []
        assert converted_file(Path("f.yaml")) == text


class TestUndecided:
    def notices(self, plan: Plan) -> list[str]:
        return [message for message in messages(plan) if "different defaults" in message]

    def test_one_notice_names_what_differs_and_what_is_used(self, load: Load) -> None:
        plan = load("simple_optimizer: false", run="PPO")  # of 0.5.3 to 1.3
        assert self.notices(plan) == [
            "the keys of a fit RLlib 0.5.3 to 1.3, whose releases have different defaults: "
            "config.batch_mode: complete_episodes before 0.6.0, truncate_episodes since (here truncate_episodes); "
            "config.observation_filter: MeanStdFilter before 0.6.5, NoFilter since (here NoFilter). "
            "To choose, write the keys"
        ]
        assert (config_of(plan).batch_mode, config_of(plan).observation_filter) == ("truncate_episodes", "NoFilter")

    @pytest.mark.parametrize(
        ("env", "config", "keys"),
        [
            ("CartPole-v0", "sgd_minibatch_size: 128, gamma: 0.9", ["batch_mode", "observation_filter"]),
            (
                "Pendulum-v0",
                "sgd_minibatch_size: 128, batch_mode: complete_episodes",
                ["observation_filter", "normalize_actions"],
            ),
            ("PongDeterministic-v4", "sgd_minibatch_size: 128", ["batch_mode"]),
            ("Hopper-v2", "framework: torch", ["normalize_actions"]),
            ("Pendulum-v1", "framework: torch", []),  # its id says that it is of 1.6 or later
            ("CartPole-v1", "framework: torch", []),  # its actions are discrete
            ("CartPole-v1", "sgd_minibatch_size: 128", []),  # as files for rlexp are written
        ],
    )
    def test_only_what_matters_is_named(self, load: Load, env: str, config: str, keys: list[str]) -> None:
        found = self.notices(load(config, run="PPO", env=env))
        assert len(found) == bool(keys)
        assert all(f"config.{key}: " in found[0] for key in keys)
        assert sum(text.count("(here ") for text in found) == len(keys)

    def test_written_key_is_decided(self, load: Load) -> None:
        text = "simple_optimizer: false, batch_mode: complete_episodes, observation_filter: MeanStdFilter"
        assert self.notices(load(text, run="PPO")) == []


class TestBeta:
    @pytest.mark.parametrize(
        "config",
        [
            "replay_buffer_config: {prioritized_replay_beta: 0.9}",
            "exploration_config: {final_epsilon: 0.1}, prioritized_replay_beta: 0.9",
            "framework: torch, prioritized_replay_beta: 0.9",
        ],
    )
    def test_beta_is_constant_in_newer_releases(self, load: Load, config: str) -> None:
        made = config_of(load(config))
        assert made.prioritized_replay_beta == made.resolved_final_prioritized_replay_beta == 0.9

    def test_annealing_keys_ignored_by_rllib_are_left_out(self, load: Load) -> None:
        text = "framework: torch, prioritized_replay_beta: 0.9, final_prioritized_replay_beta: 1.0"
        plan = load(text)
        assert config_of(plan).resolved_final_prioritized_replay_beta == 0.9
        assert [message for message in messages(plan) if "ignored it" in message] == [
            "config.final_prioritized_replay_beta has no effect here: RLlib from 0.8.5 on, whose spelling this file "
            "has, ignored it and kept beta constant; -o sets it anyway"
        ]
        assert config_of(load(text, "final_prioritized_replay_beta=1.0")).resolved_final_prioritized_replay_beta == 1.0

    def test_annealing_keys_of_older_releases_are_used(self, load: Load) -> None:
        text = "use_pytorch: true, prioritized_replay_beta: 0.5, final_prioritized_replay_beta: 1.0"
        assert config_of(load(text)).resolved_final_prioritized_replay_beta == 1.0

    @pytest.mark.parametrize("run", ["DQN", "APEX"])
    def test_decreasing_beta_is_a_notice(self, load: Load, run: str) -> None:
        plan = load("num_workers: 0, prioritized_replay_beta: 1, final_prioritized_replay_beta: 0.4", run=run)
        assert [vars(notice) for notice in plan.notices] == [
            {
                "where": "f.yaml:5:28",
                "message": "config.prioritized_replay_beta decreases from 1 to final_prioritized_replay_beta: 0.4. "
                "For a constant beta, write final_prioritized_replay_beta: null",
            }
        ]

    def test_default_end_of_a_larger_beta_is_a_notice(self, load: Load) -> None:
        assert "decreases from 0.9" in load("prioritized_replay_beta: 0.9").notices[0].message
        assert load("prioritized_replay_beta: 0.3").notices == ()

    @pytest.mark.parametrize(
        ("config", "is_noticed"),
        [
            ("adam_epsilon: 1.5e-4", True),
            ("adam_epsilon: 1.5e-4, importance_weight_normalization: batch", False),
            ("adam_epsilon: 1.5e-4, prioritized_replay_eps: 0.01", False),
            ("adam_epsilon: 1.5e-4, prioritized_replay: false", False),
            ("lr: 1e-4", False),
        ],
    )
    def test_steps_that_weights_and_epsilon_shrink_are_a_notice(
        self, load: Load, config: str, is_noticed: bool
    ) -> None:
        messages = [notice.message for notice in load(config).notices]
        assert any(message.startswith("config.adam_epsilon is 0.00015, which is large") for message in messages) == (
            is_noticed
        )


class TestNoise:
    def test_noisy_replaces_epsilon_in_current_spelling(self, load: Load) -> None:
        plan = load("noisy: true, exploration_final_eps: 0.1")
        assert not config_of(plan).epsilon_with_noisy
        assert messages(plan) == ["config.exploration_final_eps has no effect: noisy layers explore instead"]

    def test_exploration_config_keeps_epsilon_beside_noisy(self, load: Load) -> None:
        plan = load("noisy: true, exploration_config: {final_epsilon: 0.1}")
        assert (config_of(plan).epsilon_with_noisy, config_of(plan).exploration_final_eps) == (True, 0.1)
        assert "config.epsilon_with_noisy: true" in notices_of_age(plan)[0]


class TestReplayBuffer:
    FLAT = "learning_starts: 1000, timesteps_per_iteration: 1000"

    @pytest.mark.parametrize("run", ["DQN", "APEX"])
    @pytest.mark.parametrize(("flag", "expected"), [("", True), ("prioritized_replay: false,", False)])
    def test_prioritized_flag_decides_up_to_1_13(self, load: Load, run: str, flag: str, expected: bool) -> None:
        text = f"num_workers: 0, {flag} {self.FLAT}, replay_buffer_config: {{type: MultiAgentReplayBuffer}}"
        plan = load(text, run=run)
        assert config_of(plan).prioritized_replay == expected
        assert any("prioritized_replay decides how replay samples" in notice.message for notice in plan.notices)

    @pytest.mark.parametrize("key", ["num_steps_sampled_before_learning_starts", "num_env_runners"])
    def test_buffer_class_decides_after_1_13(self, load: Load, key: str) -> None:
        plan = load(f"{key}: 0, replay_buffer_config: {{type: MultiAgentReplayBuffer}}")
        assert not config_of(plan).prioritized_replay

    def test_class_in_a_grid_of_mappings(self, load: Load) -> None:
        choices = "[{type: MultiAgentReplayBuffer, capacity: 5000}, {capacity: 6000}]"
        plan = load(f"{self.FLAT}, replay_buffer_config: {{grid_search: {choices}}}")
        assert [trial.experiment.config.prioritized_replay for trial in plan.trials] == [True, True]  # type: ignore[attr-defined]
