"""The keys that stand beside ``config:``; each test fails where its key is accepted and ignored."""

from __future__ import annotations

import json
import string
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.cluster.room.machine import available_cpus
from rlexp.config.yaml.reader import to_yaml
from rlexp.errors import ConfigError, ResumeError
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import checkpoint_directory, list_checkpoints, write_checkpoint
from rlexp.runs.kept_checkpoints import keep_best
from rlexp.runs.run_directory import RunDirectory
from tests.lab.agents import TINY
from tests.lab.trials import assigned, rows_of, trials_of

Train = Callable[..., tuple[list[dict[str, Any]], Path]]
REPOSITORY = Path(__file__).parents[2]
NEVER = 10**9


def iterations_with_checkpoints(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("checkpoint_")) for path in list_checkpoints(directory))


@pytest.mark.key("stop")
@pytest.mark.parametrize(
    ("stop", "iterations"),
    [
        ({"training_iteration": 3}, 3),
        ({"timesteps_total": 600}, 3),
        ({"training_iteration": 9, "info/num_steps_sampled": 400}, 2),
    ],
)
def test_the_first_metric_to_reach_its_number_stops_a_trial(
    stop: dict[str, float], iterations: int, train: Train
) -> None:
    rows, _ = train(stop=stop)
    assert [row["done"] for row in rows] == [False] * (iterations - 1) + [True]


@pytest.mark.key("checkpoint_freq", "checkpoint_at_end")
@pytest.mark.parametrize(
    ("freq", "at_end", "written"), [(0, False, []), (2, False, [2, 4]), (0, True, [5]), (2, True, [2, 4, 5])]
)
def test_checkpoints_are_written_at_their_period_and_at_the_end(
    freq: int, at_end: bool, written: list[int], train: Train
) -> None:
    _, folder = train(checkpoint_freq=freq, checkpoint_at_end=at_end, stop={"training_iteration": 5})
    assert iterations_with_checkpoints(folder) == written


@pytest.mark.key("keep_checkpoints_num", "checkpoint_score_attr")
@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, [3, 4, 5]),
        ({"keep_checkpoints_num": None}, [1, 2, 3, 4, 5]),
        ({"keep_checkpoints_num": 2}, [4, 5]),
        ({"keep_checkpoints_num": 2, "checkpoint_score_attr": "timesteps_total"}, [4, 5]),
        ({"keep_checkpoints_num": 2, "checkpoint_score_attr": "min-timesteps_total"}, [1, 2, 5]),
    ],
)
def test_the_best_checkpoints_and_the_newest_are_kept(keys: dict[str, Any], kept: list[int], train: Train) -> None:
    _, folder = train(checkpoint_freq=1, stop={"training_iteration": 5}, **keys)
    assert iterations_with_checkpoints(folder) == kept


@pytest.mark.key("storage")
def test_checkpoints_are_copied_to_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = (tmp_path / "copies").as_uri()
    with assigned(tmp_path, storage=url, stop={"training_iteration": 2}) as assignment:
        rows_of(assignment, monkeypatch)
    with RunDirectory.open(assignment.directory.parent) as directory:
        (written,) = list_checkpoints(assignment.directory)
        directory.trial_checkpoint(assignment.trial, written, {})
        assert directory.copies.finish() == []
    (copy,) = (tmp_path / "copies").rglob(written.name)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == {
        path.name: path.read_bytes() for path in written.iterdir()
    }
    assert read_checkpoint(copy).metadata["experiment"]["storage"] == url


