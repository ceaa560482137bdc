"""Sweeps whose trials do not train: their rows are computed, so what the search makes of them is known beforehand.

Sweeps played by the commands' own functions, with everything real but the trials, and copies of what kills leave.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np

from rlexp.cluster.room.machine import Cluster, this_machine
from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.sweep import Sweep
from rlexp.config.yaml.reader import to_yaml
from rlexp.files import to_json
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import checkpoint_directory, newest_checkpoint, write_checkpoint
from rlexp.runs.record import RecordedError, Status
from rlexp.runs.recorders import JsonRecorder, LineFile
from rlexp.runs.run_directory import RunDirectory
from rlexp.schedules import derive_seed
from rlexp.search.record import Journal
from rlexp.search.search import Search
from rlexp.search.searchers import make_searcher
from rlexp.search.shared_study import StudyMember
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import Verdict
from rlexp.search.trial_source import Ending
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.request import TrainingRequest
from rlexp.tuning.resume import resume_run
from rlexp.tuning.run import EXIT_CODES, run_sweep
from rlexp.tuning.stop_condition import iteration_bounds, writes_checkpoint
from rlexp.user_code.memory import remember_plan

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
    sweep: Sweep, folder: Path, reward: Reward, capacity: int = 2, make_world: Callable[..., World] | None = None
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


GRID = {"lr": {"grid_search": [0.1, 0.5, 0.3]}, "gamma": {"grid_search": [0.9, 0.99]}}
DRAWN = {"lr": {"loguniform": [0.01, 1.0]}, "gamma": {"uniform": [0.9, 0.99]}, "n_step": {"randint": [1, 4]}}
CONDITIONAL = {
    "lr": {"loguniform": [0.01, 1.0]},
    "exploration_config": {
        "choice": [
            {"type": "SoftQ", "temperature": {"loguniform": [0.1, 10]}},
            {"type": "EpsilonGreedy", "final_epsilon": {"choice": [0.01, {"uniform": [0.05, 0.1]}]}},
        ]
    },
}
ASHA = {"scheduler": "asha", "asha": {"grace_period": 200, "reduction_factor": 2}}
MEDIAN = {"scheduler": "median", "median": {"grace_period": 200, "min_samples_required": 2}}
PBT = {"scheduler": "pbt", "pbt": {"perturbation_interval": 200}}


def curve(trial: Trial, steps: int) -> float:
    """Return a reward that grows with the learning rate and jumps about, the same whenever it is asked for."""
    return trial.experiment.config.lr * steps + derive_seed(5, trial.name, steps) % 1000 / 10


class Rehearsals:
    """Plays sweeps, begun and resumed, by the commands' own functions; ``reward`` is what trials report."""

    def __init__(self, folder: Path, reward: Reward, capacity: int = 2, stop_after: int = NEVER) -> None:
        self.played: list[Simulation] = []
        self._folder = folder
        self._reward = reward
        self._capacity = capacity
        self.stop_after = stop_after
        """Rows after which a person asks it to stop."""

    def begin(self, text: str, at_each_moment: Callable[[Path], None] = lambda path: None) -> Path:
        """Play a sweep to its end; return its directory."""
        file = self._folder / "sweep.yaml"
        file.write_text(text)
        plan = load_plan([file], options=LoadOptions(is_sweep=True))
        remember_plan(plan)
        path = self._folder / "out" / "small"
        with self._without_ray(), moments(lambda: at_each_moment(path)):
            run_sweep(plan, TrainingRequest("sweep", out=path.parent), QuietDisplay(StringIO()))
        return path

    def resume(self, path: Path, *overrides: str) -> int:
        """Play the rest of one; return the exit code."""
        with self._without_ray(), moments(lambda: None):
            return resume_run(TrainingRequest("resume", path=path, overrides=overrides), QuietDisplay(StringIO()))

    @contextmanager
    def _without_ray(self) -> Iterator[None]:
        def cluster_for(*arguments: object) -> object:
            return Cluster.of(this_machine())

        doubles: dict[str, Any] = {
            "run_in_session": self._play,
            "cluster_for": cluster_for,
            "capacity": lambda *_: self._capacity,
        }
        with patch.multiple("rlexp.tuning.run", **doubles), patch.multiple("rlexp.tuning.resume", **doubles):
            yield

    def _play(self, search: Search, trials: object, directory: RunDirectory, *others: object) -> int:
        world = World(search, directory, self._reward, self.stop_after)
        self.played.append(world.simulation)
        world.run()
        status = search.conclude(Status.TERMINATED)
        directory.finish(status)
        return EXIT_CODES.get(status, 130)


@contextmanager
def moments(look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` before every line and at each point where a file is brought to the disk, in place of that.

    Only this thread's writes count: a thread of an earlier test would look while this one is amid a change.
    """
    write, fsync, here = LineFile.write, os.fsync, threading.current_thread()

    def write_line(file: LineFile, number: int | None, line: str) -> None:
        look()
        write(file, number, line)

    def bring_to_disk(descriptor: int) -> None:
        if threading.current_thread() is here:
            look()
        else:
            fsync(descriptor)

    with patch("os.fsync", bring_to_disk), patch.object(LineFile, "write", write_line):
        yield


class Copies:
    """Copies of a run as it was at every ``stride``-th moment between its first ``run.json`` and its end."""

    def __init__(self, folder: Path, stride: int, offset: int = 0) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._stride = stride
        self._until_next = offset

    def take(self, run: Path) -> None:
        record = run / "run.json"
        if not record.exists() or json.loads(record.read_text())["status"] != "RUNNING":
            return
        self._until_next -= 1
        if self._until_next < 0:
            self._until_next = self._stride - 1
            self.paths.append(self._folder / f"{len(self.paths):04d}")
            shutil.copytree(run, self.paths[-1])


def text_of(config: dict[str, Any], search: dict[str, Any], **keys: Any) -> str:
    entry = {"run": "DQN", "env": "CartPole-v1", "stop": {"timesteps_total": 1000}, **keys}
    return to_yaml({"small": {**entry, "search": search, "config": {"seed": 3, "min_iter_time_s": 0, **config}}})


def saved(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "sweep.json").read_text()))


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((path / "trials.csv").read_text().splitlines()))


def rows(path: Path) -> dict[str, list[str]]:
    """Return the rows of each trial."""
    return {file.parent.name: file.read_text().splitlines() for file in path.glob("*/result.json")}


def statuses(path: Path) -> dict[str, str]:
    return {trial["name"]: trial["status"] for trial in json.loads((path / "run.json").read_text())["trials"]}


def conclusion(path: Path) -> dict[str, Any]:
    """Return what a sweep says at its end, but for the time of day and the order in which trials were ended."""
    content = saved(path)
    for key in ("best_found_after_s", "best_found_after_env_steps"):
        del content["summary"][key]
    for each in content["early_stopping"]:
        each["ended"] = sorted(each.get("ended", ()))
    content["early_stopping"].sort(key=to_json)
    best = load_plan([path / "best.yaml"]).trials[0].experiment  # its file has every key, once resumed
    return {"sweep": content, "table": table(path), "best": best, "statuses": statuses(path)}


def journal(path: Path) -> list[dict[str, Any]]:
    """Return the events of ``search.jsonl``, those that a kill cut left out."""
    lines = (path / "search.jsonl").read_text().splitlines(keepends=True)[1:]
    return [json.loads(line) for line in lines if line.endswith("\n")]
