"""``key=value`` words beside ``-o``: what they override, in which order, and how errors name them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.forked_commands import rlexp
from tests.unit.run_results.run_folders import MadeTrial, make_run

FILE = """\
cartpole:
  run: DQN
  env: CartPole-v1
  config: {num_workers: 0, seed: 1}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cartpole.yaml"
    path.write_text(FILE)
    return path


def seeds(*words: object, cwd: Path | None = None) -> list[int]:
    done = rlexp("check", "--json", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [trial["seed"] for trial in json.loads(done.stdout)["trials"]]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["config.seed=2"], [2]),
        (["seed=2"], [2]),
        (["seed=2", "-o", "seed=3"], [3]),
        (["-o", "seed=3", "seed=2"], [2]),
        (["seed=2", "-o", "seed=3", "config.seed=4", "-o", "config.seed=5"], [5]),
        (["seed={grid_search: [2, 3]}"], [2, 3]),
        (["--allow-unknown", "seed=2", "env_config.a.b=1", "stop.info/num_steps_trained=5"], [2]),
        (["-oseed=2"], [2]),
    ],
)
def test_words_override_as_the_option_does(path: Path, words: list[str], expected: list[int]) -> None:
    assert seeds(path, *words) == expected
    assert seeds(*words, path) == expected, "before the file as well"


def test_an_override_may_be_longer_than_any_name_of_a_file(path: Path) -> None:
    long = "{grid_search: [" + ", ".join(map(str, range(100))) + "]}"
    assert len(long) > 255
    assert seeds(path, f"seed={long}") == list(range(100))


def test_an_existing_file_is_no_override(path: Path) -> None:
    folder = path.parent
    (folder / "seed=2").write_text(FILE.replace("seed: 1", "seed: 3"))
    assert seeds("seed=2", cwd=folder) == [3]
    assert seeds("seed=2", "config.seed=4", cwd=folder) == [4]


def test_after_two_dashes_words_are_files(path: Path) -> None:
    done = rlexp("check", path, "--", "lr=1e-4")
    assert done.returncode == 2
    assert "lr=1e-4  path does not exist" in done.stderr


def test_values_of_options_are_no_overrides(path: Path) -> None:
    done = rlexp("run", path, "--dry-run", "--name", "seed=2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"][0]["seed"] == 1


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("config.lrr=1e-4", "config.lrr=1e-4  unknown key config.lrr"),
        ("config.lr=fast", "config.lr=fast  config.lr must be a number > 0, got the string 'fast'"),
    ],
)
def test_errors_name_the_word(path: Path, word: str, message: str) -> None:
    done = rlexp("check", path, word)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.replace("error: ", "error: -o ", 1) == rlexp("check", path, "-o", word).stderr
    assert json.loads(rlexp("check", "--json", path, word).stdout)["problems"][0]["where"] == word


@pytest.mark.parametrize(
    "command", [["run", "--dry-run"], ["sweep", "--dry-run", "--sweep", "gamma=0.9,0.99"], ["check"]]
)
def test_every_command_with_a_file_takes_words(path: Path, command: list[str]) -> None:
    done = rlexp(*command, path, "seed=2", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert command[0] == "sweep" or [trial["seed"] for trial in printed["trials"]] == [2]
    assert rlexp(*command, path, "seed=two").returncode == 2


def test_submit_takes_words(path: Path) -> None:
    done = rlexp("submit", path, "lrr=2", "--board", "redis://127.0.0.1:9", RLEXP_BOARD=None)
    assert done.returncode == 2
    assert "lrr=2  unknown key" in done.stderr


def test_resume_takes_words(tmp_path: Path) -> None:
    trials = [MadeTrial([1.0, 2.0], seed, {"lr": lr}) for seed, lr in ((1, 0.1), (2, 0.2))]
    run = make_run(tmp_path / "results" / "grid", trials)
    done = rlexp("resume", run, "lr=0.3")
    assert done.returncode == 3
    assert "lr=0.3: lr cannot change when" in done.stderr
    assert "-o lr=0.3" not in done.stderr