@pytest.mark.parametrize("url", ["copies", "/mnt/copies", "s3:/bucket", "s3://", "S3 ://bucket"])
def test_storage_is_a_url(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a URL, such as s3://bucket/folder"):
        trials_of(tmp_path, storage=url)


def write_scored(directory: Path, scores: list[float | None]) -> None:
    """Write checkpoints 1, 2 and so on with a mean reward each."""
    for number, score in enumerate(scores, start=1):
        metrics = {"episode_reward_mean": score, "info": {"learner": {"loss": score}}}
        arrays = {"weights": {"w": np.zeros(1)}}
        write_checkpoint(checkpoint_directory(directory, number), arrays, {}, {"metrics": metrics})


@pytest.mark.key("keep_checkpoints_num", "checkpoint_score_attr")
@pytest.mark.parametrize(
    ("count", "attribute", "kept"),
    [
        (1, "episode_reward_mean", [2, 6]),
        (2, "episode_reward_mean", [2, 5, 6]),
        (1, "min-episode_reward_mean", [4, 6]),
        (2, "min-info/learner/loss", [1, 4, 6]),
        (6, "episode_reward_mean", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_best_by_a_metric_are_kept_and_those_without_it_are_the_worst(
    count: int, attribute: str, kept: list[int], tmp_path: Path
) -> None:
    write_scored(tmp_path, [2.0, 9.0, None, -1.0, 7.0, float("nan")])
    keep_best(tmp_path, count, attribute)
    assert iterations_with_checkpoints(tmp_path) == kept


@pytest.mark.key("keep_checkpoints_num")
@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([2.0, 9.0, None, -1.0, 7.0, 1.0], [2, 4, 5, 6]),
        ([2.0, 9.0, None, 1.0, 10.0, 1.0], [4, 5, 6]),
        ([None] * 6, [4, 5, 6]),
        ([9.0, 9.0, 1.0, 1.0, 1.0, 1.0], [2, 4, 5, 6]),
    ],
)
def test_by_default_the_newest_three_are_kept_and_the_one_that_is_played(
    rewards: list[float | None], kept: list[int], tmp_path: Path
) -> None:
    write_scored(tmp_path, rewards)
    keep_best(tmp_path, "auto", "training_iteration")
    assert iterations_with_checkpoints(tmp_path) == kept


def test_a_damaged_checkpoint_is_the_first_to_go(tmp_path: Path) -> None:
    write_scored(tmp_path, [9.0, 1.0, 2.0])
    (checkpoint_directory(tmp_path, 1) / "manifest.json").write_text("{")
    keep_best(tmp_path, 2, "episode_reward_mean")
    assert iterations_with_checkpoints(tmp_path) == [2, 3]


@pytest.mark.key("time_budget_s")
def test_a_trial_ends_when_the_time_is_over_even_within_an_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"timesteps_per_iteration": NEVER, "learning_starts": 1000}
    with assigned(tmp_path, config, time_budget_s=1.0) as assignment:
        began = time.time()
        assert assignment.deadline_s is not None
        assert assignment.deadline_s == pytest.approx(began + 1.0, abs=0.5)
        (row,) = rows_of(assignment, monkeypatch)
    assert row["done"]
    assert row["timesteps_total"] < NEVER
    assert time.time() >= assignment.deadline_s
    assert iterations_with_checkpoints(assignment.directory) == [1]


@pytest.mark.key("time_budget_s")
def test_without_a_budget_there_is_no_deadline(tmp_path: Path) -> None:
    with assigned(tmp_path, time_budget_s=None) as assignment:
        assert assignment.deadline_s is None


@pytest.mark.key("restore")
def test_a_trial_goes_on_from_a_checkpoint(train: Train) -> None:
    _, first = train(below="first", checkpoint_at_end=True, stop={"training_iteration": 2})
    (path,) = list_checkpoints(first)
    keys: dict[str, Any] = {"restore": str(path), "checkpoint_at_end": True, "stop": {"training_iteration": 3}}
    (row,), second = train({"lr": 1e-12}, "second", **keys)
    assert (row["training_iteration"], row["timesteps_total"]) == (3, 600)
    before, after = (read_checkpoint(each).arrays["weights"] for each in (path, *list_checkpoints(second)))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, atol=1e-7)


@pytest.mark.key("restore")
def test_a_checkpoint_that_is_not_there_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="does not exist"), assigned(tmp_path, restore=str(tmp_path / "absent")):
        pass


@pytest.mark.key("seed")
def test_the_same_file_gives_the_same_weights_and_another_seed_does_not(train: Train) -> None:
    def weights(number: int, seed: int) -> dict[str, bytes]:
        _, folder = train({"seed": seed}, f"{number}", checkpoint_at_end=True, stop={"training_iteration": 2})
        (path,) = list_checkpoints(folder)
        return {name: array.tobytes() for name, array in read_checkpoint(path).arrays["weights"].items()}

    first, again, other = (weights(number, seed) for number, seed in enumerate((3, 3, 4)))
    assert first == again
    assert all(first[name] != other[name] for name in first)


