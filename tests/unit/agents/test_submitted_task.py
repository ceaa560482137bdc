"""What a stranger's experiment may ask of a trainer's machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.actor import trainer
from rlexp.board.actor.trainer import TrainerLimits, training_obstacle
from rlexp.board.messages.tasks import Task
from rlexp.cluster.room import this_machine
from rlexp.config.keys.user_code import UserModules
from rlexp.config.yaml.reader import to_yaml
from rlexp.user_code.trusted_code import TrustedCode

ALL = TrainerLimits()


def task(config: dict[str, Any] | None = None, **keys: Any) -> Task:
    entry = {"run": "APEX", "env": "CartPole-v1", **keys, "config": {"num_workers": 0, **(config or {})}}
    return Task("t1", "small", 1, file=to_yaml({"small": entry}))


def why(task: Task, trusted: TrustedCode = TrustedCode(), limits: TrainerLimits = ALL) -> str:  # noqa: B008
    obstacle = training_obstacle(task, trusted, limits)
    assert obstacle is not None
    assert obstacle.hint
    return obstacle.message


def test_experiment_with_an_env_of_gymnasium_is_trained() -> None:
    assert training_obstacle(task(), TrustedCode(), ALL) is None
    assert training_obstacle(task(run="DQN", stop={"num_updates": 10}), TrustedCode(), ALL) is None
    assert training_obstacle(task(local_dir="/etc"), TrustedCode(), ALL) is None  # RLlib's key, without an effect


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (task(restore="/home/anna/checkpoint_000001"), "restore"),
        (task(storage="file:///home/anna"), "storage"),
        (task(env="os:system"), "a class of its own"),
        (task(env="antigravity:CartPole-v1"), "a class of its own"),
        (task({"env_config": {"render_mode": "human"}}), "env_config"),
        (task({"evaluation_config": {"env_config": {"xml_file": "/etc/passwd"}}}), "env_config"),
        (task(num_samples=2), "several variants"),
        (task({"lr": {"grid_search": [1e-3, 1e-4]}}), "several variants"),
        (task(run="PPO"), "cannot be joined"),
        (task({"callbacks": "os.system"}), "cannot be read"),
        (Task("t1", "n", 1, file="a: &a [*a]"), "cannot be read"),
        (Task("t1", "n", 1, file="!!python/object/apply:os.system [id]"), "cannot be read"),
        (Task("t1", "n", 1, file="../x:\n  run: APEX\n  env: CartPole-v1\n"), "cannot be read"),
        (Task("t1", "n", 1, file="\0"), "cannot be read"),
        (Task("t1", "n", 1), "was not submitted"),
    ],
)
def test_what_reaches_the_machine_is_refused(given: Task, said: str) -> None:
    assert said in why(given)


def test_nothing_of_the_file_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert "a class of its own" in why(task(env="evil:Env"))


def test_env_that_was_allowed_may_have_its_arguments() -> None:
    given = task({"env_config": {"depth": 3}}, env="my.module:Env")
    trusted = TrustedCode(frozenset({"my.module:Env"}), UserModules(("my.module",)))
    assert "a class of its own" in why(given)
    assert training_obstacle(given, trusted, ALL) is None


def test_task_that_needs_more_than_is_allowed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(this_machine(), cpus=64, memory_total=1 << 40)
    monkeypatch.setattr(trainer, "this_machine", lambda: large)
    given = task({"num_workers": 8, "buffer_size": 10_000_000})
    assert training_obstacle(given, TrustedCode(), ALL) is None
    assert training_obstacle(given, TrustedCode(), TrainerLimits(cpus=32)) is None
    assert "CPUs" in why(given, limits=TrainerLimits(cpus=4))
    assert "for replay" in why(given, limits=TrainerLimits(max_memory=1 << 20))


def test_task_in_a_cluster_may_need_more_than_this_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "this_machine", lambda: replace(this_machine(), cpus=2))
    resources = {"custom_resources_per_worker": {"tpu": 1}}
    given = task({"num_workers": 64, "num_gpus": 1, "buffer_size": 10_000_000, **resources})
    assert training_obstacle(given, TrustedCode(), TrainerLimits(in_cluster=True)) is None
    assert "CPUs" in why(given, limits=TrainerLimits(cpus=4, in_cluster=True))
    assert "for replay" in why(given, limits=TrainerLimits(max_memory=1 << 20, in_cluster=True))


def test_limits_beyond_the_machine_do_not_enlarge_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "this_machine", lambda: replace(this_machine(), cpus=2))
    assert "CPUs" in why(task({"num_workers": 8}), limits=TrainerLimits(cpus=64))
