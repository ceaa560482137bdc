"""``rlexp check`` as its user meets it: a process, its output and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.forked_commands import rlexp

GOOD = """\
cartpole:
  run: apex
  env: CartPole-v1
  stop: {episode_reward_mean: 475}
  config:
    num_workers: 0
    lr: {grid_search: [1e-3, 1e-4]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pong.yaml"
    path.write_text(GOOD)
    return path


def test_the_trials_that_a_file_makes(path: Path) -> None:
    done = rlexp("check", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    header, *rows, _, checked, unchecked = done.stdout.splitlines()
    assert header.split() == ["trial", "agent", "env", "CPUs", "stop", "varied"]
    assert [row.split() for row in rows] == [
        ["00000-APEX-CartPole-v1-lr=0.001", "APEX", "CartPole-v1", "1", "episode_reward_mean", "475", "lr=0.001"],
        ["00001-APEX-CartPole-v1-lr=0.0001", "APEX", "CartPole-v1", "1", "episode_reward_mean", "475", "lr=0.0001"],
    ]
    assert (
        checked == "checked: keys and values, CPUs, GPUs and memory of this machine, env ids, modules and classes exist"
    )
    assert unchecked == "not checked: whether the envs work (rlexp check --env makes them)"


def test_env_option_makes_the_envs_and_prints_their_spaces(path: Path) -> None:
    done = rlexp("check", str(path), "--env")
    assert done.returncode == 0
    env, actions, _, checked = done.stdout.splitlines()[-4:]
    assert env.startswith("env CartPole-v1: observations Box([")
    assert env.endswith("(4,), float32), shape after preprocessing 4")
    assert actions == "  actions Discrete(2)"
    assert checked.endswith("each env was made and played for up to 3 s")


def test_env_option_finds_what_only_making_the_env_shows(path: Path) -> None:
    done = rlexp("check", str(path), "--env", "-o", "env_config={no_such_argument: 1}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {path}:3:8  env CartPole-v1: TypeError: ")
    assert "hint:  check env_config: its keys are the env's keyword arguments" in done.stderr


def test_env_of_a_module_beside_the_file_is_found_from_elsewhere(path: Path) -> None:
    (path.parent / "downloaded.py").write_text("from tests.envs import CountingEnv as Maze\n")
    path.write_text(GOOD.replace("CartPole-v1", "downloaded:Maze"))
    done = rlexp("check", str(path), "--env")
    assert (done.returncode, done.stderr) == (0, "")
    assert "env downloaded:Maze: observations Box(" in done.stdout


def test_of_many_trials_the_first_are_printed_and_json_has_all(path: Path) -> None:
    done = rlexp("check", str(path), "-o", "num_samples=100")
    assert done.stdout.splitlines()[21] == "… and 180 more; --json prints all"
    assert len(json.loads(rlexp("check", str(path), "-o", "num_samples=100", "--json").stdout)["trials"]) == 200


def test_a_misspelt_key(path: Path) -> None:
    path.write_text(GOOD.replace("lr: {grid_search: [1e-3, 1e-4]}", "num_wokers: 2"))
    done = rlexp("check", str(path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"error: {path}:7:5  unknown key config.num_wokers (agent APEX)",
        "hint:  did you mean num_workers?",
    ]


def test_three_problems_are_three_errors(path: Path) -> None:
    path.write_text(GOOD.replace("CartPole-v1", "no id").replace("475", "high").replace("1e-4", "-1"))
    done = rlexp("check", str(path))
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] == done.stderr.splitlines()
    assert len(done.stderr.splitlines()) == 3


def test_check_reports_what_does_not_fit_this_machine(path: Path) -> None:
    done = rlexp("check", str(path), "-o", "num_workers=1000", "-o", "lr=1e-3")
    assert done.returncode == 4
    assert done.stderr.startswith("error: cartpole needs 1001 CPUs (1 driver + 1000 workers x 1), this machine has ")
    assert "hint:  -o config.num_workers=" in done.stderr
    assert "00000-APEX-CartPole-v1" in done.stdout


def test_json(path: Path) -> None:
    done = rlexp("check", str(path), "--json", "--seed", "7", "-o", "stop={}")
    printed = json.loads(done.stdout)
    assert done.returncode == 0
    assert [notice["message"] for notice in printed["notices"]] == [
        "cartpole has no stop, so it runs until it is interrupted"
    ]
    assert printed["problems"] == printed["envs"] == []
    assert printed["checked"][0] == "keys and values"
    assert printed["not_checked"] == ["whether the envs work (rlexp check --env makes them)"]
    assert printed["trials"][1] == {
        "index": 1,
        "name": "00001-APEX-CartPole-v1-lr=0.0001",
        "experiment": "cartpole",
        "run": "APEX",
        "env": "CartPole-v1",
        "varied": {"lr": 0.0001},
        "sample": 0,
        "seed": 7,
        "stop": {},
        "cpus": 1.0,
        "gpus": 0.0,
    }


def test_json_has_the_problems(path: Path) -> None:
    done = rlexp("check", str(path), "--json", "-o", "lr=abc")
    assert done.returncode == 2
    assert json.loads(done.stdout)["problems"] == [
        {"where": "-o lr=abc", "message": "config.lr must be a number > 0, got the string 'abc'", "hint": None}
    ]


def test_notices_go_to_stderr(path: Path) -> None:
    done = rlexp("check", str(path), "-o", "stop={}")
    assert done.stderr == f"notice: {path}:1:1  cartpole has no stop, so it runs until it is interrupted\n"


def test_tracebacks_only_with_debug(path: Path) -> None:
    assert "Traceback" not in rlexp("check", str(path), "-o", "lr=0").stderr
    assert "Traceback" in rlexp("check", str(path), "-o", "lr=0", "--debug").stderr


def test_version_help_and_wrong_options() -> None:
    assert rlexp("--version").stdout.startswith("rlexp ")
    assert "check" in rlexp("--help").stdout
    assert rlexp("check").returncode == 2
    assert rlexp("check", "--nonsense").returncode == 2


@pytest.mark.parametrize(
    "arguments", [["check", "{path}"], ["check", "{path}", "-o", "lr=0"], ["--help"], ["--version"]]
)
def test_nothing_heavy_is_imported(path: Path, arguments: list[str]) -> None:
    program = (
        "import sys, rlexp.cli\n"
        "try:\n    rlexp.cli.main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'torch', 'ray', 'gymnasium', 'numpy', 'rich', 'tensorboard'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    command = [sys.executable, "-c", program, *(argument.format(path=path) for argument in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_colours_only_on_a_terminal(path: Path) -> None:
    assert "\x1b" not in rlexp("check", str(path), "-o", "lr=0").stderr
    assert b"\x1b[31merror:" in on_terminal(path, {"NO_COLOR": ""})
    assert b"\x1b" not in on_terminal(path, {"NO_COLOR": "1"})


def test_check_on_80_columns_prints_whole_words_and_a_line_per_trial(path: Path) -> None:
    wrong = on_terminal(path, {"COLUMNS": "80", "NO_COLOR": "1"}, "-o", "stop.episode_reward_meann=1")
    right = on_terminal(path, {"COLUMNS": "80", "NO_COLOR": "1"}, "--allow-unknown")
    lines = [*wrong.decode().splitlines(), *right.decode().splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line.split()[-1] for line in lines if line.startswith("0000")] == ["lr=0.001", "lr=0.0001"]
    error = next(number for number, line in enumerate(lines) if line.startswith("error:"))
    assert lines[error + 1].startswith((" " * 7, "hint:  "))


def on_terminal(path: Path, environ: dict[str, str], *arguments: str) -> bytes:
    """Return what ``check`` prints to a pseudo-terminal; without ``arguments``, of a learning rate of 0."""
    mine, theirs = os.openpty()
    command = [sys.executable, "-m", "rlexp", "check", str(path), *(arguments or ("-o", "lr=0"))]
    subprocess.run(command, stderr=theirs, stdout=theirs, env={**os.environ, **environ}, timeout=60, check=False)
    os.close(theirs)
    printed = os.read(mine, 65536)
    os.close(mine)
    return printed


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("rollout", "did you mean rlexp evaluate?"),
        ("tune", "did you mean rlexp sweep?"),
        ("version", "did you mean rlexp --version?"),
        ("evaluat", "did you mean rlexp evaluate?"),
        ("zzz", "rlexp -h lists the commands"),
    ],
)
def test_unknown_command_has_a_hint(command: str, hint: str) -> None:
    done = rlexp(command, "x")
    assert done.returncode == 2
    assert done.stderr == f"error: unknown command {command}\nhint:  {hint}\n"


def test_list_in_an_override_has_a_hint(path: Path) -> None:
    done = rlexp("check", str(path), "-o", "config.gamma=[0.9, 0.99]")
    hint = "hint:  to try each of them, write -o 'config.gamma={grid_search: [0.9, 0.99]}'"
    assert hint in done.stderr.splitlines()


def test_run_prints_notices_of_renamed_keys_before_errors(path: Path) -> None:
    path.write_text(GOOD.replace("CartPole-v1", "LunarLander-v2").replace("num_workers: 0", "num_workers: 5000"))
    done = rlexp("run", str(path), "--out", str(path.parent / "out"))
    notice, error = done.stderr.splitlines()[:2]
    assert "LunarLander-v2 is LunarLander-v3 now" in notice
    assert error.startswith("error: ")