@pytest.mark.key("num_samples")
@pytest.mark.parametrize("num_samples", [1, 3])
def test_each_variant_runs_so_often_with_other_seeds(num_samples: int, tmp_path: Path) -> None:
    trials = trials_of(tmp_path, {"gamma": {"grid_search": [0.9, 0.99]}}, num_samples=num_samples)
    assert len(trials) == 2 * num_samples
    for gamma in (0.9, 0.99):
        seeds = {trial.experiment.config.seed for trial in trials if trial.experiment.config.gamma == gamma}
        assert len(seeds) == num_samples


PROCESSES = """
patient:
  run: DQN
  env: tests.lab.failing_env:FailsOnceEnv
  num_samples: 2
  max_failures: 1
  checkpoint_freq: 1
  keep_checkpoints_num: 1
  stop: {{training_iteration: 4}}
  config: {{SMALL, env_config: {{failed: {flag}}}}}
impatient:
  run: APEX
  env: tests.lab.failing_env:FailsOnceEnv
  checkpoint_freq: 1
  stop: {{training_iteration: 4}}
  config: {{SMALL, num_workers: 0, env_config: {{failed: {flag}, always: true}}}}
"""


@pytest.mark.ray
@pytest.mark.key("max_failures", "run", "env", "num_samples", "stop", "checkpoint_freq")
def test_trials_that_fail_start_again_as_often_as_they_may(tmp_path: Path) -> None:
    small = {
        "sample_batch_size": 10,
        "timesteps_per_iteration": 40,
        "min_iter_time_s": 0,
        "buffer_size": 1000,
        "learning_starts": 40,
        "train_batch_size": 8,
        "num_cpus_for_driver": 0.5,
        "seed": 3,
        "horizon": 20,
    }
    text = PROCESSES.format(flag=tmp_path / "failed").replace("SMALL", json.dumps(small)[1:-1])
    (tmp_path / "failing.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "rlexp", "run", str(tmp_path / "failing.yaml"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1, done.stderr
    run = json.loads((tmp_path / "failing" / "run.json").read_text())
    assert [trial["status"] for trial in run["trials"]] == ["TERMINATED", "TERMINATED", "ERROR"]
    assert (tmp_path / "failed").exists()
    patient, impatient = run["trials"][:2], run["trials"][2]
    assert len({trial["seed"] for trial in patient}) == 2
    resolved = (tmp_path / "failing" / "resolved.yaml").read_text()
    assert [line for line in resolved.splitlines() if line[:1].isalpha()] == ["patient:", "impatient:"]
    for trial in patient:
        folder = tmp_path / "failing" / trial["directory"]
        rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
        assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4], "it goes on from its last checkpoint"
        assert iterations_with_checkpoints(folder) == [4]
        assert "-DQN-" in trial["directory"]
    assert "-APEX-" in impatient["directory"]
    assert "this env fails" in (tmp_path / "failing" / impatient["directory"] / "error.txt").read_text()


@pytest.mark.ray
@pytest.mark.key("reuse_actors")
@pytest.mark.parametrize(
    ("reuse", "ends", "processes"),
    [
        (True, ["well", "raise", "well-2", "die", "well-3"], "AABBC"),
        pytest.param(False, ["well", "raise"], "AB", marks=pytest.mark.slow),
    ],
)
def test_process_trains_trials_until_one_fails_or_cannot_be_ended(
    tmp_path: Path, reuse: bool, ends: list[str], processes: str
) -> None:
    env_config = {"file": str(tmp_path / "processes"), "how": {"grid_search": ends}}
    config = {**TINY, "num_cpus_for_driver": available_cpus(), "horizon": 20, "env_config": env_config}
    entry = {"run": "DQN", "env": "tests.lab.failing_env:RecordedProcessEnv", "stop": {"timesteps_total": 400}}
    (tmp_path / "small.yaml").write_text(to_yaml({"small": {**entry, "reuse_actors": reuse, "config": config}}))
    command = [sys.executable, "-m", "rlexp", "run", str(tmp_path / "small.yaml"), "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    run = json.loads((tmp_path / "small" / "run.json").read_text())
    statuses = ["ERROR" if end == "raise" else "TERMINATED" for end in ends]
    assert [trial["status"] for trial in run["trials"]] == statuses
    lines = [line.split() for line in (tmp_path / "processes").read_text().splitlines()]
    process_of = {how: pid for pid, how in lines}
    letters = dict(zip(dict.fromkeys(process_of[end] for end in ends), string.ascii_uppercase, strict=False))
    assert "".join(letters[process_of[end]] for end in ends) == processes
