"""Iterations end at the next milestone of a sweep or value of ``stop``: both are independent of the machine's speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.search.trial_scheduler import Milestones
from rlexp.tuning.stop_condition import iteration_bounds
from tests.behaviour.inline_trials import assigned, rows_of
from tests.behaviour.simulated_sweeps import simulated, sweep_of

LONG = {"timesteps_per_iteration": 1000, "min_iter_time_s": 5.0}
"""Iterations of the defaults, but for their length in seconds: nothing here may take so long."""


def steps_of(rows: list[dict[str, Any]]) -> list[int]:
    return [row["timesteps_total"] for row in rows]


@pytest.mark.key("stop", "min_iter_time_s")
def test_trial_ends_at_its_stop_although_an_iteration_lasts_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with assigned(tmp_path, LONG, stop={"timesteps_total": 300}) as assignment:
        rows = rows_of(assignment, monkeypatch)
    assert steps_of(rows) == [300]


@pytest.mark.key("stop", "timesteps_per_iteration")
def test_last_iteration_is_the_rest_until_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"timesteps_per_iteration": 1000, "learning_starts": 10_000, "buffer_size": 10_000}
    with assigned(tmp_path, config, stop={"timesteps_total": 2500}) as assignment:
        rows = rows_of(assignment, monkeypatch)
    assert steps_of(rows) == [1000, 2000, 2500]
    assert [row["timesteps_this_iter"] for row in rows] == [1000, 1000, 500]
    assert [row["done"] for row in rows] == [False, False, True]


@pytest.mark.key("stop")
def test_trial_ends_at_its_stop_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with assigned(tmp_path, LONG, stop={"time_total_s": 0.5}) as assignment:
        (row,) = rows_of(assignment, monkeypatch)
    assert 0.5 <= row["time_total_s"] < 3.0


@pytest.mark.key("stop")
def test_trial_ends_after_as_many_updates_as_its_stop_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with assigned(tmp_path, LONG, stop={"num_updates": 7}) as assignment:
        (row,) = rows_of(assignment, monkeypatch)
    assert row["info"]["num_updates"] == 7


@pytest.mark.parametrize("writes_checkpoint", [False, True])
def test_iterations_end_at_milestones(writes_checkpoint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    milestones = Milestones("timesteps_total", 100, 2.0, writes_checkpoint)
    with assigned(tmp_path, LONG, stop={"timesteps_total": 700}, checkpoint_at_end=False) as assignment:
        rows = rows_of(replace(assignment, milestones=milestones), monkeypatch)
        written = sorted(path.name for path in assignment.directory.glob("checkpoint_*"))
    assert steps_of(rows) == [100, 200, 400, 700]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3, 4]
    assert written == [f"checkpoint_00000{number}" for number in (1, 2, 3) if writes_checkpoint]


def test_iterations_end_at_milestones_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    milestones = Milestones("time_total_s", 0.2)
    with assigned(tmp_path, LONG, stop={"training_iteration": 3}) as assignment:
        rows = rows_of(replace(assignment, milestones=milestones), monkeypatch)
    passed = [milestones.passed_by(row["time_total_s"]) for row in rows]
    assert 0.0 < passed[0] < passed[1] < passed[2]
    assert rows[-1]["time_total_s"] < 3.0


def test_restarted_trial_goes_to_the_next_milestone_after_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    milestones = Milestones("timesteps_total", 200)
    stop = {"timesteps_total": 600}
    with assigned(tmp_path, LONG, stop=stop, checkpoint_freq=1) as assignment:
        assignment = replace(assignment, milestones=milestones)
        before = rows_of(assignment, monkeypatch, at_most=1)
        after = rows_of(assignment, monkeypatch)
    assert steps_of(before + after) == [200, 400, 600]
    assert [row["training_iteration"] for row in after] == [2, 3]


@pytest.mark.key("evaluation_interval", "checkpoint_freq")
def test_short_iterations_count_for_evaluations_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**LONG, "evaluation_interval": 2, "evaluation_num_episodes": 1, "evaluation_config": {"horizon": 5}}
    milestones = Milestones("timesteps_total", 100)
    with assigned(tmp_path, config, stop={"timesteps_total": 400}, checkpoint_freq=2) as assignment:
        rows = rows_of(replace(assignment, milestones=milestones), monkeypatch)
        written = sorted(path.name for path in assignment.directory.glob("checkpoint_*"))
    assert ["evaluation" in row for row in rows] == [False, True, False, True]
    assert written == ["checkpoint_000002", "checkpoint_000004"]


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
