"""Sweeps played by the commands' own functions, with everything real but the trials, and copies of what kills leave."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rlexp.cluster.room import this_machine
from rlexp.cluster.room.machine import Cluster
from rlexp.config.keys.trial import Trial
from rlexp.config.load import LoadOptions, load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.files import to_json
from rlexp.runs.record import Status
from rlexp.runs.recorders import LineFile
from rlexp.runs.run_directory import RunDirectory
from rlexp.schedules import derive_seed
from rlexp.search.search import Search
from rlexp.terminal.displays import QuietDisplay
from rlexp.tuning.resume import resume_run
from rlexp.tuning.run import EXIT_CODES, RunOptions, run_sweep
from rlexp.user_code.memory import remember_plan
from tests.behaviour.simulated_sweeps import NEVER, Reward, Simulation, World

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
            run_sweep(plan, RunOptions(path.parent, None, False, False, []), QuietDisplay(StringIO()), 0)
        return path

    def resume(self, path: Path, *overrides: str) -> int:
        """Play the rest of one; return the exit code."""
        with self._without_ray(), moments(lambda: None):
            return resume_run(path, overrides, QuietDisplay(StringIO()), debug=False)

    @contextmanager
    def _without_ray(self) -> Iterator[None]:
        def cluster_for(*arguments: object) -> object:
            return Cluster.of(this_machine())

        names = ("rlexp.tuning.run", "rlexp.tuning.resume")
        with (
            patch.multiple(
                names[0], run_in_session=self._play, cluster_for=cluster_for, capacity=lambda *_: self._capacity
            ),
            patch.multiple(
                names[1], run_in_session=self._play, cluster_for=cluster_for, capacity=lambda *_: self._capacity
            ),
        ):
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
    """Call ``look`` before every line and at each point where a file is brought to the disk, in place of that."""
    write = LineFile.write

    def write_line(file: LineFile, number: int | None, line: str) -> None:
        look()
        write(file, number, line)

    with patch("os.fsync", lambda descriptor: look()), patch.object(LineFile, "write", write_line):
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
