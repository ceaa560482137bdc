"""Sweeps whose trials do not train: their rows are computed, so what the search makes of them is known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.checkpoint import checkpoint_directory, newest_checkpoint, read_checkpoint, write_checkpoint
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.sweep import Sweep
from rlexp.config.trial import Trial
from rlexp.config.yaml_writer import to_yaml
from rlexp.tuning.run_directory import RunDirectory
from rlexp.tuning.run_record import Status, TrialError
from rlexp.tuning.search.search import Search
from rlexp.tuning.search.searchers import make_searcher
from rlexp.tuning.trial_feed import Action

ROW_STEPS = 100
"""Env steps between two rows."""

Reward = Callable[[Trial, int], float | None]
"""A trial's mean reward after so many env steps."""


@dataclass
class Simulation:
    """What happened."""

    search: Search
    path: Path
    most_running: int = 0
    order: list[str] = field(default_factory=list)
    """Names of the trials in the order in which they began."""
    ends: dict[str, tuple[Status, int]] = field(default_factory=dict)
    """Status and env steps of each trial at its end."""

    @property
    def saved(self) -> dict[str, Any]:
        """``sweep.json``."""
        return dict(json.loads((self.path / "sweep.json").read_text()))


def sweep_of(folder: Path, config: dict[str, Any], search: dict[str, Any] | None = None, **keys: Any) -> Sweep:
    """Return the sweep of a file."""
    entry = {"run": "DQN", "env": "CartPole-v1", "stop": {"timesteps_total": 1000}, **keys}
    file = folder / "sweep.yaml"
    file.write_text(to_yaml({"small": {**entry, "search": search or {}, "config": {"seed": 3, **config}}}))
    return load_plan([file], options=LoadOptions(is_sweep=True)).sweeps[0]


def simulated(sweep: Sweep, folder: Path, reward: Reward, capacity: int = 2) -> Simulation:
    """Let a search run over trials that report ``reward``, a row each in turn, until it has ended.

    A reward of NaN after episodes have ended is a trial's divergence. Checkpoints hold the name of who trained them.
    """
    with RunDirectory.create(folder / "out", "sweep", None, [], overwrite=True) as directory:
        directory.start([])
        room = sweep.search.max_concurrent or capacity
        world = _World(Search(sweep, make_searcher(sweep), directory, room, 0), directory, reward)
        world.run()
        return world.simulation


class _World:
    def __init__(self, search: Search, directory: RunDirectory, reward: Reward) -> None:
        self.simulation = Simulation(search, directory.path)
        self._search = search
        self._directory = directory
        self._reward = reward
        self._running: dict[str, tuple[Trial, int]] = {}
        self._paused: dict[str, tuple[Trial, int]] = {}

    def run(self) -> None:
        for _ in range(10_000):
            self._begin()
            if not self._running and not self._paused:
                break
            for name in list(self._running):
                self._report(*self._running[name])
            self._go_on()
        else:
            raise AssertionError("the sweep does not end")
        self._search.conclude(Status.TERMINATED)

    def _begin(self) -> None:
        while (trial := self._search.next()) is not None:
            self._running[trial.name] = trial, 0
            self.simulation.order.append(trial.name)
        self.simulation.most_running = max(self.simulation.most_running, len(self._running))

    def _report(self, trial: Trial, steps: int) -> None:
        before, steps = steps, steps + ROW_STEPS
        row = _row(steps, self._reward(trial, steps))
        checkpoint = self._saved(trial, before, row)
        stop = trial.experiment.stop.get("timesteps_total", 1000)
        flaw, done = self._search.flaw(trial, row), steps >= stop
        verdict = None if flaw or done else self._search.judge(trial, row, checkpoint)
        self._search.on_result(trial, row)
        self._running[trial.name] = trial, steps
        if flaw or done or (verdict and verdict.action is Action.END):
            del self._running[trial.name]
            error = TrialError(flaw) if flaw else None
            ending = self._search.on_end(trial, done and not flaw, error)
            self.simulation.ends[trial.name] = ending.status, steps
        elif verdict and verdict.action is Action.PAUSE:
            del self._running[trial.name]
            self._paused[trial.name] = (verdict.changed or trial), steps

    def _go_on(self) -> None:
        paused = [trial for trial, _ in self._paused.values()]
        while (trial := self._search.waits(paused)) is not None:
            paused.remove(trial)
            trial, _ = self._paused.pop(trial.name)
            newest = newest_checkpoint(self._directory.trial_directory(trial))
            assert newest is not None
            self._running[trial.name] = trial, read_checkpoint(newest).state["steps"]

    def _saved(self, trial: Trial, before: int, row: dict[str, Any]) -> Path | None:
        milestones = self._search.milestones
        if milestones is None or not milestones.passed(_row(before, 0.0)[milestones.metric], row):
            return None
        directory = checkpoint_directory(self._directory.trial_directory(trial), row["training_iteration"])
        state = {"trained_by": trial.name, "steps": row["timesteps_total"]}
        return write_checkpoint(directory, {"weights": {"w": np.zeros(1)}}, state, {"metrics": row})


def _row(steps: int, reward: float | None) -> dict[str, Any]:
    return {
        "training_iteration": steps // ROW_STEPS,
        "timesteps_total": steps,
        "time_total_s": steps / 100,
        "episodes_total": steps // 10,
        "episode_reward_mean": reward,
        "episode_reward_mean_all": reward,
        "episode_len_mean": None if reward is None else -reward,
        "info": {"learner": {"loss": 0.5}},
    }
