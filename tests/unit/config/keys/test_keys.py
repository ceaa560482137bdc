"""The models: strict values, RLlib's defaults, what fits together, and a docstring for every key.

PPO's keys: what rooms that know no algorithm ask of them, which fit together, and which have no effect.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from rlexp.agents.workers import rollout_fingerprint
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.apex import ApexConfig, ApexExperiment
from rlexp.config.keys.common import CommonConfig, LearnerProcesses
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.key_table import key_table
from rlexp.config.keys.ppo import PPOConfig, PPOExperiment
from rlexp.config.keys.pqn import PQNConfig
from rlexp.config.keys.trial import required_cpus, required_gpus
from rlexp.envs.registry import EnvConfig
from rlexp.runs.resuming import CHANGEABLE, differences
from rlexp.tuning.tune_runner import placement
from tests.lab.experiment_files import conflicts


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


def test_conflicts_are_reported_together_and_mark_defaults() -> None:
    batch, support = conflicts(ApexConfig, buffer_size=100, v_min=10.0)
    assert batch.keys == ("train_batch_size", "buffer_size")
    assert batch.message == "train_batch_size is 512 (its default), more than buffer_size, which is 100"
    assert support.keys == ("v_min", "v_max")
    assert support.message == "v_min is 10.0, but must be less than v_max, which is 10.0"


def test_conflict_more_shards_than_transitions() -> None:
    (found,) = conflicts(ApexConfig, buffer_size=3, learning_starts=0, train_batch_size=1)
    assert found.keys == ("optimizer.num_replay_buffer_shards", "buffer_size")


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


def config(**keys: Any) -> PPOConfig:
    return PPOConfig.model_validate(keys)


def experiment(**keys: Any) -> PPOExperiment:
    return PPOExperiment.model_validate({"name": "a", "run": "PPO", "env": "CartPole-v1", "config": keys})


def ineffective(**keys: Any) -> dict[str, str]:
    """Return the keys that have no effect beside ``keys``, less those that have none beside the defaults."""
    usual = dict(config().ineffective_keys())
    return {key: reason for key, reason in config(**keys).ineffective_keys() if key not in usual}


def test_defaults_are_those_of_rllib_0_6_6() -> None:
    made = config()
    assert (made.batch_mode, made.observation_filter) == ("truncate_episodes", "NoFilter")
    assert (made.clip_actions, made.normalize_actions) == (True, False)
    assert (made.train_batch_size, made.sgd_minibatch_size, made.num_sgd_iter, made.lr) == (4000, 128, 30, 5e-5)
    assert (made.lambda_, made.kl_coeff, made.kl_target, made.clip_param, made.vf_clip_param) == (1, 0.2, 0.01, 0.3, 10)
    assert (made.num_learners, made.adam_epsilon, made.grad_norm_clipping) == (1, 1e-8, None)


class TestFragmentLength:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({"sample_batch_size": 50, "num_workers": 4}, 50),
            ({"sample_batch_size": "auto", "num_workers": 32, "num_envs_per_worker": 5, "train_batch_size": 5000}, 32),
            ({"sample_batch_size": "auto", "num_workers": 0, "num_envs_per_worker": 8, "train_batch_size": 256}, 32),
            ({"sample_batch_size": "auto", "num_workers": 500, "train_batch_size": 200}, 1),
        ],
    )
    def test_auto_divides_train_batch_and_rounds_up(self, keys: dict[str, Any], expected: int) -> None:
        assert config(**keys).fragment_length == expected

    @pytest.mark.parametrize("value", [0, -1, 2.5, True, "automatic", None, [3]])
    def test_other_values_are_refused(self, value: Any) -> None:
        with pytest.raises(ValidationError, match="must be a whole number >= 1 or auto"):
            config(sample_batch_size=value)

    def test_dqn_takes_no_auto(self) -> None:
        assert key_table("DQN")["config", "sample_batch_size"].expects == "a whole number >= 1"
        with pytest.raises(ValidationError):
            DQNConfig.model_validate({"sample_batch_size": "auto"})


class TestFingerprint:
    ENV = EnvConfig("CartPole-v1")

    def test_auto_has_the_fragment_length_in_it(self) -> None:
        def of(**keys: Any) -> dict[str, Any]:
            return rollout_fingerprint(self.ENV, config(**keys))

        assert of(sample_batch_size="auto", train_batch_size=400) == of(sample_batch_size=200, train_batch_size=400)
        assert of(sample_batch_size="auto", train_batch_size=400) != of(sample_batch_size="auto", train_batch_size=800)
        assert of(train_batch_size=400) == of(train_batch_size=800)

    @pytest.mark.parametrize(
        ("key", "value", "beside"),
        [
            ("lambda", 0.9, {}),
            ("use_gae", False, {"batch_mode": "complete_episodes"}),
            ("use_critic", False, {"use_gae": False, "batch_mode": "complete_episodes"}),
            ("clip_actions", False, {}),
            ("normalize_actions", True, {}),
        ],
    )
    def test_what_decides_a_workers_rows_is_in_it(self, key: str, value: Any, beside: dict[str, Any]) -> None:
        usual = rollout_fingerprint(self.ENV, config(**beside))
        assert rollout_fingerprint(self.ENV, config(**beside, **{key: value})) != usual


@pytest.mark.parametrize(
    ("normalize", "clip", "expected"),
    [(True, True, "normalized"), (True, False, "normalized"), (False, True, "clipped"), (False, False, None)],
)
def test_continuous_actions_prefers_normalize_actions(normalize: bool, clip: bool, expected: Any) -> None:
    assert PPOConfig(normalize_actions=normalize, clip_actions=clip).continuous_actions == expected
    assert DQNConfig().continuous_actions is None


def test_workers_of_ppo_do_not_sample_ahead() -> None:
    assert not config(sample_async=True).workers_sample_ahead
    assert DQNConfig(sample_async=True).workers_sample_ahead


class TestLearners:
    def test_one_learner_needs_no_process(self) -> None:
        made = experiment(num_workers=3, num_cpus_per_learner=8)
        assert made.config.learner_processes is None
        assert required_cpus(made) == 4
        assert placement(made).bundles == [{"CPU": 1.0}] * 4

    def test_several_have_a_process_and_a_bundle_each(self) -> None:
        made = experiment(num_workers=3, num_learners=2, num_cpus_per_learner=1.5, num_gpus=2)
        assert made.config.learner_processes == LearnerProcesses(number=2, cpus=1.5, gpus=1.0)
        assert (required_cpus(made), required_gpus(made)) == (7.0, 2.0)
        assert placement(made).bundles == [{"CPU": 1.0}, *[{"CPU": 1.5, "GPU": 1.0}] * 2, *[{"CPU": 1.0}] * 3]

    def test_one_learner_has_its_gpu_in_the_bundle_of_the_driver(self) -> None:
        assert placement(experiment(num_workers=0, num_gpus=0.5)).bundles == [{"CPU": 1.0, "GPU": 0.5}]


class TestConflicts:
    @pytest.mark.parametrize(
        ("keys", "message", "hint"),
        [
            (
                {"use_gae": False},
                "use_gae is false, but batch_mode is truncate_episodes (its default); returns need whole episodes",
                "write batch_mode: complete_episodes, or leave use_gae out",
            ),
            (
                {"use_critic": False},
                "use_critic is false, but use_gae needs a critic",
                "write use_gae: false, or leave use_critic out",
            ),
            (
                {"sgd_minibatch_size": 128, "train_batch_size": 100},
                "sgd_minibatch_size is 128, more than train_batch_size, which is 100",
                "lower sgd_minibatch_size or raise train_batch_size",
            ),
            (
                {"sgd_minibatch_size": 2, "num_learners": 3},
                "sgd_minibatch_size is 2, less than num_learners, which is 3",
                "raise sgd_minibatch_size or lower num_learners; each learner needs a transition at least",
            ),
            (
                {"num_gpus": 1, "num_learners": 3},
                "num_gpus is 1, less than num_learners, which is 3",
                "write num_gpus: 3, or 0, or fewer learners; they cannot share a GPU",
            ),
        ],
    )
    def test_keys_that_do_not_fit_together(self, keys: dict[str, Any], message: str, hint: str) -> None:
        (found,) = conflicts(PPOConfig, **keys)
        assert (found.message, found.hint) == (message, hint)

    @pytest.mark.parametrize(
        "keys",
        [
            {"use_gae": False, "batch_mode": "complete_episodes"},
            {"use_gae": False, "use_critic": False, "batch_mode": "complete_episodes"},
            {"sgd_minibatch_size": 3, "num_learners": 3},
            {"sgd_minibatch_size": 4000},
            {"num_learners": 3},
        ],
    )
    def test_keys_that_fit_together(self, keys: dict[str, Any]) -> None:
        assert config(**keys)


class TestIneffectiveKeys:
    @pytest.mark.parametrize(
        ("keys", "expected"),
        [
            ({"entropy_coeff_schedule": [[0, 0.1]]}, {"entropy_coeff": "entropy_coeff_schedule is given"}),
            ({"lr_schedule": [[0, 0.1]]}, {"lr": "lr_schedule is given"}),
            ({"kl_coeff": 0}, {"kl_target": "kl_coeff is 0"}),
            ({"use_gae": False, "batch_mode": "complete_episodes"}, {"lambda": "use_gae is false"}),
            (
                {"use_gae": False, "use_critic": False, "batch_mode": "complete_episodes"},
                {"lambda": "use_gae is false"}
                | dict.fromkeys(("vf_loss_coeff", "vf_clip_param", "model.vf_share_layers"), "use_critic is false"),
            ),
            ({"normalize_actions": True}, {"clip_actions": "normalize_actions clips as well"}),
            ({"num_workers": 0}, {"sample_async": "num_workers is 0, so nothing samples beside the learner"}),
        ],
    )
    def test_they_are_named_with_the_reason(self, keys: dict[str, Any], expected: dict[str, str]) -> None:
        assert ineffective(**keys) == expected

    def test_cpus_of_a_single_learner(self) -> None:
        assert "num_cpus_per_learner" in dict(config().ineffective_keys())
        assert "num_cpus_per_learner" not in dict(config(num_learners=2).ineffective_keys())

    def test_experiments_that_differ_in_them_train_the_same(self) -> None:
        whole: dict[str, Any] = {"use_gae": False, "use_critic": False, "batch_mode": "complete_episodes"}
        first = experiment(**whole).essence
        assert experiment(**whole, **{"lambda": 0.5}).essence == first
        assert experiment(**whole, model={"vf_share_layers": True}).essence == first
        assert experiment(**whole, model={"free_log_std": True}).essence != first
        assert experiment(**{"lambda": 0.5}).essence != experiment().essence


def test_resumed_trial_can_have_other_processes() -> None:
    before = experiment(num_learners=4, num_gpus=4, num_workers=8).model_dump(mode="json")
    now = experiment(num_learners=1, num_workers=2, num_cpus_per_learner=2, sgd_minibatch_size=64)
    assert list(differences(before, now.model_dump(mode="json"), CHANGEABLE)) == ["sgd_minibatch_size 128 → 64"]


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({}, {"env_config": {"size": 3}}, ["env_config.size nothing → 3"]),
        (
            {"env_config": {"size": 3, "a": {"b": 1}}},
            {"env_config": {"a": {}}},
            ["env_config.a.b 1 → nothing", "env_config.size 3 → nothing"],
        ),
        ({}, {"env_config": {"api_key": "hidden"}}, ["env_config.api_key nothing → ***"]),
        ({}, {"evaluation_config": {"env_config": {"size": 3}}}, ["evaluation_config.env_config.size nothing → 3"]),
        (
            {"model": {"custom_model": "a:B"}},
            {"model": {"custom_model": {"a:B": {"c": 1}}}},
            ["model.custom_model.a:B.c nothing → 1"],
        ),
        ({"model": {"custom_model": {"a:B": {"c": 1}}}}, {"model": {"custom_model": {"a:B": {"c": 1}}}}, []),
        (
            {"model": {"custom_model": {"a:B": {"c": 1}}}},
            {"model": {"custom_model": {"a:D": {"c": 1}}}},
            ["model.custom_model.a:B.c 1 → nothing", "model.custom_model.a:D.c nothing → 1"],
        ),
        (
            {"model": {"custom_model": None}},
            {"model": {"custom_model": {"a:B": {"c": 1}}}},
            ["model.custom_model.a:B.c nothing → 1"],
        ),
    ],
)
def test_resumed_trial_has_the_same_arguments(before: dict[str, Any], now: dict[str, Any], found: list[str]) -> None:
    old, new = (experiment(**config).model_dump(mode="json") for config in (before, now))
    assert [each for each in differences(old, new, CHANGEABLE) if "nothing" in each] == found


def test_a_key_that_only_one_version_has_is_no_difference() -> None:
    now = experiment().model_dump(mode="json")
    before = {**now, "config": {key: value for key, value in now["config"].items() if key != "kl_coeff"}}
    assert list(differences(before, now, CHANGEABLE)) == []
    assert list(differences({**now, "scale": None}, {**now, "scale": {"by": 2}}, CHANGEABLE)) == [
        "scale.by nothing → 2"
    ]


def test_population_keeps_network_processes_and_actions() -> None:
    kept = {"use_critic", "num_learners", "num_cpus_per_learner", "clip_actions", "normalize_actions"}
    assert set(PPOConfig.KEPT_BY_PBT) - set(CommonConfig.KEPT_BY_PBT) == kept
    assert all(("config", key) in key_table("PPO") for key in kept)


def test_pqn_cannot_have_what_its_train_batch_or_its_exploration_excludes() -> None:
    (found,) = conflicts(PQNConfig, train_batch_size=100)
    assert found.message == "sgd_minibatch_size is 128 (its default), more than train_batch_size, which is 100"
    ineffective = dict(PQNConfig.model_validate({"soft_q": True, "epsilon_timesteps": 5}).ineffective_keys())
    assert ineffective["epsilon_timesteps"] == "soft_q explores instead"
    assert "sample_async" in ineffective
    assert {"hiddens", "dueling", "discretize_actions", "model"} <= set(PQNConfig.KEPT_BY_PBT)
    (continuous,) = PQNConfig().env_conflicts("Pendulum-v1")
    assert "discretize_actions: 5" in str(continuous.hint)


def test_pqn_normalises_layers_unless_a_file_says_otherwise() -> None:
    assert PQNConfig().model.layer_norm
    assert not PPOConfig().model.layer_norm
    assert not PQNConfig.model_validate({"model": {"layer_norm": False}}).model.layer_norm
