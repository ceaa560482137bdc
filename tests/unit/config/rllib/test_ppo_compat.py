"""PPO's files of RLlib: their fragments, schedules and defaults, with a notice for each change.

PPO's learners in files of RLlib: their number, GPUs and sizes, and how many of them fit a machine.

Metrics of other agents, which PPO does not have.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room.fit import fitted
from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.config.load import converted_file, resolved_yaml
from tests.lab.experiment_files import Load, config_of, messages, planned, problems

GIB = 2**30


def fit_to(cpus: int, gpus: int = 0) -> Any:
    return partial(fitted, cluster=Cluster.of(Machine(cpus, gpus, 8 * GIB, 8 * GIB)))


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
        assert problems(load_ppo, "use_gae: false, batch_mode: truncate_episodes")


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


class TestKeysWithoutEffect:
    @pytest.mark.parametrize(
        ("text", "key", "reason"),
        [
            (
                "shuffle_sequences: true",
                "shuffle_sequences",
                " here: each epoch of SGD has the transitions of a train batch in a new order",
            ),
            ("remote_worker_envs: true", "remote_worker_envs", " here: a worker steps its envs in its own process"),
            ("soft_horizon: true", "soft_horizon", " here: there is no horizon"),
            (
                "soft_horizon: true, horizon: 500",
                "soft_horizon",
                " here: the env itself ends its episodes after 500 steps",
            ),
            ("simple_optimizer: true", "simple_optimizer", " here: rlexp has one implementation of each agent"),
            ("straggler_mitigation: true", "straggler_mitigation", " here: rlexp has one implementation of each agent"),
            (
                "evaluation_config: {explore: true, exploration_final_eps: 0.1}",
                "evaluation_config.exploration_final_eps",
                ": workers explore by sampling from the policy",
            ),
        ],
    )
    def test_they_have_a_notice(self, load_ppo: Load, text: str, key: str, reason: str) -> None:
        assert f"config.{key} has no effect{reason}" in messages(load_ppo(text))

    def test_frameworks_beside_config_have_a_notice(self, load_ppo: Load) -> None:
        plan = load_ppo(beside="  frameworks: [tf, torch]\n")
        assert "frameworks has no effect here: rlexp computes with PyTorch" in messages(plan)

    def test_episodes_cannot_continue_after_their_horizon(self, load_ppo: Load) -> None:
        ((where, message, hint),) = problems(load_ppo, "soft_horizon: true, horizon: 100")
        assert where == "f.yaml:5:12"
        assert message == "config.soft_horizon: rlexp does not support episodes that continue after their horizon"
        assert hint == "leave soft_horizon out: the env is reset then; or leave horizon out"
        assert messages(load_ppo("soft_horizon: false, horizon: 100")) == []


class TestLearners:
    @pytest.mark.parametrize(
        ("text", "learners", "gpus"),
        [
            ("num_gpus: 4", 4, 4),
            ("num_gpus: 1", 1, 1),
            ("num_gpus: 0.5", 1, 0.5),
            ("devices: ['/gpu:0', '/gpu:1']", 2, 2),
            ("_fake_gpus: true, num_gpus: 2", 1, 0),
            ("num_learners: 0", 1, 0),
            ("num_learner_workers: 2", 2, 0),
            ("num_learners: 2, num_gpus_per_learner: 1", 2, 2),
            ("num_learners: 0, num_gpus_per_learner: 1", 1, 1),
            ("num_learner_workers: 3, num_gpus_per_learner_worker: 1", 3, 3),
            ("num_learners: 2, num_cpus_per_learner: auto", 2, 0),
            ("num_learner_workers: 3, num_gpus_per_learner_worker: 1, num_gpus: 0", 3, 3),
            ("num_learners: 2, num_gpus_per_learner: 1, num_gpus: 1", 2, 2),
        ],
    )
    def test_number_and_gpus(self, load_ppo: Load, text: str, learners: int, gpus: float) -> None:
        made = config_of(load_ppo(text))
        assert (made.num_learners, made.num_gpus) == (learners, gpus)

    def test_gpus_of_a_trial_have_learners_too(self, load_ppo: Load) -> None:
        made = config_of(load_ppo(beside="  resources_per_trial: {cpu: 1, gpu: 2}\n"))
        assert (made.num_learners, made.num_gpus) == (2, 2)

    def test_changed_numbers_have_a_notice(self, load_ppo: Load) -> None:
        expected = "config.num_learners: 0 is 1 here: a single learner is in the process of the driver"
        assert messages(load_ppo("num_learners: 0")) == [expected]
        plan = load_ppo("num_gpus: 4")
        assert messages(plan) == [
            "config.num_gpus is 4, so config.num_learners is 4 as well: each GPU has a learner, and they share each "
            "update"
        ]
        assert "num_learners: 4" in converted_file(Path("f.yaml"))

    @pytest.mark.parametrize(("number", "users"), [(1, "the learner uses"), (2, "2 learners use")])
    def test_given_learners_are_kept(self, load_ppo: Load, number: int, users: str) -> None:
        ((where, message, hint),) = problems(load_ppo, f"num_gpus: 4, num_learners: {number}")
        assert where == "f.yaml:5:12"
        assert message == f"config.num_gpus: 4 reserves 4 GPUs, but {users} {number}"
        assert hint == f"write num_gpus: {number}, or num_learners: 4; --fit lowers it for you"

    @pytest.mark.parametrize("text", ["num_learners: -1", "num_learners: 1.5", "num_learners: true", "num_gpus: 1.5"])
    def test_wrong_numbers_are_refused(self, load_ppo: Load, text: str) -> None:
        ((where, message, _),) = problems(load_ppo, text)
        assert where.startswith("f.yaml:5:")
        assert message.startswith(f"config.{text.partition(':')[0]}")

    @pytest.mark.parametrize("run", ["DQN", "SAC"])
    @pytest.mark.parametrize(
        ("text", "batch", "gpus"),
        [
            ("num_learners: 1, num_gpus_per_learner: 0", 64, 0),
            ("num_learners: 4, num_gpus_per_learner: 1, num_gpus: 0", 64, 1),
            ("num_learner_workers: 2, train_batch_size_per_learner: 32", 64, 0),
            ("num_gpus_per_learner_worker: 0, num_gpus: 1", 64, 0),
        ],
    )
    def test_other_agents_have_one(self, load_ppo: Load, run: str, text: str, batch: int, gpus: float) -> None:
        size = "" if "train_batch_size" in text else ", train_batch_size: 64"
        plan = load_ppo(f"{text}{size}, num_workers: 0", run=run)
        assert (config_of(plan).train_batch_size, config_of(plan).num_gpus) == (batch, gpus)
        number = text.partition(",")[0]
        said = [message for message in messages(plan) if message.startswith("config.num_learner")]
        each = "one learner takes the gradient of a whole batch, of which {} would take a part each"
        expected = f"{number.partition(':')[0]} has no effect here: {each.format(number[-1])}"
        assert said == ([f"config.{expected}"] if number[-1] in "24" else [])

    @pytest.mark.parametrize("run", ["A2C", "APPO", "IMPALA", "PG"])
    def test_agents_without_replay_have_several(self, load_ppo: Load, run: str) -> None:
        """A2C of that age would have 32 rows in a train batch if the file did not say how many each learner has."""
        keys = "num_learner_workers: 2, num_gpus_per_learner_worker: 1, train_batch_size_per_learner: 100"
        made = config_of(load_ppo(f"{keys}, num_workers: 1", run=run))
        assert (made.num_learners, made.num_gpus, made.train_batch_size) == (2, 2, 200)

    def test_their_number_must_be_one(self, load_ppo: Load) -> None:
        for value in ("-1", "many"):
            ((_, message, _),) = problems(load_ppo, f"num_learners: {value}", run="DQN")
            assert message.startswith("config.num_learners must be a whole number >= 0, got ")


class TestSizesForEachLearner:
    TEXT = "num_learners: 2, minibatch_size: 64, train_batch_size_per_learner: 500"

    def test_they_are_multiplied_with_a_notice(self, load_ppo: Load) -> None:
        plan = load_ppo(self.TEXT)
        assert (config_of(plan).sgd_minibatch_size, config_of(plan).train_batch_size) == (128, 1000)
        assert "config.minibatch_size: 64 for each of 2 learners is config.sgd_minibatch_size: 128 now" in messages(
            plan
        )
        each = "config.train_batch_size_per_learner: 500 for each of 2 learners"
        assert f"{each} is config.train_batch_size: 1000 now" in messages(plan)

    @pytest.mark.parametrize("learners", ["", "num_learners: 0,", "num_learners: 1,"])
    def test_sizes_of_one_learner_are_only_renamed(self, load_ppo: Load, learners: str) -> None:
        plan = load_ppo(f"{learners} minibatch_size: 64, train_batch_size_per_learner: 500")
        assert (config_of(plan).sgd_minibatch_size, config_of(plan).train_batch_size) == (64, 500)
        assert not [message for message in messages(plan) if "for each" in message]

    def test_our_keys_are_of_all_learners(self, load_ppo: Load) -> None:
        made = config_of(load_ppo("num_learners: 2, sgd_minibatch_size: 64, train_batch_size: 500"))
        assert (made.sgd_minibatch_size, made.train_batch_size) == (64, 500)

    def test_same_size_under_both_names(self, load_ppo: Load) -> None:
        assert config_of(load_ppo(f"{self.TEXT}, train_batch_size: 1000")).train_batch_size == 1000
        ((_, message, hint),) = problems(load_ppo, f"{self.TEXT}, train_batch_size: 500")
        assert message == (
            "config.train_batch_size_per_learner: 500 for each of 2 learners is config.train_batch_size: 1000, "
            "but this is 500 at f.yaml:5:84"
        )
        assert hint == "keep one of them"

    def test_null_stands_for_the_default(self, load_ppo: Load) -> None:
        made = config_of(load_ppo("num_learners: 2, minibatch_size: null, train_batch_size_per_learner: null"))
        assert (made.sgd_minibatch_size, made.train_batch_size) == (128, 4000)

    def test_grid_of_learners(self, load_ppo: Load) -> None:
        plan = load_ppo("num_learners: {grid_search: [1, 2]}, minibatch_size: 64")
        made: list[Any] = [trial.experiment.config for trial in plan.trials]
        assert [(each.num_learners, each.sgd_minibatch_size) for each in made] == [(1, 64), (2, 128)]

    @pytest.mark.parametrize(
        ("override", "size"), [("minibatch_size=32", 64), ("sgd_minibatch_size=32", 32), ("num_learners=1", 64)]
    )
    def test_override_wins(self, load_ppo: Load, override: str, size: int) -> None:
        assert config_of(load_ppo(self.TEXT, override)).sgd_minibatch_size == size

    def test_converted_file_means_the_same(self, load_ppo: Load) -> None:
        before = config_of(load_ppo(self.TEXT))
        assert config_of(planned(converted_file(Path("f.yaml")), seed=0)) == before


class TestFittedLearners:
    @pytest.mark.parametrize(
        ("cpus", "gpus", "text", "expected"),
        [
            (2, 0, "num_gpus: 4, num_workers: 64", {"num_learners": 1, "num_gpus": 0, "num_workers": 2}),
            (64, 1, "num_gpus: 4, num_workers: 8", {"num_learners": 1, "num_gpus": 1, "num_workers": 8}),
            (64, 8, "num_gpus: 4, num_workers: 8", {"num_learners": 4, "num_gpus": 4, "num_workers": 8}),
            (64, 3, "num_gpus: 4, num_workers: 64", {"num_learners": 3, "num_gpus": 3, "num_workers": 60}),
            (2, 0, "num_learners: 4, num_workers: 2", {"num_learners": 1, "num_workers": 2}),
            (8, 0, "num_learners: 4, num_workers: 20", {"num_learners": 3, "num_workers": 4}),
            (8, 8, "num_gpus: 4, num_workers: 20", {"num_learners": 3, "num_gpus": 3, "num_workers": 4}),
            (8, 0, "num_learners: 4, num_workers: 3", {"num_learners": 4, "num_workers": 3}),
        ],
    )
    def test_learners_fit_before_workers(
        self, load_ppo: Load, cpus: int, gpus: int, text: str, expected: dict[str, float]
    ) -> None:
        made = config_of(load_ppo(text, adjust=fit_to(cpus, gpus))).model_dump()
        assert {key: made[key] for key in expected} == expected

    def test_changes_are_notices(self, load_ppo: Load) -> None:
        notices = messages(load_ppo("num_gpus: 4, num_workers: 2", adjust=fit_to(cpus=4)))
        assert notices[:2] == ["a: num_learners: 1 instead of 4 (--fit)", "a: num_gpus: 0 instead of 4 (--fit)"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("stop={info/num_target_updates: 5}", "stop.info/num_target_updates"),
        ("checkpoint_score_attr=min-info/num_target_updates", "checkpoint_score_attr min-info/num_target_updates"),
    ],
)
def test_metrics_that_ppo_does_not_have_are_refused(load_ppo: Load, key: str, name: str) -> None:
    ((_, *found),) = problems(load_ppo, "", key)
    assert found == [f"{name} is never reported, because PPO has no such metric", "name another metric"]
    assert len(load_ppo("", key, run="DQN").trials) == 1
