"""A process that trains one trial after another computes what a new process computes, and keeps nothing of them.

Iterations end at the next milestone of a sweep or value of ``stop``: both are independent of the machine's speed.

A trial says what it does until its first result, and why it ends.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch

from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.ppo import PPOConfig
from rlexp.errors import EnvError
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import list_checkpoints, newest_checkpoint
from rlexp.runs.trial_files import PhaseWatch, end_phases, read_phase, write_phase
from rlexp.search.trial_scheduler import Milestones
from rlexp.tuning import stop_condition, trainable
from rlexp.tuning.assignment import ASSIGNMENT, Assignment
from rlexp.tuning.stop_condition import iteration_bounds, reached
from rlexp.tuning.trainable import ExperimentTrainable
from tests.lab.envs import Array, EndlessEnv
from tests.lab.sweeps import simulated, sweep_of
from tests.lab.trials import assigned, rows_of

PAYING_ENV = "tests.lab.envs:PayingEnv"
HALF_AS_MUCH = {"evaluation_config": {"env_config": {"pay": 0.5}}}
STOP = {"episode_reward_mean": 10, "training_iteration": 3}


@pytest.mark.key("checkpoint_evaluation_episodes", "stop")
@pytest.mark.parametrize(
    ("episodes", "config", "evaluated"),
    [
        (4, {}, [10.0]),
        (4, HALF_AS_MUCH, [5.0, None, None]),  # later ones have no time
        (0, HALF_AS_MUCH, [None]),
    ],
)
def test_a_trial_ends_at_a_reward_that_its_weights_reach(
    episodes: int,
    config: dict[str, Any],
    evaluated: list[float | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_condition, "SHARE", 0.0)
    keys: dict[str, Any] = {"env": PAYING_ENV, "stop": STOP, "checkpoint_evaluation_episodes": episodes}
    with assigned(tmp_path, config, **keys) as assignment:
        rows = rows_of(assignment, monkeypatch)
    assert [row["episode_reward_mean"] for row in rows] == [10.0] * len(evaluated)
    assert [row.get("evaluation", {}).get("episode_reward_mean") for row in rows] == evaluated


def test_a_checkpoint_says_what_its_weights_have_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with assigned(tmp_path, HALF_AS_MUCH, env=PAYING_ENV, stop={"episode_reward_mean": 5}) as assignment:
        rows_of(assignment, monkeypatch)
    (checkpoint,) = list_checkpoints(assignment.directory)
    metrics = read_checkpoint(checkpoint).metadata["metrics"]
    assert (metrics["episode_reward_mean"], metrics["evaluation"]["episode_reward_mean"]) == (10.0, 5.0)
    assert metrics["evaluation"]["episodes_this_iter"] == 20


LONG = {"timesteps_per_iteration": 1000, "min_iter_time_s": 5.0}
"""Iterations of the defaults, but for their length in seconds: nothing here may take so long."""


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["timesteps_total"] for row in rows]


Train = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Return the rows of a trial with some keys, whose iterations end at milestones too."""

    def rows(config: dict[str, Any], milestones: Milestones | None = None, **keys: Any) -> list[dict[str, Any]]:
        with assigned(tmp_path, config, **keys) as assignment:
            return rows_of(replace(assignment, milestones=milestones), monkeypatch)

    return rows


def written(folder: Path) -> list[str]:
    """Return the checkpoints of the only trial below a folder."""
    return sorted(path.name for path in folder.glob("out/run/*/checkpoint_*"))


@pytest.mark.key("stop", "min_iter_time_s")
def test_trial_ends_at_its_stop_although_an_iteration_lasts_longer(train: Train) -> None:
    assert steps_of(train(LONG, stop={"timesteps_total": 300})) == [300]


@pytest.mark.key("stop", "timesteps_per_iteration")
def test_last_iteration_is_the_rest_until_stop(train: Train) -> None:
    config = {"timesteps_per_iteration": 1000, "learning_starts": 10_000, "buffer_size": 10_000}
    rows = train(config, stop={"timesteps_total": 2500})
    assert steps_of(rows) == [1000, 2000, 2500]
    assert [row["timesteps_this_iter"] for row in rows] == [1000, 1000, 500]
    assert [row["done"] for row in rows] == [False, False, True]


