"""PPO's learners in files of RLlib: their number, GPUs and sizes, and how many of them fit a machine."""

from pathlib import Path

import pytest

from rlexp.config.load import converted_file, load_plan
from tests.unit.config.ppo_files import Load, config_of, fit_to, messages, problems


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
        ],
    )
    def test_number_and_gpus(self, load_ppo: Load, text: str, learners: int, gpus: float) -> None:
        made = config_of(load_ppo(text))
        assert (made.num_learners, made.num_gpus) == (learners, gpus)

    def test_gpus_of_a_trial_have_learners_too(self, load_ppo: Load, tmp_path: Path) -> None:
        text = "a: {run: PPO, env: CartPole-v1, stop: {timesteps_total: 1}, resources_per_trial: {cpu: 1, gpu: 2}}\n"
        (tmp_path / "g.yaml").write_text(text)
        made = config_of(load_plan(["g.yaml"], (), 0))
        assert (made.num_learners, made.num_gpus) == (2, 2)

    def test_several_gpus_have_a_notice(self, load_ppo: Load) -> None:
        plan = load_ppo("num_gpus: 4")
        assert messages(plan) == [
            "config.num_gpus is 4, so config.num_learners is 4 as well: each GPU has a learner, and they share each "
            "minibatch"
        ]
        assert "num_learners: 4" in converted_file(Path("f.yaml"))

    def test_given_learners_are_kept(self, load_ppo: Load) -> None:
        ((where, message, hint),) = problems(load_ppo, "num_gpus: 4, num_learners: 2")
        assert where == "f.yaml:5:12"
        assert message == "config.num_gpus: 4 reserves 4 GPUs, but 2 learners use 2"
        assert hint == "write num_gpus: 2, or num_learners: 4; --fit lowers it for you"

    def test_driver_as_learner_has_a_notice(self, load_ppo: Load) -> None:
        expected = "config.num_learners: 0 is 1 here: a single learner is in the process of the driver"
        assert messages(load_ppo("num_learners: 0")) == [expected]

    @pytest.mark.parametrize("text", ["num_learners: -1", "num_learners: 1.5", "num_learners: true", "num_gpus: 1.5"])
    def test_wrong_numbers_are_refused(self, load_ppo: Load, text: str) -> None:
        ((where, message, _),) = problems(load_ppo, text)
        assert where.startswith("f.yaml:5:")
        assert message.startswith(f"config.{text.partition(':')[0]}")

    def test_q_learners_have_one(self, load_ppo: Load) -> None:
        ((_, message, _),) = problems(load_ppo, "num_learners: 2", run="DQN")
        assert message == "config.num_learners: rlexp does not support several learners of DQN and APEX"
        assert load_ppo("num_learners: 1, num_workers: 0", run="DQN").trials
        assert load_ppo("num_gpus_per_learner: 1, num_workers: 0", run="DQN").trials[0].experiment.config.num_gpus == 1


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
        made = [trial.experiment.config.model_dump() for trial in plan.trials]
        assert [(each["num_learners"], each["sgd_minibatch_size"]) for each in made] == [(1, 64), (2, 128)]

    @pytest.mark.parametrize(
        ("override", "size"), [("minibatch_size=32", 64), ("sgd_minibatch_size=32", 32), ("num_learners=1", 64)]
    )
    def test_override_wins(self, load_ppo: Load, override: str, size: int) -> None:
        assert config_of(load_ppo(self.TEXT, override)).sgd_minibatch_size == size

    def test_converted_file_means_the_same(self, load_ppo: Load) -> None:
        before = config_of(load_ppo(self.TEXT))
        Path("g.yaml").write_text(converted_file(Path("f.yaml")))
        assert config_of(load_plan(["g.yaml"], (), 0)) == before


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
