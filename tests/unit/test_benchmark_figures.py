"""What benchmarks compute from what they measured."""

from __future__ import annotations

import pytest

from benchmarks.comparison import median_of
from benchmarks.ppo import COMMAND, RLLIB, SB3, ratios
from benchmarks.ppo_programs import Point, figures_of
from benchmarks.ppo_tasks import TASKS

POINTS = [
    Point(0.0, 0, None, 10.0),
    Point(1.0, 100, 20.0, 10.5),
    Point(2.0, 200, 60.0, 11.0),
    Point(4.0, 400, 50.0, 12.0),
]


def test_median_of_counts_what_was_never_reached_as_more_than_all() -> None:
    assert median_of([3.0, None, 1.0]) == 3
    assert median_of([None, None, 1.0]) is None


def test_figures_of_a_run_that_reached_its_goal() -> None:
    figures = figures_of(POINTS, 55)
    assert (figures["goal_s"], figures["goal_steps"]) == (2, 200)
    assert (figures["train_s"], figures["steps"], figures["reward"]) == (4, 400, 50)
    assert figures["steps_per_s"] == 100
    assert figures["steps_per_cpu_s"] == 200


def test_figures_of_a_run_without_its_first_iteration() -> None:
    figures = figures_of(POINTS[1:], 100)
    assert figures["goal_s"] is None
    assert figures["steps_per_s"] == 100
    assert figures["steps_per_cpu_s"] == 200


def test_ratios_are_of_the_peers_that_were_measured() -> None:
    ours = {"goal_s": None, "goal_steps": 30.0, "steps_per_s": 900.0, "steps_per_cpu_s": 800.0, "command_s": 5.0}
    peers = {"goal_s": 20.0, "goal_steps": 60.0, "steps_per_s": 300.0, "steps_per_cpu_s": None, "command_s": 20.0}
    (line,) = ratios(TASKS[0], {SB3: peers, COMMAND: ours})
    assert (line["program"], line["peer"], line["goal_s"], line["steps_per_cpu_s"]) == (COMMAND, SB3, None, None)
    assert (line["goal_steps"], line["steps_per_s"]) == (0.5, pytest.approx(3.0))
    assert not ratios(TASKS[0], {RLLIB: peers})
