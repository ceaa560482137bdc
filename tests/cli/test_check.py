"""``rlexp check`` as its user meets it: a process, its output and its exit code.

The commands around files: explain, schema, convert, doctor, train, and the options of check and run.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from rlexp.cluster.session import OWN
from rlexp.commands.answers import check_plan
from rlexp.config.load import load_plan
from rlexp.errors import UsageError
from rlexp.processes.family import SESSION, TemporaryFolder
from rlexp.processes.locks import RunLock
from tests.cli.forked_commands import on_terminal, rlexp, rlexp_in_new_process

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
    (path.parent / "downloaded.py").write_text("from tests.lab.envs import CountingEnv as Maze\n")
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


def test_what_is_missing_and_what_does_not_fit_are_reported_together(path: Path) -> None:
    done = rlexp("check", str(path), "-o", "env={grid_search: [nope:A, nope:B]}", "-o", "num_workers=1000")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2
    assert [error.partition("  ")[2] for error in errors[:1]] == ["envs nope:A, nope:B: module nope does not exist"]
    assert "needs 1001 CPUs" in errors[1]
    assert len(errors) == 2


def test_a_starting_point_that_is_not_here_is_reported_too(path: Path) -> None:
    missing = path.parent / "none"
    wanted = f"error: restore: path {missing} does not exist\n"
    assert rlexp("check", path, "-o", f"restore={path.parent}").returncode == 0  # what is there is not read
    other = rlexp("check", path, "-o", "restore=~nobody-of-this-name/run", cwd=path.parent)
    assert other.stderr.startswith(f"error: restore: path {path.parent}/~nobody-of-this-name/run does not exist\n")
    for words, errors in {(): 1, ("num_workers=1000",): 2}.items():
        for command in (["check"], ["run", "--dry-run"]):
            done = rlexp(*command, path, f"restore={missing}", *words)
            assert wanted in done.stderr
            assert (done.returncode != 0, done.stderr.count("error: ")) == (True, errors)


LONG = "x" * 5000


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "FILE", "--out", LONG], ["run", "--algo", "DQN", "--env", LONG], ["check", "FILE", f"env={LONG}"]),
        *(["check", "FILE", f"restore={LONG}"], ["init", LONG], ["init", LONG, "--env-class", "Maze"]),
        *([command, LONG] for command in ("check", "convert", "evaluate", "export", "resume", "ls", "logs", "prune")),
        *([command, f"{LONG}/run"] for command in ("evaluate", "resume", "compare", "tensorboard")),
    ],
    ids=lambda words: " ".join(word[:12] for word in words),
)
def test_names_that_no_file_can_have_are_errors(path: Path, words: list[str]) -> None:
    done = rlexp(*(path if word == "FILE" else word for word in words), cwd=path.parent)
    assert done.returncode in {2, 3}
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_null_character_is_no_part_of_a_path(path: Path) -> None:
    path.write_text(GOOD.replace("  stop:", '  restore: "a\\0b"\n  stop:'))
    done = rlexp("check", path)
    assert done.stderr.startswith(f"error: {path}:4:12  restore must be a path, which has no null character, got ")


def test_videos_that_cannot_be_written_are_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", without("imageio_ffmpeg", find_spec))
    check_plan(lambda: load_plan([path]), OWN, as_json=False)
    with pytest.raises(UsageError, match="monitor: true writes videos") as caught:
        check_plan(lambda: load_plan([path], ["monitor=true"]), OWN, as_json=False)
    assert caught.value.hint == "pip install 'rlexp[video]'"


def without(package: str, found: Callable[[str], ModuleSpec | None]) -> Callable[[str], ModuleSpec | None]:
    return lambda name: None if name == package else found(name)


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


def test_tracebacks_only_with_debug(path: Path) -> None:
    assert "Traceback" not in rlexp("check", str(path), "-o", "lr=0").stderr
    assert "Traceback" in rlexp("check", str(path), "-o", "lr=0", "--debug").stderr


def test_version_help_and_wrong_options() -> None:
    assert rlexp("--version").stdout.startswith("rlexp ")
    assert "check" in rlexp("--help").stdout
    assert rlexp("check").returncode == 2
    assert rlexp("check", "--nonsense").returncode == 2


def test_colours_only_on_a_terminal(path: Path) -> None:
    assert "\x1b" not in rlexp("check", str(path), "-o", "lr=0").stderr
    assert "\x1b[31merror:" in on_terminal("check", path, "lr=0", NO_COLOR="")
    assert "\x1b" not in on_terminal("check", path, "lr=0", NO_COLOR="1")


def test_check_on_80_columns_prints_whole_words_and_a_line_per_trial(path: Path) -> None:
    wrong, right = (
        on_terminal("check", path, *words, COLUMNS="80", NO_COLOR="1")
        for words in (["stop.episode_reward_meann=1"], ["--allow-unknown"])
    )
    lines = [*wrong.splitlines(), *right.splitlines()]
    assert max(map(len, lines)) <= 80
    assert [line.split()[-1] for line in lines if line.startswith("0000")] == ["lr=0.001", "lr=0.0001"]
    error = next(number for number, line in enumerate(lines) if line.startswith("error:"))
    assert lines[error + 1].startswith((" " * 7, "hint:  "))


def test_run_prints_notices_of_renamed_keys_before_errors(path: Path) -> None:
    path.write_text(GOOD.replace("CartPole-v1", "LunarLander-v2").replace("num_workers: 0", "num_workers: 5000"))
    done = rlexp("run", str(path), "--out", str(path.parent / "out"))
    notice, error = done.stderr.splitlines()[:2]
    assert "LunarLander-v2 is LunarLander-v3 now" in notice
    cpus = len(os.sched_getaffinity(0))
    fits = f"cartpole needs 5001 CPUs (1 driver + 5000 workers x 1), this machine has {cpus}"
    assert (done.returncode, error.startswith(f"error: {fits}")) == (4, True)
    assert not (path.parent / "out").exists()


OLD = """\
pong:
  run: APEX
  env: PongDeterministic-v4
  stop: {sampler_results/episode_reward_mean: 20}
  config: {num_env_runners: 64, gpu: true}
