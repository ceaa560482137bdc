"""A process that trains one trial after another computes what a new process computes, and keeps nothing of them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import pytest
import torch

from rlexp.cluster.pool import InlineTaskPool
from rlexp.errors import EnvError
from rlexp.runs.checkpoints import newest_checkpoint, read_checkpoint
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, Assignment
from rlexp.tuning.trainable import ExperimentTrainable
from tests.behaviour.inline_trials import assigned
from tests.envs import Array, EndlessEnv

STOP = {"timesteps_total": 600}
TRIAL: dict[str, Any] = {"env": "CartPole-v1", "stop": STOP, "config": {"noisy": True}}
OTHERS: dict[str, dict[str, Any]] = {
    "another algorithm, env and network": {
        "run": "APEX",
        "env": "CartPole-v1",
        "stop": STOP,
        "config": {"model": {"fcnet_hiddens": [64, 64]}, "optimizer": {"num_replay_buffer_shards": 2}},
    },
    "an env that changes its process": {"env": f"{__name__}:DisturbingEnv", "stop": STOP},
    "an env that raises": {"env": "tests.envs:LateRaisingEnv", "stop": STOP},
}
THREADED: dict[str, Any] = {
    "run": "APEX",
    "env": "CartPole-v1",
    "stop": STOP,
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


def outcomes(folder: Path, before: list[str]) -> list[Any]:
    """Return what TRIAL gives at first and after each of OTHERS; called in a new process."""
    process = TrialProcess()
    found = [] if before else [process.outcome(folder / "alone", TRIAL)]
    for number, name in enumerate(before):
        try:
            process.outcome(folder / f"before-{number}", OTHERS[name])
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
    (tmp_path / "new").mkdir()
    (tmp_path / "reused").mkdir()
    [(rows, weights)] = in_new_process(outcomes, tmp_path / "new", [])
    found = in_new_process(outcomes, tmp_path / "reused", list(OTHERS))
    assert len(rows) > 1
    for name, (reused_rows, reused_weights) in zip(OTHERS, found, strict=True):
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
