"""The programs that benchmarks/ppo.py compares: each trains one task with one seed, and returns its figures."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.cpu_meter import CpuMeter
from benchmarks.ppo_tasks import Task
from benchmarks.processes import PEERS_ENVIRONMENT, in_own_process, run_command, run_experiment
from rlexp.agents.registry import agent_class
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.experiment import Experiment
from rlexp.config.load import load_plan
from rlexp.tuning.stop_condition import iteration_bounds, reached

PEERS = Path(__file__).with_name("ppo_peers.py")
REWARD = "episode_reward_mean"
STEPS = "timesteps_total"
EPISODES = 100
"""How many episodes a reward must be the mean of."""
START_TIMEOUT_S = 120.0
"""Bound of what starting and ending takes, beyond the seconds of training."""

Figures = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """Where training was after so many seconds."""

    seconds: float
    steps: int
    reward: float | None
    """Mean return of the last 100 episodes; None before there are so many."""
    cpu_s: float
    """CPU seconds so far; only differences count."""


def figures_of(points: Sequence[Point], goal: float | None) -> Figures:
    """Return what the points of a run say; the goal's figures are None where it was not reached.

    CPU seconds count from the first point on, which `rlexp run` has only after its first iteration.
    """
    first, last = points[0], points[-1]
    used_s = last.cpu_s - first.cpu_s
    best = (point for point in points if goal is not None and point.reward is not None and point.reward >= goal)
    at_goal = next(best, None)
    return {
        "goal_s": None if at_goal is None else at_goal.seconds,
        "goal_steps": None if at_goal is None else at_goal.steps,
        "train_s": last.seconds,
        "steps": last.steps,
        "reward": last.reward,
        "steps_per_s": last.steps / last.seconds,
        "steps_per_cpu_s": (last.steps - first.steps) / used_s if used_s > 0 else None,
    }


def measure_command(task: Task, file: Path, seed: int) -> Figures:
    """Return the figures of `rlexp run FILE`, with all the processes that it starts."""
    options = ["--seed", str(seed), "-o", f"stop.time_total_s={task.max_s}"]
    with TemporaryDirectory(prefix="rlexp-benchmark-") as folder, CpuMeter() as meter:
        events = run_experiment(file, Path(folder), options, task.max_s + START_TIMEOUT_S)
    results = [event for event in events if event.kind == "result"]
    points = [_point(event.fields["result"], meter.at(event.seconds)) for event in results]
    return figures_of(points, task.goal) | _command_figures(events[-1].seconds, meter)


def measure_agent(task: Task, file: Path, seed: int) -> Figures:
    """Return the figures of the agent of ``file`` alone, in a process of its own and without Ray."""
    points = in_own_process(task.max_s + START_TIMEOUT_S, train_agent, file, seed, task.max_s)
    return figures_of(points, task.goal)


def train_agent(file: Path, seed: int, max_s: float) -> list[Point]:
    """Train the one trial of ``file`` in this process until its ``stop``; return a point for each iteration."""
    experiment = experiment_of(file)
    stop = {**experiment.stop, "time_total_s": max_s}
    agent = agent_class(experiment)(experiment.env, experiment.config, InlineTaskPool(), seed)
    points, row = [Point(0.0, 0, None, time.process_time())], dict[str, Any]()
    while reached(stop, row) is None:
        row = agent.train(bounds=iteration_bounds(stop, None, row))
        points.append(_point(row, time.process_time()))
    agent.stop()
    return points


def measure_peer(name: str, python: str, cleanrl: str, task: Task, file: Path, seed: int) -> Figures:
    """Return the figures of the peer ``name`` of ``ppo_peers.py``, which ends where the ``stop`` of ``file`` says."""
    experiment = experiment_of(file)
    words = {
        "env": experiment.env,
        "seed": seed,
        "goal": experiment.stop.get(REWARD),
        "max_steps": experiment.stop[STEPS],
        "max_s": task.max_s,
        "settings": dict(task.peers[name]),
        "cleanrl": cleanrl,
    }
    command = [python, "-W", "ignore", str(PEERS), name.lower(), json.dumps(words)]
    with CpuMeter() as meter:
        events = run_command(command, task.max_s + START_TIMEOUT_S, PEERS_ENVIRONMENT)
    points = []
    for event in events[:-1]:
        row = event.fields
        cpu_s = row.get("cpu_s", meter.at(event.seconds))
        points.append(Point(row["seconds"], row["steps"], row["reward"], cpu_s))
    return figures_of(points, task.goal) | _command_figures(events[-1].seconds, meter)


def experiment_of(file: Path) -> Experiment:
    """Return the one experiment of ``file``."""
    (trial,) = load_plan([file]).trials
    return trial.experiment


def _point(row: Mapping[str, Any], cpu_s: float) -> Point:
    """Return the point of a row of rlexp's results."""
    reward = row[REWARD] if row["episodes_total"] >= EPISODES else None
    return Point(row["time_total_s"], row[STEPS], reward, cpu_s)


def _command_figures(seconds: float, meter: CpuMeter) -> Figures:
    return {"command_s": seconds, "command_cpu_s": meter.total_s}
