"""What RLlib's files say by the name of a class: models of the user's own, and exploration.

Names that a program registered in RLlib, and the classes that ``--map`` gives for them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.config.command_line import LoadOptions, parse_names
from rlexp.config.keys.user_code import UserClass
from rlexp.config.load import Plan, load_plan, resolved_yaml
from rlexp.errors import UsageError
from tests.lab.experiment_files import Load, config_of, messages, problems

pytestmark = pytest.mark.usefixtures("in_own_folder")

EXPLORATION = "config.exploration_config"


class TestCustomModels:
    @pytest.mark.parametrize(
        ("model", "expected"),
        [
            ("{custom_model: 'm:T'}", UserClass("m:T")),
            ("{custom_model: {'m:T': {a: 1}}}", UserClass("m:T", {"a": 1})),
            ("{custom_model: 'm:T', custom_model_config: {a: [1, 2]}}", UserClass("m:T", {"a": [1, 2]})),
            ("{custom_options: {a: 1}, custom_model: 'm:T'}", UserClass("m:T", {"a": 1})),
            ("{custom_model: 'm:T', custom_options: {}, custom_model_config: null}", UserClass("m:T")),
            ("{custom_model: null, custom_model_config: {}}", None),
            ("{custom_model: ''}", None),
        ],
    )
    @pytest.mark.parametrize("run", ["DQN", "APEX", "PPO"])
    def test_arguments_of_rllib_are_those_of_the_class(
        self, load: Load, model: str, expected: UserClass | None, run: str
    ) -> None:
        assert config_of(load(f"model: {model}", run=run)).model.custom_model == expected

    def test_moved_arguments_are_reported(self, load: Load) -> None:
        plan = load("model: {custom_model: 'm:T', custom_model_config: {a: 1}}")
        assert messages(plan) == ["config.model.custom_model_config is below config.model.custom_model: m:T now"]
        (notice,) = messages(load("model: {custom_options: {a: 1}}"))
        assert notice == "config.model.custom_options has no effect here: there is no config.model.custom_model"

    def test_arguments_can_be_searched_in_both_places(self, load: Load) -> None:
        for model in (
            "{custom_model: {'m:T': {a: {grid_search: [1, 2]}}}}",
            "{custom_model: 'm:T', custom_model_config: {a: {grid_search: [1, 2]}}}",
        ):
            models = [trial.experiment.config.model.custom_model for trial in load(f"model: {model}").trials]
            assert models == [UserClass("m:T", {"a": 1}), UserClass("m:T", {"a": 2})]

    @pytest.mark.parametrize(
        ("model", "message", "hint"),
        [
            (
                "{custom_model: mine}",
                "mine is a name that a program registered in RLlib",
                "--map mine=package.module:Class",
            ),
            ("{custom_model: 'm:T', custom_options: 4}", "custom_options must be a mapping, got 4", ""),
            ("{custom_model: {'m:T': {b: 1}}, custom_options: {a: 1}}", "cannot give others", "leave config.model"),
            ("{custom_model: 4}", "must be package.module:Class or", ""),
        ],
    )
    def test_other_values_are_refused(self, load: Load, model: str, message: str, hint: str) -> None:
        ((_, found, found_hint),) = problems(load, f"model: {model}")
        assert message in found
        assert hint in (found_hint or "")

    def test_keys_of_our_layers_have_no_effect_beside_it(self, load: Load) -> None:
        plan = load("model: {custom_model: 'm:T', fcnet_hiddens: [4], conv_filters: [[4, [2, 2], 1]]}")
        reason = "has no effect: custom_model has layers of its own"
        assert set(messages(plan)) == {f"config.model.{key} {reason}" for key in ("fcnet_hiddens", "conv_filters")}

    def test_it_is_a_part_of_the_users_own(self, load: Load) -> None:
        plan = load("model: {custom_model: {'a.b:T': {c: 1}}}")
        (part,) = plan.trials[0].experiment.config.user_parts()
        assert (part.key, part.name, part.kwargs) == ("config.model.custom_model", "a.b:T", {"c": 1})
        assert plan.trials[0].experiment.named_modules == ("a.b",)


class TestExploration:
    @pytest.mark.parametrize("path", ["", "ray.rllib.utils.exploration.stochastic_sampling."])
    def test_stochastic_sampling_is_softmax_of_q_and_what_ppo_does(self, load: Load, path: str) -> None:
        config = config_of(load(f"exploration_config: {{type: {path}StochasticSampling}}"))
        assert (config.soft_q, config.softmax_temp) == (True, 1.0)
        plan = load(f"exploration_config: {{type: {path}StochasticSampling}}", run="PPO")
        assert plan.trials
        assert messages(plan) == []

    def test_a_given_temperature_stays(self, load: Load) -> None:
        config = config_of(load("exploration_config: {type: StochasticSampling, temperature: 0.3}"))
        assert (config.soft_q, config.softmax_temp) == (True, 0.3)

    @pytest.mark.parametrize("run", ["DQN", "APEX", "PPO"])
    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("GaussianNoise", "continuous actions"),
            ("OrnsteinUhlenbeckNoise", "continuous actions"),
            ("PerWorkerGaussianNoise", "continuous actions"),
            ("Curiosity", "adds rewards"),
            ("RE3", "adds rewards"),
            ("SlateEpsilonGreedy", "SlateQ"),
            ("ThompsonSampling", "bandits"),
            ("MyOwn", "does not support MyOwn"),
        ],
    )
    def test_types_that_no_agent_means_are_refused_with_the_reason(
        self, load: Load, run: str, kind: str, reason: str
    ) -> None:
        ((_, message, hint),) = problems(load, f"exploration_config: {{type: {kind}, eta: 1.0}}", run=run)
        assert message.startswith(f"{EXPLORATION}.type: rlexp does not support {kind}")
        assert reason in message
        assert "StochasticSampling" in (hint or "")

    @pytest.mark.parametrize("kind", ["Random", "EpsilonGreedy", "SoftQ"])
    def test_types_of_q_learners_are_refused_with_ppo(self, load: Load, kind: str) -> None:
        ((_, message, hint),) = problems(load, f"exploration_config: {{type: {kind}}}", run="PPO")
        assert message == f"{EXPLORATION}.type: rlexp does not support {kind} with PPO"
        assert hint == "use StochasticSampling"

    @pytest.mark.parametrize("kind", ["SoftQ", "StochasticSampling"])
    def test_random_steps_before_softmax_are_refused(self, load: Load, kind: str) -> None:
        ((_, message, _),) = problems(load, f"exploration_config: {{type: {kind}, random_timesteps: 10}}")
        assert message == f"{EXPLORATION}.type: rlexp does not support random steps before {kind}"
        assert load(f"exploration_config: {{type: {kind}, random_timesteps: 0}}").trials

    def test_no_option_of_ppo_is_dropped_in_silence(self, load: Load) -> None:
        ((_, message, _),) = problems(load, "exploration_config: {random_timesteps: 10}", run="PPO")
        assert "random actions before the policy is sampled" in message
        ((_, message, _),) = problems(load, "exploration_config: {wrong: 10}", run="PPO")
        assert message == f"unknown key {EXPLORATION}.wrong (agent PPO)"
        (notice,) = messages(load("exploration_config: {final_epsilon: 0.1}", run="PPO"))
        assert notice == f"{EXPLORATION}.final_epsilon has no effect here: workers explore by sampling from the policy"

    @pytest.mark.parametrize(
        ("options", "key"),
        [
            ("type: EpsilonGreedy, temperature: 3.0", "softmax_temp"),
            ("type: EpsilonGreedy, initial_stddev: 3.0", "parameter_noise_initial_stddev"),
            ("type: SoftQ, final_epsilon: 0.3", "exploration_final_eps"),
            ("type: PerWorkerEpsilonGreedy, epsilon_timesteps: 30", "epsilon_timesteps"),
        ],
    )
    def test_options_of_another_type_are_reported(self, load: Load, options: str, key: str) -> None:
        assert any(
            text.startswith(f"config.{key} has no effect")
            for text in messages(load(f"exploration_config: {{{options}}}"))
        )


THEIRS = """\
flatland:
  run: PPO
  env: {env}
  stop: {{timesteps_total: 100}}
  config:
    env_config: {{observation: tree}}
    model: {{custom_model: global_obs_model, custom_options: {{width: 8}}}}
