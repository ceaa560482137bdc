"""Trials as Tune steps them, but in this process: keys beside ``config:`` are tested without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.pool import InlineTaskPool
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.trial_source import FixedTrials
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, Assignment, assignment_of
from rlexp.tuning.trainable import ExperimentTrainable
from tests.behaviour.learning_agents import TINY
from tests.envs import ENDLESS_ENV


def trials_of(folder: Path, config: dict[str, Any] | None = None, **keys: Any) -> tuple[Trial, ...]:
    """Return the trials of a file with one small experiment that has ``keys`` beside ``config``."""
    entry = {"run": "DQN", "env": ENDLESS_ENV, **keys, "config": {**TINY, "seed": 3, **(config or {})}}
    file = folder / "experiment.yaml"
    file.write_text(to_yaml({"small": entry}), encoding="utf-8")
    return load_plan([file]).trials


@contextmanager
def assigned(folder: Path, config: dict[str, Any] | None = None, **keys: Any) -> Iterator[Assignment]:
    """Provide the assignment of the only trial of such a file, in a run's directory below ``folder``."""
    (trial,) = trials_of(folder, config, **keys)
    with RunDirectory.create(folder / "out", "run", None, [], overwrite=False) as directory:
        directory.start([trial])
        yield assignment_of(trial, directory, FixedTrials([trial]))


def rows_of(assignment: Assignment, monkeypatch: pytest.MonkeyPatch, at_most: int = 20) -> list[dict[str, Any]]:
    """Step a trial until it is done, ``at_most`` so often; return its rows."""
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    process = ExperimentTrainable.__new__(ExperimentTrainable)  # Tune's own part of a Trainable is not needed
    process.setup({ASSIGNMENT: assignment})
    process.begin()
    rows: list[dict[str, Any]] = []
    while len(rows) < at_most and not (rows and rows[-1]["done"]):
        rows.append(process.step()["row"])
    process.cleanup()
    return rows