@pytest.mark.key("stop")
def test_trial_ends_at_its_stop_by_time(train: Train) -> None:
    (row,) = train(LONG, stop={"time_total_s": 0.5})
    assert 0.5 <= row["time_total_s"] < 3.0


@pytest.mark.key("stop")
def test_trial_ends_after_as_many_updates_as_its_stop_says(train: Train) -> None:
    (row,) = train(LONG, stop={"num_updates": 7})
    assert row["info"]["num_updates"] == 7


@pytest.mark.parametrize("writes_checkpoint", [False, True])
def test_iterations_end_at_milestones(writes_checkpoint: bool, train: Train, tmp_path: Path) -> None:
    milestones = Milestones("timesteps_total", 100, 2.0, writes_checkpoint)
    rows = train(LONG, milestones, stop={"timesteps_total": 700}, checkpoint_at_end=False)
    assert steps_of(rows) == [100, 200, 400, 700]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]
    assert written(tmp_path) == [f"checkpoint_00000{number}" for number in (1, 2, 3) if writes_checkpoint]


def test_iterations_end_at_milestones_in_seconds(train: Train) -> None:
    milestones = Milestones("time_total_s", 0.2)
    rows = train(LONG, milestones, stop={"training_iteration": 3})
    passed = [milestones.passed_by(row["time_total_s"]) for row in rows]
    assert 0.0 < passed[0] < passed[1] < passed[2]
    assert rows[-1]["time_total_s"] < 3.0


def test_restarted_trial_goes_to_the_next_milestone_after_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assigned(tmp_path, LONG, stop={"timesteps_total": 600}, checkpoint_freq=1) as assignment:
        assignment = replace(assignment, milestones=Milestones("timesteps_total", 200))
        before = rows_of(assignment, monkeypatch, at_most=1)
        after = rows_of(assignment, monkeypatch)
    assert steps_of(before + after) == [200, 400, 600]
    assert [row["training_iteration"] for row in after] == [2, 3]


@pytest.mark.key("evaluation_interval", "checkpoint_freq")
def test_short_iterations_count_for_evaluations_and_checkpoints(train: Train, tmp_path: Path) -> None:
    config = {**LONG, "evaluation_interval": 2, "evaluation_num_episodes": 1, "evaluation_config": {"horizon": 5}}
    rows = train(config, Milestones("timesteps_total", 100), stop={"timesteps_total": 400}, checkpoint_freq=2)
    assert ["evaluation" in row for row in rows] == [False, True, False, True]
    assert written(tmp_path) == ["checkpoint_000002", "checkpoint_000004"]


@pytest.mark.parametrize(
    ("stop", "milestones", "before", "expected"),
    [
        ({"timesteps_total": 500, "episode_reward_mean": 9}, None, {}, 500),
        ({"timesteps_total": 500}, Milestones("timesteps_total", 300), {}, 300),
        ({"timesteps_total": 500}, Milestones("timesteps_total", 300), {"timesteps_total": 300}, 500),
        ({}, Milestones("timesteps_total", 300), {"timesteps_total": 301}, 600),
    ],
)
def test_bound_is_the_first_of_stop_and_milestone(
    stop: dict[str, float], milestones: Milestones | None, before: dict[str, float], expected: float
) -> None:
    assert iteration_bounds(stop, milestones, before).values["timesteps_total"] == expected


def test_stop_and_milestone_of_different_counters_are_both_bounds() -> None:
    bounds = iteration_bounds({"timesteps_total": 500}, Milestones("time_total_s", 10), {"time_total_s": 12.0})
    assert bounds.values == {"timesteps_total": 500, "time_total_s": 20}