"""


@pytest.fixture
def legacy_file(tmp_path: Path) -> Path:
    path = tmp_path / "pong.yaml"
    path.write_text(OLD)
    return path


def test_an_old_file_is_accepted_with_fit(legacy_file: Path) -> None:
    assert rlexp("check", str(legacy_file)).returncode == 4
    done = rlexp("check", str(legacy_file), "--fit")
    assert done.returncode == 0
    assert "ALE/Pong-v5" in done.stdout
    assert f"notice: {legacy_file}:5:12  config.num_env_runners is config.num_workers now" in done.stderr
    assert f"notice: {legacy_file}:5:33  config.gpu" in done.stderr  # gpu is of another age than num_env_runners
    assert "It is left out; num_gpus: 1 asks for a GPU" in done.stderr


def test_letters_that_the_terminal_lacks_are_written(tmp_path: Path) -> None:
    file = tmp_path / "letters.yaml"
    keys = "config: {num_workers: 0, env_config: {coin: {grid_search: [\u20ac, \u20bf]}}}"
    file.write_text(
        f"# \u2192\na:\n  run: PPO\n  env: CartPole-v1\n  stop: {{timesteps_total: 9}}\n  {keys}\n", "utf-8"
    )
    checked = rlexp_in_new_process("check", str(file), PYTHONIOENCODING="latin-1")
    assert (checked.returncode, "coin=\\u20ac" in checked.stdout) == (0, True)
    converted = rlexp_in_new_process("convert", str(file), PYTHONIOENCODING="latin-1")
    assert (converted.returncode, "# \u2192" in converted.stdout) == (0, True)


def test_a_converted_file_needs_no_notice(legacy_file: Path) -> None:
    converted = rlexp("convert", str(legacy_file))
    assert converted.returncode == 0
    legacy_file.write_text(converted.stdout)
    done = rlexp("check", str(legacy_file), "-o", "num_workers=0", "-o", "num_gpus=0")
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_keys_and_envs_may_be_allowed(legacy_file: Path) -> None:
    legacy_file.write_text("a: {run: DQN, env: maze, stop: {time_total_s: 1}, config: {lrr: 3}}\n")
    assert rlexp("check", str(legacy_file)).returncode == 2
    done = rlexp("check", str(legacy_file), "--allow-unknown", "--import", "tests.lab.envs")
    assert done.returncode == 0
    assert "unknown key config.lrr (agent DQN): it is left out" in done.stderr


def test_explain() -> None:
    done = rlexp("explain", "num_env_runners")
    assert done.stdout.splitlines()[0] == "config.num_workers"
    defaults = "32 (APEX, APEX_DDPG, APEX_R2D2), 2 (PPO, A2C, A3C, DDPPO, IMPALA, APPO, ARS, R2D2), 10 (ES)"
    assert defaults in " ".join(done.stdout.split())
    assert "not supported by rlexp: attention" in rlexp("explain", "use_attention").stdout
    assert "config.n_step" in rlexp("explain", "apex").stdout
    assert rlexp("explain").returncode == 0
    wrong = rlexp("explain", "num_wokers")
    assert (wrong.returncode, wrong.stderr.splitlines()[1]) == (2, "hint:  did you mean num_workers?")


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "DQN"], ["explain", "num_gpus"]])
def test_explanations_are_80_columns_wide(arguments: list[str]) -> None:
    assert max(map(len, rlexp(*arguments).stdout.splitlines())) <= 80


def test_schema_and_doctor() -> None:
    assert json.loads(rlexp("schema").stdout)["$schema"].startswith("http://json-schema.org/draft-07")
    condition = json.loads(rlexp("doctor", "--json").stdout)
    assert condition["cpus"] >= 1
    assert condition["pydantic"]
    assert [each for each in condition["shortcuts"] if each["active"] == (each["reason"] is not None)] == []
    printed = rlexp("doctor", RLEXP_QUICK_START="0").stdout
    assert "gymnasium" in printed
    assert re.search(r"\nshortcut: fork server +off: RLEXP_QUICK_START=0\nshortcut: small services +off", printed)
    assert re.search(r"\nshortcut: fused Adam +active\n", printed)


def test_doctor_finds_what_a_killed_command_left_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, lock = TemporaryFolder(), TemporaryFolder()
    dead, running, foreign = killed.path, lock.path, tmp_path / "rlexp-other"
    for folder in (dead, running, foreign):
        (folder / "ray").mkdir(parents=True)
        (folder / "ray" / "file").write_bytes(b"x" * 2**20)
    killed.release()
    RunLock(foreign).release()
    with leaving_behind(dead) as process:
        found = json.loads(rlexp("doctor", "--json", TMPDIR=str(tmp_path)).stdout)
        assert [(each["folder"], each["processes"]) for each in found["leftovers"]] == [(str(dead), [process.pid])]
        assert found["leftovers"][0]["bytes"] >= 2**20
        assert str(dead) in rlexp("doctor", "--clean", TMPDIR=str(tmp_path)).stdout
        assert process.wait(10) < 0
    assert [folder.exists() for folder in (dead, running, foreign)] == [False, True, True]
    assert "killed commands" not in rlexp("doctor", TMPDIR=str(tmp_path)).stdout
    lock.release()


@contextmanager
def leaving_behind(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the session in a folder."""
    words = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(words, env={**os.environ, SESSION: str(folder)}, stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()  # for a moment it has no environment at all
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "train needs a file, or --algo and --env"),
        (["--run", "DQN"], "train needs a file, or --algo and --env"),
        (["--run", "DQN", "--env", "CartPole-v1", "--config", "{"], "--config is not JSON"),
        (["--run", "DQN", "--env", "CartPole-v1", "--stop", "[]"], "--stop must be a JSON object"),
        (
            ["--run", "DQN", "--env", "CartPole-v1", "--stop", "10"],
            """or --stop '{"timesteps_total": 10000}'""",
        ),
        (["--run", "DQN", "--env", "CartPole-v1", "--config", '{"lrr": 1}'], "unknown key config.lrr (agent DQN)"),
        (["-f", "none.yaml"], "path does not exist"),
        (["file", "none.yaml"], "path does not exist"),
    ],
)
def test_train_with_options_of_rllib(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = rlexp("train", *arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert tempfile.gettempdir() not in done.stderr.replace(str(tmp_path), "")


def test_errors_and_notices_of_train_name_the_options(tmp_path: Path) -> None:
    config = {"lrr": 1, "num_gpus": 0, "tf_session_args": {"x": 1}}
    flags = ["--run", "DQN", "--env", "Nope-v0", "--stop", '{"episode_reward": 1}', "--config", json.dumps(config)]
    done = rlexp("train", *flags, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    errors = [line.removeprefix("error: ").split()[0] for line in done.stderr.splitlines() if line.startswith("error")]
    assert sorted(errors) == ["--config", "--env", "--stop"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "check", "convert"])
def test_a_directory_is_no_experiment_file(command: str, tmp_path: Path) -> None:
    done = rlexp(command, str(tmp_path))
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {tmp_path}  is a directory")
    assert "name a file, for example" in done.stderr
