"""Runs whose rows go to the real recorders and trackers, without training."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlexp.cluster.room.machine import is_installed
from rlexp.config.keys.trial import Trial
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.rows import scalars
from rlexp.runs.run_directory import RunDirectory, trial_parameters
from rlexp.terminal.displays import QuietDisplay
from rlexp.trackers import Trackers
from tests.behaviour.inline_trials import trials_of

needs_wandb = pytest.mark.skipif(not is_installed("wandb"), reason="wandb is not installed")
needs_mlflow = pytest.mark.skipif(not is_installed("mlflow"), reason="mlflow is not installed")
BEGAN_S = 1_700_000_000
STEPS = 100
"""Env steps of an iteration."""


class Notes(QuietDisplay):
    """Keeps what is said between trials."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.texts: list[str] = []

    def on_note(self, trial: Trial | None, text: str) -> None:
        self.texts.append(text)


@dataclass
class TrackedScene:
    """A run of one or several trials, with its trackers."""

    directory: RunDirectory
    trackers: Trackers
    notes: Notes
    stack: ExitStack

    def recorder(self, trial: Trial) -> TrialRecorder:
        """Return the recorder of a trial, as the runner makes it; it is closed with the scene."""
        folder = self.directory.trial_directory(trial)
        recorder = TrialRecorder(folder, trial_parameters(trial), (), (), self.directory.trackers_of(trial))
        return self.stack.enter_context(closing(recorder))


@contextmanager
def tracked_scene(folder: Path, trials: tuple[Trial, ...], resumes: bool = False) -> Iterator[TrackedScene]:
    """Provide the run ``folder/out/run``: a new one, or the one that is there."""
    notes, out = Notes(), folder / "out"
    out.mkdir(exist_ok=True)
    opened = RunDirectory.open(out / "run") if resumes else RunDirectory.create(out, "run", None, [], overwrite=False)
    with Trackers.started(trials, out, notes.on_note) as trackers, opened as directory, ExitStack() as stack:
        directory.trackers = trackers
        if not resumes:
            directory.start(trials)
        yield TrackedScene(directory, trackers, notes, stack)


def one_trial(folder: Path, track: Any, **config: Any) -> Trial:
    """Return the trial of a file with one experiment that has ``track``."""
    (trial,) = trials_of(folder, config, track=track)
    return trial


def result_row(iteration: int, reward: float) -> dict[str, Any]:
    """Return a row with what real ones have: nested groups, lists, text and values that are not there yet."""
    return {
        "training_iteration": iteration,
        "timesteps_total": iteration * STEPS,
        "timesteps_this_iter": STEPS,
        "timestamp": BEGAN_S + iteration,
        "episode_reward_mean": reward,
        "done": False,
        "trial_name": "00000",
        "info": {"learner": {"loss": 0.5 * iteration, "grad_norm": None}, "replay_fill_per_shard": [0.1, 0.2]},
        "evaluation": {"episode_reward_mean": float("nan")},
    }


def recorded_numbers(directory: Path) -> list[dict[str, float]]:
    """Return the numbers of the rows in ``result.json`` of a trial's directory."""
    lines = (directory / "result.json").read_text(encoding="utf-8").splitlines()
    return [dict(scalars(json.loads(line))) for line in lines]