def test_simulated_trials_end_their_rows_at_milestones_too(tmp_path: Path) -> None:
    search = {"scheduler": "pbt", "pbt": {"perturbation_interval": 150}}
    sweep = sweep_of(tmp_path, {"lr": {"grid_search": [0.1, 0.2]}}, search, stop={"timesteps_total": 420})
    simulation = simulated(sweep, tmp_path, lambda trial, steps: 1.0)
    for file in simulation.path.glob("*/result.json"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert steps_of(rows) == [100, 150, 250, 300, 400, 420]
        assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [steps for _, steps in simulation.ends.values()] == [420, 420]


REUSED_STOP = {"timesteps_total": 600}
TRIAL: dict[str, Any] = {"env": "CartPole-v1", "stop": REUSED_STOP, "config": {"noisy": True}}
OTHERS: dict[str, dict[str, Any]] = {
    "another algorithm, env and network": {
        "run": "APEX",
        "env": "CartPole-v1",
        "stop": REUSED_STOP,
        "config": {"model": {"fcnet_hiddens": [64, 64]}, "optimizer": {"num_replay_buffer_shards": 2}},
    },
    "an env that changes its process": {"env": f"{__name__}:DisturbingEnv", "stop": REUSED_STOP},
    "an env that raises": {"env": "tests.lab.envs:LateRaisingEnv", "stop": REUSED_STOP},
}
THREADED: dict[str, Any] = {
    "run": "APEX",
    "env": "CartPole-v1",
    "stop": REUSED_STOP,
    "config": {"num_workers": 1, "optimizer": {"num_replay_buffer_shards": 1}},
}
MEASURED = ("time", "date", "throughput", "_s", "timers", "bottleneck", "evaluation", "pid", "experiment_id")
"""Parts of the names of columns that differ between two runs of the same trial.

The last checkpoint of a trial is evaluated only where a twentieth of the trial's time is enough for it.
"""


class DisturbingEnv(EndlessEnv):
    """Changes what an env can change for its whole process."""

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        torch.set_num_threads(2)
        torch.set_default_dtype(torch.float64)
        np.seterr(all="raise")
        warnings.simplefilter("error")
        os.environ["DISTURBED"] = "yes"
        os.chdir("/")
        return super().step(action)


class TrialProcess(ExperimentTrainable):
    """A trial's process as Tune calls it, in this one and without Tune's own part."""

    def __init__(self) -> None:
        self._is_new = True

    def run(self, assignment: Assignment) -> list[dict[str, Any]]:
        """Train a trial to its end; return its rows."""
        begin: Callable[[dict[str, Any]], object] = self.setup if self._is_new else self.reset_config
        self._is_new = False
        begin({ASSIGNMENT: assignment})
        self.begin()
        rows: list[dict[str, Any]] = []
        while not (rows and rows[-1]["done"]):
            rows.append(self.step()["row"])
        return rows

    def outcome(self, folder: Path, keys: Mapping[str, Any]) -> tuple[list[Any], dict[str, bytes]]:
        """Train the trial of an experiment with ``keys``; return its rows and the weights in its last checkpoint."""
        folder.mkdir()
        without_ray = patch.object(trainable, "RayTaskPool", InlineTaskPool)
        with without_ray, assigned(folder, **keys) as assignment:
            rows = self.run(assignment)
            path = newest_checkpoint(assignment.directory)
        assert path is not None
        weights = read_checkpoint(path).copies("weights")
        return [_without_measured(row) for row in rows], {name: each.tobytes() for name, each in weights.items()}


def _without_measured(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_measured(value) if isinstance(value, dict) else value
        for name, value in row.items()
        if not any(part in name for part in MEASURED)
    }


def outcomes(folder: Path) -> list[Any]:
    """Return what TRIAL gives at first and after each of OTHERS; called in a new process."""
    process = TrialProcess()
    found = [process.outcome(folder / "first", TRIAL)]
    for number, (name, keys) in enumerate(OTHERS.items()):
        try:
            process.outcome(folder / f"before-{number}", keys)
        except EnvError:
            assert name == "an env that raises"
        found.append(process.outcome(folder / f"after-{number}", TRIAL))
    return found


def resources(folder: Path) -> list[tuple[int, int, int]]:
    """Return threads, open files and child processes after each of some trials; called in a new process."""
    process, this = TrialProcess(), psutil.Process()
    found = []
    for number in range(6):
        process.outcome(folder / str(number), THREADED if number % 2 else OTHERS["another algorithm, env and network"])
        found.append((threading.active_count(), this.num_fds(), len(this.children())))
    return found


def in_new_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function returns when a new process calls it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def test_trial_in_reused_process_equals_trial_in_new_process(tmp_path: Path) -> None:
    (rows, weights), *reused = in_new_process(outcomes, tmp_path)
    assert len(rows) > 1
    for name, (reused_rows, reused_weights) in zip(OTHERS, reused, strict=True):
        assert reused_rows == rows, f"after {name}"
        assert reused_weights == weights, f"after {name}"


def test_reused_process_keeps_no_threads_files_or_children(tmp_path: Path) -> None:
    found = in_new_process(resources, tmp_path)
    assert found[2:4] == found[4:6]


def hang_in_end() -> None:
    """Give a process another trial while an env of the one before does not close; called in a new process."""
    trainable.END_TIMEOUT_S = 0.2
    process = TrialProcess()
    with patch.object(process, "cleanup", threading.Event().wait):
        process.reset_config({})


def raise_in_end() -> None:
    """Give a process another trial while an env of the one before raises; called in a new process."""
    process = TrialProcess()
    with patch.object(process, "cleanup", side_effect=OSError):
        process.reset_config({})


@pytest.mark.parametrize("end", [hang_in_end, raise_in_end])
def test_process_ends_where_the_trial_before_cannot_be_ended(end: Callable[[], None]) -> None:
    process = multiprocessing.get_context("spawn").Process(target=end)
    process.start()
    process.join(60)
    assert process.exitcode == 1


def test_trial_reports_phases_until_its_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def write_and_keep(directory: Path, text: str) -> None:
        said.append(text)
        write_phase(directory, text)
        assert (directory / ".phase").read_text() == text

    monkeypatch.setattr("rlexp.runs.trial_files.write_phase", write_and_keep)
    with assigned(tmp_path, stop={"training_iteration": 2}, checkpoint_freq=1) as assignment:
        rows_of(assignment, monkeypatch, at_most=1)
        assert said == ["loading PyTorch", "creating the environments", "waiting for the first result"]
        assert not (assignment.directory / ".phase").exists()
        said.clear()
        rows_of(assignment, monkeypatch)
    assert said[1] == "reading checkpoint_000001"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"num_workers": 0}, "the environments"),
        ({"num_workers": 1}, "1 worker"),
        ({"num_workers": 3, "num_learners": 2}, "2 learners and 3 workers"),
        ({"num_workers": 0, "num_learners": 2}, "2 learners and the environments"),
    ],
)
def test_phase_names_the_processes_that_are_created(keys: dict[str, int], named: str) -> None:
    assert trainable.processes_of(PPOConfig.model_validate(keys)) == named


