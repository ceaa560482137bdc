"""Groups of trials from the arguments of ``compare``, and the settings in which they differ."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.group import SettingsReader, differing, groups_of, shared_settings
from rlexp.compare.run_listing import trials_at
from rlexp.errors import UsageError
from tests.lab.run_folders import MadeTrial, make_run, row, write_resolved


def groups(*arguments: object) -> dict[str, list[int | None]]:
    """Return the seeds of each group by its name."""
    found = groups_of([str(argument) for argument in arguments], SettingsReader())
    assert len({group.name for group in found}) == len(found)
    return {group.name: [trial.seed for trial in group.trials] for group in found}


def trial(seed: int, env: str = "CartPole-v1", varied: dict[str, Any] | None = None, **config: Any) -> MadeTrial:
    return MadeTrial([1.0], seed, varied or {}, config, env)


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two variants, two seeds of each, in the order of a plan."""
    return make_run(tmp_path / "grid", [trial(seed, varied={"n_step": n}) for seed in (7, 8) for n in (1, 3)])


def test_trials_that_differ_in_seed_are_one_group(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1), trial(2), trial(3)])
    assert groups(run) == {"pong": [1, 2, 3]}


def test_grid_variants_are_groups_named_by_difference(grid: Path) -> None:
    assert groups(grid) == {"n_step=1": [7, 8], "n_step=3": [7, 8]}


def test_grid_over_seeds_is_one_group(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(seed, varied={"seed": seed, "lr": 0.1}) for seed in (1, 2)])
    assert groups(run) == {"pong": [1, 2]}


def test_group_names_begin_with_run_name_for_two_runs(grid: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other", [trial(5)])
    assert groups(other, grid) == {"other": [5], "grid n_step=1": [7, 8], "grid n_step=3": [7, 8]}


def test_runs_with_same_name_have_paths_as_names(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / folder / "pong", [trial(1)]) for folder in ("a", "b")]
    assert list(groups(*paths)) == [str(path) for path in paths]


def test_single_trials_of_a_run_are_grouped(grid: Path) -> None:
    directories = sorted(path for path in grid.iterdir() if path.is_dir())
    assert groups(directories[0], directories[2]) == {"n_step=1": [7, 8]}
    assert groups(directories[1]) == {"n_step=3": [7]}


def test_grid_outside_config_makes_groups(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1, varied={"stop.time_total_s": limit}) for limit in (10, 20)])
    assert groups(run) == {"stop.time_total_s=10": [1], "stop.time_total_s=20": [1]}


def test_experiments_of_one_file_are_groups(tmp_path: Path) -> None:
    by_env = make_run(tmp_path / "envs", [trial(1), trial(1, env="Acrobot-v1")])
    assert groups(by_env) == {"DQN CartPole-v1": [1], "DQN Acrobot-v1": [1]}
    by_setting = make_run(tmp_path / "settings", [trial(1, lr=0.1), trial(1, lr=0.2)])
    assert groups(by_setting) == {"lr=0.1": [1], "lr=0.2": [1]}
    many: dict[str, Any] = {f"key{number}": number for number in range(9)}
    by_directory = make_run(tmp_path / "many", [trial(1), trial(1, **many)])
    assert groups(by_directory) == {"00000-DQN-CartPole-v1": [1], "00001-DQN-CartPole-v1": [1]}


def test_named_group_has_trials_of_all_paths(grid: Path, tmp_path: Path) -> None:
    others = [make_run(tmp_path / f"pong-{seed}", [trial(seed)]) for seed in (1, 2)]
    assert groups(f"all={grid},{others[0]}") == {"all": [7, 7, 8, 8, 1]}
    assert groups(f"pong={tmp_path}/pong-*", f"grid={grid}") == {"pong": [1, 2], "grid": [7, 7, 8, 8]}


def test_directories_with_commas_and_equals_signs(tmp_path: Path) -> None:
    odd = make_run(tmp_path / "n_step=1,lr=0.1", [trial(1)])
    plain = make_run(tmp_path / "plain", [trial(2)])
    assert groups(odd) == {"n_step=1,lr=0.1": [1]}
    assert groups(f"x={odd},{plain}") == {"x": [1, 2]}


def test_dots_are_paths(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(next(path for path in sorted(grid.iterdir()) if path.is_dir()))
    assert groups(".") == {"n_step=1": [7]}
    assert groups("..") == {"n_step=1": [7, 8], "n_step=3": [7, 8]}


def test_trials_of_other_programs(tmp_path: Path) -> None:
    for name in ("DQN_a", "DQN_b"):
        folder = tmp_path / "old" / name
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(row(1, 1.0)))
        (folder / "params.json").write_text(json.dumps({"env": "Pong-v0", "seed": 4}))
    assert groups(tmp_path / "old") == {"old": [4, 4]}