"""
NAMES = ("flatland_sparse=my_envs:Flatland", "global_obs_model=my_nets:Net", "other=my_envs:Other")


def plan_of(names: tuple[str, ...], env: str = "flatland_sparse") -> Plan:
    Path("f.yaml").write_text(THEIRS.format(env=env))
    return load_plan(["f.yaml"], seed=0, options=LoadOptions(names=parse_names(names)))


def test_a_class_is_used_for_a_name_and_a_notice_says_so() -> None:
    plan = plan_of(NAMES)
    config = config_of(plan)
    assert plan.trials[0].experiment.env == "my_envs:Flatland"
    assert (config.model.custom_model.name, config.model.custom_model.kwargs) == ("my_nets:Net", {"width": 8})
    assert "env: flatland_sparse is my_envs:Flatland (--map)" in messages(plan)
    assert "config.model.custom_model: global_obs_model is my_nets:Net (--map)" in messages(plan)


def test_the_resolved_file_needs_no_names() -> None:
    """So what is resumed, played or sent names classes, which the rules for other people's code know."""
    plan = plan_of(NAMES)
    Path("resolved.yaml").write_text(resolved_yaml(plan))
    assert load_plan(["resolved.yaml"], seed=0).trials[0].experiment == plan.trials[0].experiment


def test_unknown_names_name_the_option_as_the_remedy() -> None:
    (env_place, env, env_hint), (model_place, model, model_hint) = problems(plan_of, ())
    assert (env_place, env) == ("f.yaml:3:8", "env flatland_sparse is not a Gymnasium environment")
    assert "--map flatland_sparse=package.module:Class" in (env_hint or "")
    assert model_place == "f.yaml:7:13"
    assert "global_obs_model is a name that a program registered in RLlib" in model
    assert "--map global_obs_model=package.module:Class" in (model_hint or "")


def test_each_value_of_a_grid_is_mapped() -> None:
    plan = plan_of(NAMES, "{grid_search: [flatland_sparse, other]}")
    assert [trial.experiment.env for trial in plan.trials] == ["my_envs:Flatland", "my_envs:Other"]


@pytest.mark.parametrize("text", ["flatland", "flatland=", "=my_envs:Flatland", "a=m:A"])
def test_a_mapping_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--map"):
        parse_names(["a=m:B", text])
