"""Trials without training or Ray: their rows go to the real recorders and trackers, what wandb writes is read back."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pytest

from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.cluster.room.machine import is_installed
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.runs.keeper import Answer, Keeper, KeeperLostError
from rlexp.runs.record import Status
from rlexp.runs.recorders import TrialRecorder
from rlexp.runs.rows import scalars
from rlexp.runs.run_directory import RunDirectory, trial_parameters
from rlexp.search.trial_source import FixedTrials
from rlexp.terminal.displays import QuietDisplay
from rlexp.trackers.trackers import Trackers
from rlexp.tuning import trainable
from rlexp.tuning.assignment import ASSIGNMENT, Assignment, assignment_of
from rlexp.tuning.trainable import ExperimentTrainable
from tests.lab.agents import TINY
from tests.lab.envs import ENDLESS_ENV


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
    return [result["row"] for result in results_of(assignment, monkeypatch, at_most)]


def results_of(assignment: Assignment, monkeypatch: pytest.MonkeyPatch, at_most: int = 20) -> list[dict[str, Any]]:
    """Step a trial so; return its results, each with a ``row``, ``events`` and whether the trial is ``done``."""
    monkeypatch.setattr(trainable, "RayTaskPool", InlineTaskPool)
    process = ExperimentTrainable.__new__(ExperimentTrainable)  # Tune's own part of a Trainable is not needed
    process.setup({ASSIGNMENT: assignment})
    process.begin()
    results: list[dict[str, Any]] = []
    while len(results) < at_most and not (results and results[-1]["done"]):
        results.append(process.step())
    process.cleanup()
    return results


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

    def record(
        self, trial: Trial, rewards: Sequence[tuple[int, float]], status: Status, score: float | None = None
    ) -> None:
        """Record rows of a trial by iteration and reward, its end, and the end of the trackers, which note nothing."""
        recorder = self.recorder(trial)
        for iteration, reward in rewards:
            recorder.record(result_row(iteration, reward))
        recorder.end(status, score)
        assert self.trackers.finish() == []


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


BLOCK = 32768
HEADER = struct.Struct("<IHB")
"""Of a chunk: its checksum, length and kind."""
FILE_HEADER = 7
FULL, LAST = 1, 4


@dataclass
class WandbLog:
    """One offline run."""

    id: str = ""
    name: str = ""
    group: str = ""
    project: str = ""
    entity: str = ""
    tags: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    step_metrics: dict[str, str] = field(default_factory=dict)
    """The x axis of each metric, or of ``*``."""
    artifacts: list[tuple[str, str]] = field(default_factory=list)
    """Names and types."""
    exit_code: int | None = None


def wandb_logs(run: Path) -> list[WandbLog]:
    """Return the offline runs in the directory of a run of rlexp, the oldest first."""
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_ctime)
    return [_log(file) for file in files]


def _log(file: Path) -> WandbLog:
    log = WandbLog()
    for record in _records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            log.id, log.name, log.group = run.run_id, run.display_name, run.run_group
            log.project, log.entity, log.tags = run.project, run.entity, tuple(run.tags)
            log.config |= _values(run.config.update)
        elif kind == "config":
            log.config |= _values(record.config.update)
        elif kind == "history":
            log.history.append(_values(record.history.item))
        elif kind == "summary":
            log.summary |= _values(record.summary.update)
        elif kind == "metric":
            log.step_metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
        elif kind == "artifact":
            log.artifacts.append((record.artifact.name, record.artifact.type))
        elif kind == "exit":
            log.exit_code = record.exit.exit_code
    return log


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(file: Path) -> Iterator[Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, record = file.read_bytes(), FILE_HEADER, b""
    while position + HEADER.size <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER.size:
            position += left
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        record += data[position + HEADER.size : position + HEADER.size + length]
        position += HEADER.size + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


def deleted(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replaced(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()  # which gets the same inode on some file systems, unless the first one is kept open


LOSSES = pytest.mark.parametrize("lose", [deleted, moved, replaced])
Lose = Callable[[Path], None]

P = ParamSpec("P")
T = TypeVar("T")


class InlineAnswer(Answer[T]):
    """An answer, or an error, that is there at once, unless it is held back."""

    def __init__(self, link: InlineLink, call: Callable[[], T]) -> None:
        self._link = link
        self._call = call

    def is_ready(self) -> bool:
        return not self._link.is_held

    def get(self) -> T:
        return self._call()


class InlineLink:
    """Calls a Keeper directly; counts the calls and can change pieces, or lose the Keeper after some calls."""

    def __init__(self, keeper: Keeper, calls_until_lost: int = 10**9) -> None:
        self.keeper = keeper
        self.is_held = False
        self.calls: list[str] = []
        self.change: Callable[[bytes], bytes] = bytes
        self._calls_until_lost = calls_until_lost

    def call(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        self.calls.append(function.__name__)
        if len(self.calls) > self._calls_until_lost:
            return InlineAnswer(self, self._lost)
        changed: Any = [self.change(each) if isinstance(each, bytes) else each for each in args]
        return InlineAnswer(self, lambda: function(self.keeper, *changed, **named))

    def watch(self, function: Callable[Concatenate[Keeper, P], T], *args: P.args, **named: P.kwargs) -> Answer[T]:
        self.calls.append(function.__name__)
        answer = function(self.keeper, *args, **named)
        return InlineAnswer(self, lambda: answer)

    def _lost(self) -> Any:
        raise KeeperLostError("the Keeper is lost: its process cannot be reached")
