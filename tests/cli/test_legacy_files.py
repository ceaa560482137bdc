"""The commands around files: explain, schema, convert, doctor, train, and the options of check and run."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlexp.processes.family import SESSION, TemporaryFolder
from rlexp.processes.locks import RunLock
from tests.cli.forked_commands import rlexp

OLD = """\
pong:
  run: APEX
  env: PongDeterministic-v4
  stop: {sampler_results/episode_reward_mean: 20}
  config: {num_env_runners: 64, gpu: true}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pong.yaml"
    path.write_text(OLD)
    return path


def test_an_old_file_is_accepted_with_fit(path: Path) -> None:
    assert rlexp("check", str(path)).returncode == 4
    done = rlexp("check", str(path), "--fit")
    assert done.returncode == 0
    assert "ALE/Pong-v5" in done.stdout
    assert f"notice: {path}:5:12  config.num_env_runners is config.num_workers now" in done.stderr
    assert f"notice: {path}:5:33  config.gpu" in done.stderr  # gpu is of another age than num_env_runners
    assert "It is left out; num_gpus: 1 asks for a GPU" in done.stderr


def test_a_converted_file_needs_no_notice(path: Path) -> None:
    converted = rlexp("convert", str(path))
    assert converted.returncode == 0
    path.write_text(converted.stdout)
    done = rlexp("check", str(path), "-o", "num_workers=0", "-o", "num_gpus=0")
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_keys_and_envs_may_be_allowed(path: Path) -> None:
    path.write_text("a: {run: DQN, env: maze, stop: {time_total_s: 1}, config: {lrr: 3}}\n")
    assert rlexp("check", str(path)).returncode == 2
    done = rlexp("check", str(path), "--allow-unknown", "--import", "tests.envs")
    assert done.returncode == 0
    assert "unknown key config.lrr (agent DQN): it is left out" in done.stderr


def test_explain() -> None:
    done = rlexp("explain", "num_env_runners")
    assert done.stdout.splitlines()[0] == "config.num_workers"
    assert "0 (DQN), 32 (APEX), 2 (PPO)" in done.stdout
    assert "not supported by rlexp: LSTM" in rlexp("explain", "use_lstm").stdout
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
    assert "gymnasium" in rlexp("doctor").stdout


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
        ([], "train needs a file, or --run and --env"),
        (["--run", "DQN"], "train needs a file, or --run and --env"),
        (["--run", "DQN", "--env", "CartPole-v1", "--config", "{"], "--config is not JSON"),
        (["--run", "DQN", "--env", "CartPole-v1", "--stop", "[]"], "--stop must be a JSON object"),
        (
            ["--run", "DQN", "--env", "CartPole-v1", "--stop", "10"],
            """for example --stop '{"timesteps_total": 10000}'""",
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


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("--run", ["APEX"], "rlexp run FILE -o run=APEX"),
        ("--stop", ['{"timesteps_total": 10}'], "rlexp run FILE -o stop.timesteps_total=10000"),
        ("--num-samples", ["1"], "rlexp run FILE -o num_samples=3"),
        ("--checkpoint-at-end", [], "rlexp run FILE -o checkpoint_at_end=true"),
    ],
)
def test_train_refuses_options_of_an_experiment_beside_a_file(
    path: Path, option: str, value: list[str], hint: str
) -> None:
    done = rlexp("train", "-f", str(path), option, *value)
    assert done.returncode == 2
    error, shown = done.stderr.splitlines()
    assert error == f"error: {option} cannot be combined with a file"
    assert shown == f"hint:  {hint} overrides a value in the file"


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
