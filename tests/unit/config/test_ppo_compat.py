"""PPO's files of RLlib: their fragments, schedules and defaults, with a notice for each change."""

from pathlib import Path
from typing import Any

import pytest

from rlexp.config.load import converted_file, resolved_yaml
from tests.unit.config.ppo_files import Load, config_of, fit_to, messages, problems


class TestAutomaticFragments:
    PONG = "train_batch_size: 5000, rollout_fragment_length: auto, num_workers: 32, num_envs_per_worker: 5"

    def test_auto_is_kept(self, load_ppo: Load) -> None:
        plan = load_ppo(self.PONG)
        assert (config_of(plan).sample_batch_size, config_of(plan).fragment_length) == ("auto", 32)
        assert "sample_batch_size: auto" in resolved_yaml(plan)
        assert "sample_batch_size: auto" in converted_file(Path("f.yaml"))
        assert "config.rollout_fragment_length is config.sample_batch_size now" in messages(plan)

    def test_auto_follows_the_workers_that_fit(self, load_ppo: Load) -> None:
        made = config_of(load_ppo(self.PONG, adjust=fit_to(cpus=2)))
        assert (made.num_workers, made.fragment_length) == (2, 500)

    def test_auto_can_be_a_choice_of_a_grid(self, load_ppo: Load) -> None:
        plan = load_ppo("sample_batch_size: {grid_search: [auto, 100]}, num_workers: 4")
        assert [trial.experiment.config.fragment_length for trial in plan.trials] == [1000, 100]
        assert [trial.varied for trial in plan.trials] == [{"sample_batch_size": "auto"}, {"sample_batch_size": 100}]

    def test_other_words_are_refused_with_their_place(self, load_ppo: Load) -> None:
        ((where, message, _),) = problems(load_ppo, "sample_batch_size: automatic")
        assert where == "f.yaml:5:31"
        assert message == "config.sample_batch_size must be a whole number >= 1 or auto, got the string 'automatic'"


class TestWholeEpisodes:
    def test_returns_without_gae_need_them(self, load_ppo: Load) -> None:
        plan = load_ppo("use_gae: false")
        assert config_of(plan).batch_mode == "complete_episodes"
        assert messages(plan) == ["config.use_gae: false needs whole episodes, so batch_mode is complete_episodes"]
        assert "batch_mode: complete_episodes" in converted_file(Path("f.yaml"))

    def test_given_fragments_are_refused(self, load_ppo: Load) -> None:
        ((where, message, hint),) = problems(load_ppo, "use_gae: false, batch_mode: truncate_episodes")
        assert where == "f.yaml:5:12"
        assert message == "config.use_gae is false, but batch_mode is truncate_episodes; returns need whole episodes"
        assert hint == "write batch_mode: complete_episodes, or leave use_gae out"


class TestFilterOfImages:
    @pytest.mark.parametrize(
        "env", ["Pong-v0", "PongDeterministic-v4", "PongNoFrameskip-v4", "ALE/Breakout-v5", "CarRacing-v0"]
    )
    def test_default_of_an_age_is_not_used(self, load_ppo: Load, env: str) -> None:
        plan = load_ppo("timesteps_per_batch: 500", env=env)
        assert config_of(plan).observation_filter == "NoFilter"
        assert [message for message in messages(plan) if "observation_filter" in message] == [
            "config.observation_filter: the default of RLlib 0.3.1 to 0.5.2, MeanStdFilter, does not suit images. "
            "It is NoFilter here"
        ]

    @pytest.mark.parametrize("env", ["CartPole-v1", "Pong-ram-v0"])
    def test_default_of_an_age_is_used_for_vectors(self, load_ppo: Load, env: str) -> None:
        assert config_of(load_ppo("timesteps_per_batch: 500", env=env)).observation_filter == "MeanStdFilter"

    def test_no_notice_where_no_release_had_a_filter(self, load_ppo: Load) -> None:
        plan = load_ppo("framework: torch", env="PongNoFrameskip-v4")
        assert not [message for message in messages(plan) if "observation_filter" in message]

    def test_given_filter_is_kept(self, load_ppo: Load) -> None:
        plan = load_ppo("timesteps_per_batch: 500, observation_filter: MeanStdFilter", env="PongNoFrameskip-v4")
        assert config_of(plan).observation_filter == "MeanStdFilter"


class TestSchedules:
    @pytest.mark.parametrize(
        ("text", "key", "value"),
        [
            ("lr: [[0, 1e-3], [1e6, 0]]", "lr_schedule", ((0, 1e-3), (1_000_000, 0.0))),
            ("entropy_coeff: [[0, 0.01], [1e6, 0]]", "entropy_coeff_schedule", ((0, 0.01), (1_000_000, 0.0))),
            ("lr_schedule: null", "lr_schedule", None),
            ("entropy_coeff_schedule: null", "entropy_coeff_schedule", None),
        ],
    )
    def test_a_number_may_be_a_schedule(self, load_ppo: Load, text: str, key: str, value: Any) -> None:
        assert getattr(config_of(load_ppo(text)), key) == value

    @pytest.mark.parametrize("text", ["entropy_coeff: -0.01", "entropy_coeff_schedule: [[0, -0.1]]"])
    def test_negative_entropy_is_refused(self, load_ppo: Load, text: str) -> None:
        assert len(problems(load_ppo, text)) == 1

    def test_number_beside_a_schedule_has_a_notice(self, load_ppo: Load) -> None:
        plan = load_ppo("entropy_coeff: 0.1, entropy_coeff_schedule: [[0, 0.1], [10, 0]]")
        assert messages(plan) == ["config.entropy_coeff has no effect: entropy_coeff_schedule is given"]


class TestKeysWithoutEffect:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "shuffle_sequences: true",
                "config.shuffle_sequences has no effect here: each epoch of SGD has the transitions of a train "
                "batch in a new order",
            ),
            (
                "simple_optimizer: true",
                "config.simple_optimizer has no effect here: rlexp has one implementation of each agent",
            ),
            (
                "straggler_mitigation: true",
                "config.straggler_mitigation has no effect here: rlexp has one implementation of each agent",
            ),
            (
                "use_gae: false, use_critic: false, batch_mode: complete_episodes, model: {vf_share_layers: true}",
                "config.model.vf_share_layers has no effect: use_critic is false",
            ),
            (
                "use_gae: false, batch_mode: complete_episodes, lambda: 0.9",
                "config.lambda has no effect: use_gae is false",
            ),
            (
                "evaluation_config: {explore: true, exploration_final_eps: 0.1}",
                "config.evaluation_config.exploration_final_eps has no effect: PPO explores by sampling from its "
                "policy",
            ),
            ("kl_coeff: 0, kl_target: 0.3", "config.kl_target has no effect: kl_coeff is 0"),
        ],
    )
    def test_they_have_a_notice(self, load_ppo: Load, text: str, message: str) -> None:
        assert message in messages(load_ppo(text))
