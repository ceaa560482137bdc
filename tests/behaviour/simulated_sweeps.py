"""Sweeps whose trials do not train: their rows are computed, so what the search makes of them is known beforehand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np

from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.sweep import Sweep
from rlexp.config.yaml.reader import to_yaml
from rlexp.runs.checkpoints import checkpoint_directory, newest_checkpoint, read_checkpoint, write_checkpoint
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.recorders import JsonRecorder
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.journal import Journal
from rlexp.search.search import Search
from rlexp.search.searchers import make_searcher
from rlexp.search.shared_study import StudyMember
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import Ending
from rlexp.tuning.stop_condition import iteration_bounds, writes_checkpoint

NEVER = 10**9
ROW_STEPS = 100
"""Env steps of a row that neither a milestone nor the trial's stop ends."""
STEPS_PER_S = 100

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


def simulated(
    sweep: Sweep, folder: Path, reward: Reward, capacity: int = 2, make_world: type[World] | None = None
) -> Simulation:
    """Let a search run over trials that report ``reward``, a row each in turn, until it has ended.

    A reward of NaN after episodes have ended is a trial's divergence. Checkpoints hold the name of who trained them.
    """
    with (
        patch("os.fsync"),  # nobody pulls the plug, and a disk takes its time
        RunDirectory.create(folder / "out", "sweep", None, [], overwrite=True) as directory,
        Journal(directory.path) as journal,
    ):
        directory.start([])
        room = sweep.search.max_concurrent or capacity
        member = StudyMember(uuid4().hex, directory.path, folder)
        search = Search(SearchState(sweep, make_searcher(sweep, member)), directory, journal, room, 0)
        world = (make_world or World)(search, directory, reward)
        world.run()
        directory.finish(world.simulation.search.conclude(Status.TERMINATED))
        return world.simulation


class World:
    """What Tune, the trials' processes and the recorders are in a real sweep: a row of each trial in turn."""

    def __init__(self, search: Search, directory: RunDirectory, reward: Reward, stop_after: int = NEVER) -> None:
        """After ``stop_after`` rows a person asks it to stop: each trial saves, with one more row, and ends."""
        self.simulation = Simulation(search, directory.path)
        self._search = search
        self._directory = directory
        self._reward = reward
        self._rows_left = stop_after
        self._running: dict[str, tuple[Trial, dict[str, Any]]] = {}
        """Each with its last row."""
        self._paused: dict[str, Trial] = {}

    def run(self) -> None:
        """Go on until no trial is left."""
        for _ in range(10_000):
            if self._rows_left > 0:
                self._begin()
            if not self._running and not self._paused:
                return
            for name in list(self._running):
                self._report(*self._running[name])
            self._go_on()
        raise AssertionError("the sweep does not end")

    def _begin(self) -> None:
        while (trial := self._search.next()) is not None:
            self.simulation.order.append(trial.name)
            self._start(trial)
        self.simulation.most_running = max(self.simulation.most_running, len(self._running))

    def _start(self, trial: Trial) -> None:
        newest = newest_checkpoint(self._directory.trial_directory(trial))
        self._running[trial.name] = trial, dict(read_checkpoint(newest).metadata["metrics"]) if newest else _row(0, 0)
        self._directory.trial_status(trial, Status.RUNNING)

    def _report(self, trial: Trial, before: dict[str, Any]) -> None:
        stopped = self._rows_left <= 0
        self._rows_left -= 1
        steps = self._end_of_row(trial, before)
        done = stopped or steps >= trial.experiment.stop.get("timesteps_total", 1000)
        row = _row(steps, before["training_iteration"] + 1, steps - before["timesteps_total"])
        row |= _rewards(self._reward(trial, steps)) | {"done": done, "trial_name": trial.name}
        checkpoint, is_milestone = self._saved(trial, before, row, stopped)
        decision = self._search.on_result(trial, row, checkpoint if is_milestone else None)
        self._record(trial, row)
        self._running[trial.name] = trial, row
        if done or decision.verdict is Verdict.STOP:
            problem = decision.problem
            self._end(trial, steps, done and not problem and not stopped, RecordedError(problem) if problem else None)
        elif decision.verdict is not Verdict.CONTINUE:
            del self._running[trial.name]
            self._paused[trial.name] = decision.changed or trial

    def _end_of_row(self, trial: Trial, before: dict[str, Any]) -> int:
        """Return the env steps at the end of the next row."""
        bounds = iteration_bounds(trial.experiment.stop, self._search.milestones, before).values
        steps: int = before["timesteps_total"]
        ends = [
            steps + ROW_STEPS,
            bounds.get("timesteps_total", NEVER),
            bounds.get("time_total_s", NEVER) * STEPS_PER_S,
        ]
        return max(math.ceil(min(ends)), steps + 1)

    def _record(self, trial: Trial, row: dict[str, Any]) -> None:
        recorder = JsonRecorder(self._directory.trial_directory(trial))
        recorder.record(row)
        recorder.close()
        self._directory.trial_result(trial, row)

    def _end(self, trial: Trial, steps: int, finished: bool, error: RecordedError | None) -> None:
        del self._running[trial.name]
        ending = self._search.on_end(trial, finished, error)
        self.simulation.ends[trial.name] = ending.status, steps
        self._close(trial, ending)
        self._directory.trial_status(trial, ending.status, error)

    def _close(self, trial: Trial, ending: Ending) -> None:
        """Nothing is left open by the recorder that a World has."""

    def _go_on(self) -> None:
        for stopped in self._search.stopped(list(self._paused.values())):
            self._running[stopped.name] = self._paused.pop(stopped.name), _row(0, 0)
            self._end(stopped, self._search.standings.of(stopped).timesteps_total, False, None)
        paused = list(self._paused.values())
        while (trial := self._search.next_paused(paused)) is not None:
            paused.remove(self._paused.pop(trial.name))
            self._start(trial)

    def _saved(
        self, trial: Trial, before: dict[str, Any], row: dict[str, Any], stopped: bool
    ) -> tuple[Path | None, bool]:
        """Write a checkpoint at a milestone and every ``checkpoint_freq`` rows; return whether there is one for pbt."""
        period = trial.experiment.checkpoint_freq
        is_milestone = writes_checkpoint(self._search.milestones, before, row)
        if not is_milestone and not stopped and (not period or row["training_iteration"] % period):
            return None, False
        directory = checkpoint_directory(self._directory.trial_directory(trial), row["training_iteration"])
        counts = {"num_steps_sampled": row["timesteps_total"], "num_steps_trained": 0, "episodes_total": 0}
        progress = {"iteration": row["training_iteration"], "time_total_s": row["time_total_s"]}
        state = {"trained_by": trial.name, **counts, **progress}
        return write_checkpoint(directory, {"weights": {"w": np.zeros(1)}}, state, {"metrics": row}), is_milestone


def _row(steps: int, iteration: int, steps_of_row: int = 0) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "timesteps_total": steps,
        "timesteps_this_iter": steps_of_row,
        "time_total_s": steps / STEPS_PER_S,
        "episodes_total": steps // 10,
        "info": {"learner": {"loss": 0.5}},
    }


def _rewards(reward: float | None) -> dict[str, Any]:
    return {
        "episode_reward_mean": reward,
        "episode_reward_mean_all": reward,
        "episode_len_mean": None if reward is None else -reward,
    }
