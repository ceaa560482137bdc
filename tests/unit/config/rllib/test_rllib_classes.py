"""What RLlib's files say by the name of a class: models of the user's own, and exploration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rlexp.config.keys.user_code import UserClass
from rlexp.config.load import Plan
from rlexp.errors import ConfigError

Load = Callable[..., Plan]
EXPLORATION = "config.exploration_config"


def problems(load: Load, config: str, run: str = "DQN") -> list[tuple[str, str]]:
    with pytest.raises(ConfigError) as refused:
        load(config, run=run)
    return [(problem.message, problem.hint or "") for problem in refused.value.problems]


def notices(plan: Plan) -> list[str]:
    return [notice.message for notice in plan.notices]


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
        (trial,) = load(f"model: {model}", run=run).trials
        assert trial.experiment.config.model.custom_model == expected

    def test_moved_arguments_are_reported(self, load: Load) -> None:
        plan = load("model: {custom_model: 'm:T', custom_model_config: {a: 1}}")
        assert notices(plan) == ["config.model.custom_model_config is below config.model.custom_model: m:T now"]
        (notice,) = notices(load("model: {custom_options: {a: 1}}"))
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
            ("{custom_model: mine}", "mine is a name that a program registered in RLlib", "write package.module:Class"),
            ("{custom_model: 'm:T', custom_options: 4}", "custom_options must be a mapping, got 4", ""),
            ("{custom_model: {'m:T': {b: 1}}, custom_options: {a: 1}}", "cannot give others", "leave config.model"),
            ("{custom_model: 4}", "must be package.module:Class or", ""),
        ],
    )
    def test_other_values_are_refused(self, load: Load, model: str, message: str, hint: str) -> None:
        ((found, found_hint),) = problems(load, f"model: {{{model[1:-1]}}}")
        assert message in found
        assert hint in found_hint

    def test_keys_of_our_layers_have_no_effect_beside_it(self, load: Load) -> None:
        plan = load("model: {custom_model: 'm:T', fcnet_hiddens: [4], conv_filters: [[4, [2, 2], 1]]}")
        reason = "has no effect: custom_model has layers of its own"
        assert set(notices(plan)) == {f"config.model.{key} {reason}" for key in ("fcnet_hiddens", "conv_filters")}

    def test_it_is_a_part_of_the_users_own(self, load: Load) -> None:
        plan = load("model: {custom_model: {'a.b:T': {c: 1}}}")
        (part,) = plan.trials[0].experiment.config.user_parts()
        assert (part.key, part.name, part.kwargs) == ("config.model.custom_model", "a.b:T", {"c": 1})
        assert plan.trials[0].experiment.named_modules == ("a.b",)


class TestExploration:
    @pytest.mark.parametrize("path", ["", "ray.rllib.utils.exploration.stochastic_sampling."])
    def test_stochastic_sampling_is_softmax_of_q_and_what_ppo_does(self, load: Load, path: str) -> None:
        config: Any = load(f"exploration_config: {{type: {path}StochasticSampling}}").trials[0].experiment.config
        assert (config.soft_q, config.softmax_temp) == (True, 1.0)
        plan = load(f"exploration_config: {{type: {path}StochasticSampling}}", run="PPO")
        assert plan.trials
        assert [notice.message for notice in plan.notices] == []

    def test_a_given_temperature_stays(self, load: Load) -> None:
        text = "exploration_config: {type: StochasticSampling, temperature: 0.3}"
        config: Any = load(text).trials[0].experiment.config
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
        ((message, hint),) = problems(load, f"exploration_config: {{type: {kind}, eta: 1.0}}", run)
        assert message.startswith(f"{EXPLORATION}.type: rlexp does not support {kind}")
        assert reason in message
        assert "StochasticSampling" in hint

    @pytest.mark.parametrize("kind", ["Random", "EpsilonGreedy", "SoftQ"])
    def test_types_of_q_learners_are_refused_with_ppo(self, load: Load, kind: str) -> None:
        ((message, hint),) = problems(load, f"exploration_config: {{type: {kind}}}", "PPO")
        assert message == f"{EXPLORATION}.type: rlexp does not support {kind} with PPO"
        assert hint == "use StochasticSampling"

    @pytest.mark.parametrize("kind", ["SoftQ", "StochasticSampling"])
    def test_random_steps_before_softmax_are_refused(self, load: Load, kind: str) -> None:
        ((message, _),) = problems(load, f"exploration_config: {{type: {kind}, random_timesteps: 10}}")
        assert message == f"{EXPLORATION}.type: rlexp does not support random steps before {kind}"
        assert load(f"exploration_config: {{type: {kind}, random_timesteps: 0}}").trials

    def test_no_option_of_ppo_is_dropped_in_silence(self, load: Load) -> None:
        ((message, _),) = problems(load, "exploration_config: {random_timesteps: 10}", "PPO")
        assert "random actions before PPO samples" in message
        ((message, _),) = problems(load, "exploration_config: {wrong: 10}", "PPO")
        assert message == f"unknown key {EXPLORATION}.wrong (agent PPO)"
        (notice,) = notices(load("exploration_config: {final_epsilon: 0.1}", run="PPO"))
        assert notice == f"{EXPLORATION}.final_epsilon has no effect here: PPO explores by sampling from its policy"

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
            for text in notices(load(f"exploration_config: {{{options}}}"))
        )
