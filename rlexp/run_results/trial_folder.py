"""The trials at a path on the command line; nothing that is read there is trusted or unpickled."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from rlexp.errors import ResumeError, UsageError
from rlexp.files import read_json
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.record import PARAMETERS_FILE, SEE_LS, RunRecord, TrialRecord, is_in_run, read_run_record

RESULT_FILE: Final = "result.json"
_OLD_NAMES: Final = {"lambda_": "lambda"}
"""Keys as older versions wrote them in ``params.json``, and as they are."""


class ClosedFolderError(UsageError):
    """The directory of a run or a trial may not be read by this user."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The directory of a run, or of trials that another program ran."""

    path: Path
    """As it was given."""
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
        """The name of its directory, also where the path ends in ``.``."""
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
        """What the run varied and its value here, apart from the seed."""
        varied = self.record.varied if self.record else None
        if not isinstance(varied, Mapping):
            return {}
        return {key: value for key, value in varied.items() if key != "seed"}


def trials_at(path: Path) -> list[TrialFolder]:
    """Return the trials of the run at ``path``, or the one trial there; raises UsageError for anything else."""
    if not os.path.exists(path):  # unlike Path.exists, it raises no error for a name that is too long
        raise UsageError(f"path {path} does not exist", SEE_LS)
    if not path.is_dir():
        raise UsageError(f"{path} is a file", f"name a run or a trial, for example {path.parent}")
    problem = why_closed(path)
    if problem is not None:
        raise ClosedFolderError(path, problem)
    if path.name in ("", ".."):  # these have a parent that their text does not show
        path = path.resolve()
    parent, name = _run(path.parent), path.resolve().name
    recorded = dict(directories_of(parent.record)) if parent.record else {}
    if os.path.isfile(path / RESULT_FILE) or name in recorded:
        return [TrialFolder(path, parent, recorded.get(name))]
    trials = _trials_in(path)
    if trials:
        return trials
    if os.path.isfile(path / RUN_FILE):
        raise UsageError(f"{path} has no trials yet")
    holds_runs = any(os.path.isfile(below / RUN_FILE) for below in path.iterdir())
    raise UsageError(f"{path} is neither a run nor a trial", f"its runs are: {path}/*" if holds_runs else SEE_LS)


def why_closed(directory: Path) -> str | None:
    """Return why what is in a directory cannot be read, None if it can."""
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
    run = _run(path)
    if run.record is not None:
        return [TrialFolder(path / name, run, trial) for name, trial in directories_of(run.record)]
    folders = sorted(below.parent for below in path.glob(f"*/{RESULT_FILE}"))
    return [TrialFolder(folder, run, None) for folder in folders]


def _run(path: Path) -> RunFolder:
    try:
        return RunFolder(path, read_run_record(path), None)
    except ResumeError as error:
        return RunFolder(path, None, error.message)


def number(value: Any) -> float | None:
    """Return a finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer of hundreds of digits
        return None