def test_phase_is_reported_once(tmp_path: Path) -> None:
    watch = PhaseWatch()
    assert watch.is_due()
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "creating 2 workers")
    assert watch.news(tmp_path) == "creating 2 workers"
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "waiting for the first result")
    assert watch.news(tmp_path) == "waiting for the first result"
    end_phases(tmp_path)
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "waiting for the first result")
    assert watch.news(tmp_path) == "waiting for the first result"
    write_phase(tmp_path / "removed", "nobody is stopped by a directory that is gone")


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"episode_reward_mean": 475}, "episode_reward_mean 486.7 reached 475"),
        ({"timesteps_total": 2_000_000}, "timesteps_total reached 2,000,000"),
        ({"timesteps_total": 3_000_000, "episode_reward_mean": 480.5}, "episode_reward_mean 486.7 reached 480.5"),
        ({"episode_reward_mean": 500, "episode_len_mean": 1, "missing": 0}, None),
    ],
)
def test_reason_of_the_end_of_a_trial(stop: dict[str, float], reason: str | None) -> None:
    row = {"episode_reward_mean": 486.74, "timesteps_total": 2_000_123, "episode_len_mean": float("nan")}
    found = reached(stop, row)
    assert (None if found is None else str(found)) == reason


def test_phase_is_never_read_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_phase(tmp_path, "loading PyTorch")
    read: list[str | None] = []
    write_text = Path.write_text

    def write_slowly(path: Path, text: str, **options: Any) -> int:
        written = write_text(path, "", **options)
        read.append(read_phase(tmp_path))
        return written + write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", write_slowly)
    write_phase(tmp_path, "creating 2 workers")
    assert (read, read_phase(tmp_path)) == (["loading PyTorch"], "creating 2 workers")
