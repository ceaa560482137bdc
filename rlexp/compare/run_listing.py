"""Runs and trials from their directories: at a path to compare, or below a directory to list.

``run.json`` and ``params.json`` are read, no event file and no result row; nothing is trusted or unpickled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rlexp.errors import Notice, ResumeError, UsageError
from rlexp.files import read_json, size_below
from rlexp.processes.locks import LOCK_FILE, RUN_FILE, is_in_use
from rlexp.runs.record import (
    PARAMETERS_FILE,
    RESOLVED_FILE,
    RunRecord,
    Status,
    TrialRecord,
    hint_to_runs,
    is_in_run,
    looks_like_run,
    read_run_record,
)
from rlexp.text import is_known

RESULT_FILE: Final = "result.json"
_OLD_NAMES: Final = {"lambda_": "lambda"}
"""Keys of older versions in ``params.json``, and their current names."""


class ClosedFolderError(UsageError):
    """Raised for the directory of a run or a trial that this user may not read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The directory of a run, or of trials that another program ran."""

    path: Path
    """The path, as given."""
    record: RunRecord | None
    """None if ``run.json`` cannot be read."""
    problem: str | None
    """Why ``run.json`` cannot be read."""

    @property
    def name(self) -> str:
        """The last part of the path, also of ``.`` and ``..``."""
        return self.path.resolve().name


@dataclass(frozen=True, eq=False)
class TrialFolder:
    """The directory of one trial."""

    path: Path
    run: RunFolder
    record: TrialRecord | None

    @property
    def name(self) -> str:
        """The name of its directory, also if the path ends in ``.``."""
        return self.path.resolve().name

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """Agent, env and every key of its config, secrets masked; empty if they cannot be read."""
        return {_OLD_NAMES.get(key, key): value for key, value in read_mapping(self.path / PARAMETERS_FILE).items()}

    @property
    def seed(self) -> int | None:
        """The seed that it ran with."""
        seed = self.record.seed if self.record else self.parameters.get("seed")
        return seed if isinstance(seed, int) else None

    @property
    def env(self) -> str:
        """The environment it played, ``?`` if that is not known."""
        return str(self.parameters.get("env", "?"))

    @property
    def varied(self) -> Mapping[str, Any]:
        """The keys that the run varied and their values here, apart from the seed."""
        varied = self.record.varied if self.record else {}
        return {key: value for key, value in varied.items() if key != "seed"}


def trials_at(path: Path) -> list[TrialFolder]:
    """Return the trials of the run at ``path``, or the one trial there; raises UsageError for anything else."""
    if not os.path.exists(path):  # unlike Path.exists, it raises no error for a name that is too long
        raise UsageError(f"path {path} does not exist", hint_to_runs(path))
    if not path.is_dir():
        raise UsageError(f"{path} is a file", hint_to_runs(path))
    problem = why_closed(path)
    if problem is not None:
        raise ClosedFolderError(path, problem)
    if path.name in ("", ".."):  # these have a parent that their text does not show
        path = path.resolve()
    parent, name = _run_of(path.parent), path.resolve().name
    recorded = dict(directories_of(parent.record)) if parent.record else {}
    if os.path.isfile(path / RESULT_FILE) or name in recorded:
        return [TrialFolder(path, parent, recorded.get(name))]
    trials = _trials_in(path)
    if trials:
        return trials
    if looks_like_run(path):
        problem = _run_of(path).problem
        raise UsageError(f"{path} has no trials yet" if problem is None else f"{problem}, and no {RESULT_FILE} is left")
    holds_runs = any(os.path.isfile(below / RUN_FILE) for below in path.iterdir())
    hint = f"its runs are: {path}/*" if holds_runs else hint_to_runs(path)
    raise UsageError(f"{path} is neither a run nor a trial", hint)


def why_closed(directory: Path) -> str | None:
    """Return why the content of a directory cannot be read; None if it can."""
    try:
        with os.scandir(directory):
            os.stat(directory / ".")
    except OSError as error:
        return error.strerror
    return None


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Return a file's JSON object; empty if there is none."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def directories_of(record: RunRecord) -> Iterator[tuple[str, TrialRecord]]:
    """Yield each trial's directory, unless it is outside the run's: the record may come from anyone."""
    for trial in record.trials:
        if is_in_run(trial.directory):
            yield trial.directory, trial


def _trials_in(path: Path) -> list[TrialFolder]:
    run = _run_of(path)
    if run.record is not None:
        return [TrialFolder(path / name, run, trial) for name, trial in directories_of(run.record)]
    folders = sorted(below.parent for below in path.glob(f"*/{RESULT_FILE}"))
    return [TrialFolder(folder, run, None) for folder in folders]


def _run_of(path: Path) -> RunFolder:
    try:
        return RunFolder(path, read_run_record(path), None)
    except ResumeError as error:
        return RunFolder(path, None, error.message)


def unread_rows(trial: TrialFolder, damaged_lines: int = 0, problem: str | None = None) -> Notice | None:
    """Return what of a trial's rows cannot be read; None if all can. The other parameters are as in a ``Curve``."""
    file = trial.path / RESULT_FILE
    if problem is not None:
        return Notice(str(file), f"cannot be read and is left out: {problem}")
    if damaged_lines:
        lines = "1 line is" if damaged_lines == 1 else f"{damaged_lines} lines are"
        return Notice(str(file), f"is damaged: {lines} left out")
    if not os.path.isdir(trial.path):
        return Notice(str(trial.path), "is missing: the folder of this trial was deleted or moved")
    if trial.record is not None and trial.record.iterations and not os.path.exists(file):
        return Notice(str(file), "is missing, with all rows of this trial")
    return None


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else."""
    return float(value) if is_known(value) else None


KILLED: Final = "KILLED"
"""Its record has the status RUNNING, but no process holds its lock: it can be resumed."""
DAMAGED: Final = "DAMAGED"
"""Its ``run.json`` cannot be read."""
_MOST_ENTRIES: Final = 20_000
"""Most files and folders of a run or trial that are counted: a tenth of a second."""
_DEPTH: Final = 3
"""OUT/NAME, and two more levels for runs that are sorted into folders."""


@dataclass(frozen=True)
class Found:
    """A run, or one trial of it."""

    path: Path
    status: str
    problem: str | None = None
    """Why it is damaged, or its error."""
    agents: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    num_trials: int = 0
    best: float | None = None
    """The highest mean reward that a trial reached, and the last one of that trial."""
    last: float | None = None
    steps: int = 0
    """Env steps of all trials together; iterations likewise."""
    iterations: int = 0
    started: datetime | None = None
    size_bytes: int = 0
    is_whole_size: bool = True
    """Whether all files have been counted: a run may have so many that the listing would take long."""


def found_at(path: Path, leave_out: Callable[[Notice], None] = lambda notice: None) -> list[Found]:
    """Return the runs below ``path``, newest first; for a run, its trials in their order.

    Directories that may not be read are given to ``leave_out``, with the reason. Raises UsageError if there is no such
    directory, or it may not be read itself.
    """
    if not os.path.isdir(path):
        what = f"{path} is a file" if os.path.exists(path) else f"path {path} does not exist"
        raise UsageError(what, "name the directory of the runs: results, or the value of --out or RLEXP_OUT")
    problem = why_closed(path)
    if problem is not None:
        raise UsageError(f"{path} cannot be read: {problem}")
    if _is_run(path):
        return list(map(_with_size, _trials(path)))
    runs = map(_run, _runs_below(path, _DEPTH, leave_out))
    return sorted(map(_with_size, runs), key=_age_order)


def run_directories(path: Path) -> Iterator[Path]:
    """Yield the directories of the runs below ``path``, none of which is read."""
    return _runs_below(path, _DEPTH, lambda notice: None)


def _is_run(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in (RUN_FILE, RESOLVED_FILE, LOCK_FILE))


def _runs_below(path: Path, depth: int, leave_out: Callable[[Notice], None]) -> Iterator[Path]:
    """Yield run directories, without hidden ones and links."""
    for below in _directories(path):
        problem = why_closed(below)
        if problem is not None:
            leave_out(Notice(str(below), f"is left out: {problem}"))
        elif _is_run(below):
            yield below
        elif depth > 1:
            yield from _runs_below(below, depth - 1, leave_out)


def _directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return [path / name for name in sorted(names) if not name.startswith(".")]


def _run(path: Path) -> Found:
    in_use = is_in_use(path)
    try:
        record = read_run_record(path)
    except ResumeError as error:
        if in_use and not os.path.exists(path / RUN_FILE):  # it has just begun
            return Found(path, Status.RUNNING, started=_changed(path))
        problem = "; ".join(filter(None, (error.message, error.hint)))
        return Found(path, DAMAGED, problem, started=_changed(path))
    folders = [path / name for name, _ in directories_of(record)]
    return _found(path, _status(record.status, in_use), folders, record.trials, record)


def _trials(path: Path) -> list[Found]:
    try:
        record = read_run_record(path)
    except ResumeError:
        return [_run(path)]
    in_use = is_in_use(path)
    return [_trial(path / name, trial, record, in_use) for name, trial in directories_of(record)]


def _trial(path: Path, trial: TrialRecord, run: RunRecord, in_use: bool) -> Found:
    problem = trial.error.summary if trial.error else None
    return replace(_found(path, _status(trial.status, in_use), [path], [trial], run), problem=problem)


def _found(path: Path, status: str, folders: Sequence[Path], trials: Sequence[TrialRecord], run: RunRecord) -> Found:
    """Return what is at ``path``: a run or a trial of ``run``, with its ``trials`` and the ``folders`` of these."""
    parameters = [read_mapping(folder / PARAMETERS_FILE) for folder in folders]
    best, last = _scores(trials)
    return Found(
        path=path,
        status=status,
        agents=_distinct(parameters, "run"),
        envs=_distinct(parameters, "env"),
        num_trials=len(trials),
        best=best,
        last=last,
        steps=sum(_count(trial.timesteps_total) for trial in trials),
        iterations=sum(_count(trial.iterations) for trial in trials),
        started=_started(run, path),
    )


def _with_size(found: Found) -> Found:
    num_bytes, is_whole = size_below(found.path, _MOST_ENTRIES)
    return replace(found, size_bytes=num_bytes, is_whole_size=is_whole)


def _status(status: Status, in_use: bool) -> str:
    return KILLED if status is Status.RUNNING and not in_use else status


def _scores(trials: Sequence[TrialRecord]) -> tuple[float | None, float | None]:
    known = [(best, trial) for trial in trials if (best := number(trial.best_episode_reward_mean)) is not None]
    if not known:
        return None, None
    best, trial = max(known, key=lambda pair: pair[0])
    return best, number(trial.episode_reward_mean)


def _distinct(parameters: Sequence[Any], key: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(each[key]) for each in parameters if key in each))


def _count(value: Any) -> int:
    return int(number(value) or 0)


def _started(record: RunRecord, path: Path) -> datetime | None:
    try:
        return datetime.fromisoformat(record.started).astimezone()
    except (TypeError, ValueError, OverflowError):
        return _changed(path)


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    except OSError:
        return None


def _age_order(found: Found) -> tuple[float, str]:
    return -(found.started.timestamp() if found.started else 0.0), str(found.path)