def test_trials_of_damaged_run_json(grid: Path) -> None:
    (grid / "run.json").write_text('{"format": 1')
    assert groups(grid) == {"n_step=1": [7, 8], "n_step=3": [7, 8]}


def test_key_as_older_versions_wrote_it_is_the_same_setting(tmp_path: Path) -> None:
    for key in ("lambda_", "lambda"):
        folder = tmp_path / key / "PPO_a"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(row(1, 1.0)))
        (folder / "params.json").write_text(json.dumps({"env": "Pong-v0", key: 0.9}))
    settings = [SettingsReader().settings(trials_at(tmp_path / key)[0]) for key in ("lambda_", "lambda")]
    assert [each["config.lambda"] for each in settings] == ["0.9", "0.9"]
    assert not differing(settings)


def test_trials_without_parameters_are_grouped_by_name(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1), trial(2), trial(3, env="Acrobot-v1")])
    for file in run.glob("*/params.json"):
        file.write_text("[]")
    assert list(groups(run).values()) == [[1, 2], [3]]


def test_record_cannot_name_directory_outside_run(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "outside", [trial(1)])
    run = make_run(tmp_path / "run", [trial(2)])
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"directory": "', f'"directory": "../{outside.name}/'))
    with pytest.raises(UsageError, match="no trials"):
        groups(run)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere", "nowhere does not exist"),
        ("x=nowhere", "nowhere does not exist"),
        ("x=none-*", r"none-\* does not exist"),
        ("x=~nobody-of-this-name/run", "~nobody-of-this-name/run does not exist"),
        ("x=", "x= does not exist"),
        ("=grid", "=grid does not exist"),
        ("grid/lr=1", "grid/lr=1 does not exist"),
        ("grid/run.json", "run.json is a file"),
        ("empty", "empty is neither a run nor a trial"),
        (".", "is neither a run nor a trial"),
        ("x=grid,grid", "00000-DQN-CartPole-v1 is given twice"),
        ("x=" + "a" * 5000, "a+ does not exist$"),
    ],
)
def test_wrong_arguments(grid: Path, argument: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(grid.parent)
    os.mkdir("empty")
    with pytest.raises(UsageError, match=message) as caught:
        groups(argument)
    assert caught.value.hint


def test_group_given_twice(grid: Path) -> None:
    with pytest.raises(UsageError, match="the group x is given twice"):
        groups(f"x={grid}", f"x={grid}")


def test_settings_of_trial_and_experiment(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1, varied={"lr": 0.5, "stop.time_total_s": 9}, model={"dim": 84})])
    experiment = {"run": "DQN", "env": "CartPole-v1", "stop": {"time_total_s": {"grid_search": [9, 10]}, "x": 1.0}}
    write_resolved(run, {"pong": {**experiment, "num_samples": 3, "config": {"lr": 7, "gone": 1}}})
    [group] = groups_of([str(run)], SettingsReader())
    assert SettingsReader().settings(group.trials[0]) == {
        "run": '"DQN"',
        "env": '"CartPole-v1"',
        "config.lr": "0.5",
        "config.model.dim": "84",
        "stop.time_total_s": "9",
        "stop.x": "1.0",
    }


def test_settings_of_ambiguous_experiment_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1), trial(1, env="Acrobot-v1")])
    shared = {"run": "DQN", "env": {"grid_search": ["CartPole-v1", "Acrobot-v1"]}, "stop": {"x": 1.0}}
    own = {"run": "DQN", "env": "Acrobot-v1", "stop": {"x": 2.0}}
    write_resolved(run, {"shared": shared, "own": own})
    cartpole, acrobot = (group.trials[0] for group in groups_of([str(run)], SettingsReader()))
    assert SettingsReader().settings(cartpole)["stop.x"] == "1.0"
    assert "stop.x" not in SettingsReader().settings(acrobot)


def test_settings_mask_secrets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [trial(1)])
    write_resolved(run, {"pong": {"run": "DQN", "env": "CartPole-v1", "board": {"password": "hunter2"}}})
    [group] = groups_of([str(run)], SettingsReader())
    assert SettingsReader().settings(group.trials[0])["board.password"] == '"***"'


@pytest.mark.parametrize("text", ["", "[", "- 1", "a: 1", "a: &x [*x]", "!!python/object:os.system {}", "\0"])
def test_damaged_resolved_yaml_loses_only_its_keys(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "pong", [trial(1)])
    (run / "resolved.yaml").write_text(text)
    [group] = groups_of([str(run)], SettingsReader())
    assert SettingsReader().settings(group.trials[0])["config.lr"] == "0.001"


def test_differing_and_shared_settings() -> None:
    settings = [{"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "2", "c": "3"}]
    assert differing(settings) == ["b", "c"]
    assert differing(settings[:1]) == []
    assert shared_settings(settings) == {"a": "1", "b": "1 | 2", "c": "- | 3"}
