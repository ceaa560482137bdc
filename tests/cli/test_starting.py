"""What somebody types first: examples are listed, copied and completed, and files are written to begin with."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlexp.cli import app, main
from rlexp.commands.completion import complete_example
from rlexp.config.examples import examples
from rlexp.config.keys.agents import AGENTS
from rlexp.config.load import load_plan
from rlexp.config.presets import general_for
from rlexp.errors import UsageError
from rlexp.terminal import examples as printing


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rlexp(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: str) -> str:
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    return " | ".join(f"{problem.message} | {problem.hint}" for problem in caught.value.problems)


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    for out in (tmp_path / ("y" * 300 + ".yaml"), tmp_path / ("z" * 300) / "a.yaml"):
        assert "File name too long" in refused("examples", "cartpole-ppo", "--out", str(out))


def test_list_has_every_example_with_score_and_time() -> None:
    header, *lines = rlexp("examples").splitlines()
    assert header.split() == ["name", "agent", "env", "score", "time"]
    assert [line.split()[0] for line in lines] == [example.name for example in examples()]
    (line,) = (line for line in lines if line.startswith("cartpole-ppo "))
    assert line.split() == ["cartpole-ppo", "PPO", "CartPole-v1", "475", "4.4", "s"]
    (line,) = (line for line in lines if line.startswith("pong-ppo "))
    assert line.split() == ["pong-ppo", "PPO", "PongNoFrameskip-v4", "not", "seen", "-"]


def test_list_fits_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(printing, "columns_of", lambda stream: 80)
    printing.print_examples(examples(), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == [example.name for example in examples()]


def test_list_as_json_has_the_facts() -> None:
    listed = {each["name"]: each for each in json.loads(rlexp("examples", "--json"))["examples"]}
    assert listed["cartpole-ppo"]["seeds"] == "5 of 5"
    assert listed["cartpole-ppo"]["not_seen_to_learn_yet"] is None
    assert listed["pong-ppo"]["score"] is None
    assert listed["pong-ppo"]["not_seen_to_learn_yet"]
    assert listed["own-env"]["files"] == ["own-env.yaml", "own_env.py"]


def test_copy_says_what_is_known_and_what_comes_next(tmp_path: Path) -> None:
    printed = rlexp("examples", "cartpole-ppo")
    copied = tmp_path / "cartpole-ppo.yaml"
    (original,) = (example.path for example in examples() if example.name == "cartpole-ppo")
    assert copied.read_text() == original.read_text()
    assert "wrote cartpole-ppo.yaml: PPO on CartPole" in printed
    assert "score:    475" in printed
    assert printed.endswith("next: rlexp check cartpole-ppo.yaml\n      rlexp run cartpole-ppo.yaml\n")


def test_sweep_is_followed_by_sweep() -> None:
    assert "rlexp sweep cartpole-sweep.yaml" in rlexp("examples", "cartpole-sweep.yaml")


def test_copy_brings_the_modules_that_the_experiment_names(tmp_path: Path) -> None:
    rlexp("examples", "own-env", "--out", "new/folder")
    assert sorted(path.name for path in (tmp_path / "new/folder").iterdir()) == ["own-env.yaml", "own_env.py"]
    assert load_plan([tmp_path / "new/folder/own-env.yaml"]).trials


def test_copy_gets_another_name(tmp_path: Path) -> None:
    written = json.loads(rlexp("examples", "own-env", "--out", "mine.yaml", "--json"))["written"]
    assert written == ["mine.yaml", "own_env.py"]
    assert (tmp_path / "mine.yaml").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "own_env.py").write_text("mine")
    assert refused("examples", "own-env").startswith("own_env.py exists | ")
    assert [path.name for path in tmp_path.iterdir()] == ["own_env.py"]
    assert (tmp_path / "own_env.py").read_text() == "mine"


def test_print_writes_nothing(tmp_path: Path) -> None:
    assert rlexp("examples", "taxi-dqn", "--print").startswith("# DQN on Taxi")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["cartpole-pop"], "did you mean cartpole-ppo"),
        (["CartPole"], "did you mean cartpole-apex or cartpole-dqn or cartpole-ppo?"),
        (["acrobot"], "did you mean acrobot-"),
        (["xyz"], "rlexp examples lists them"),
        (["../cartpole-ppo"], "unknown example ../cartpole-ppo"),
        (["--print"], "--print needs the name of an example"),
        (["--out", "x"], "--out needs the name of an example"),
        (["taxi-dqn", "--print", "--json"], "--print cannot be combined with --json"),
    ],
)
def test_wrong_words_are_explained(words: list[str], wanted: str, tmp_path: Path) -> None:
    assert wanted in refused("examples", *words)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert refused("examples", "taxi-dqn", "--out", "file/x").startswith("cannot create file/x: ")


def test_names_are_completed_with_their_tasks() -> None:
    found = dict(each for each in complete_example("cartpole-p") if isinstance(each, tuple))
    assert found["cartpole-ppo"].startswith("PPO on CartPole")
    assert all(name.startswith("cartpole-p") for name in found)


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("CartPole-v1", "CartPole-v1 is an env, not a folder | rlexp init --env CartPole-v1"),
        ("maze:Maze", "maze:Maze is an env, not a folder | rlexp init --env maze:Maze"),
        ("mine.yaml", "mine.yaml is a file, not a folder"),
    ],
)
def test_init_takes_a_folder(word: str, wanted: str, tmp_path: Path) -> None:
    assert refused("init", word).startswith(wanted)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("agent", AGENTS)
def test_init_writes_an_experiment_that_check_takes(agent: str, tmp_path: Path) -> None:
    env = "Pendulum-v1" if agent in {"DDPG", "TD3", "APEX_DDPG"} else "CartPole-v1"
    printed = rlexp("init", "new", "--algo", agent.lower(), "--env", env)
    file = f"new/{env.partition('-')[0].lower()}-{agent.lower()}.yaml"
    assert printed == f"wrote {file}\n\nnext: rlexp check --env {file}\n      rlexp run {file}\n"
    lines = (tmp_path / file).read_text().splitlines()
    assert all("  # " in line for line in lines if line.startswith("    ")), "a key has no comment"
    plan = load_plan([tmp_path / file])
    assert [(trial.experiment.run, trial.experiment.env) for trial in plan.trials] == [(agent, env)]
    assert not plan.notices
    assert rlexp("check", file)


def test_init_has_the_settings_of_run_without_a_file(tmp_path: Path) -> None:
    rlexp("init", "--env", "LunarLander-v3", "--algo", "PPO")
    (trial,) = load_plan([tmp_path / "lunarlander-ppo.yaml"]).trials
    preset = general_for("PPO", "LunarLander-v3", "vector")
    assert trial.experiment.stop["timesteps_total"] == 500000
    assert trial.experiment.config.gamma == preset_gamma(preset.text)


def preset_gamma(text: str) -> float:
    return float(text.partition("gamma: ")[2].split()[0])


def test_init_writes_an_env_whose_test_passes(tmp_path: Path) -> None:
    printed = rlexp("init", "--env-class", "GridWalk")
    names = ["grid_walk.py", "gridwalk-ppo.yaml", "test_grid_walk.py"]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == names
    assert printed.endswith(
        "next: python -m pytest test_grid_walk.py\n"
        "      rlexp check --env gridwalk-ppo.yaml\n"
        "      rlexp run gridwalk-ppo.yaml\n"
    )
    assert "checked: " in rlexp("check", "gridwalk-ppo.yaml")
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_grid_walk.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "4 passed" in tested.stdout


def test_init_takes_an_env_of_ones_own(tmp_path: Path) -> None:
    rlexp("examples", "own-env", "--out", "mine")
    rlexp("init", "mine", "--env", "own_env:Parking", "--algo", "DQN")
    (trial,) = load_plan([tmp_path / "mine/parking-dqn.yaml"]).trials
    assert (trial.experiment.run, trial.experiment.env) == ("DQN", "own_env:Parking")


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_walk.py").write_text("mine")
    (tmp_path / "cartpole-ppo.yaml").write_text("mine")
    assert refused("init", "--env-class", "Walk").startswith("test_walk.py exists | ")
    assert refused("init").startswith("cartpole-ppo.yaml exists | ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cartpole-ppo.yaml", "test_walk.py"]


def test_init_names_the_command_for_another_agent_of_an_env(tmp_path: Path) -> None:
    (tmp_path / "walk.py").write_text("mine")
    assert "rlexp init . --env walk:Walk --algo DQN writes" in refused("init", "--env-class", "Walk", "--algo", "dqn")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--algo", "ppp"], "did you mean PPO?"),
        (["--env", "nope:Foo"], "module nope does not exist"),
        (["--env", "CartPole-v1", "--env-class", "Walk"], "--env cannot be combined with --env-class"),
        (["--env-class", "grid_walk"], "for example --env-class GridWalk"),
        (["--env-class", "3d-maze"], "for example --env-class DMaze"),
        (["--env-class", "Über"], "for example --env-class GridWalk"),
        (["--env-class", "Random"], "there is a module random already"),
        (["--env-class", "Class"], "there is a module class already"),
    ],
)
def test_init_explains_what_it_cannot_write(words: list[str], wanted: str, tmp_path: Path) -> None:
    assert wanted in refused("init", "new", *words)
    assert not list(tmp_path.iterdir())


def test_a_file_that_may_not_be_used_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(errors: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "a.yaml")

    monkeypatch.setattr("rlexp.cli._run_app", refused)
    monkeypatch.setattr("rlexp.cli.open_output_streams", lambda: None)
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.startswith("error: cannot use a.yaml: Permission denied\nhint:")


def test_a_deleted_current_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    words = 'cd "$1" && rmdir "$1" && exec "$2" -P -m rlexp --version'
    done = subprocess.run(["bash", "-c", words, "-", tmp_path / "gone", sys.executable], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the current folder was deleted\nhint: cd to another folder\n"
