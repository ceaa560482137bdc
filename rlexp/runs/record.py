"""``run.json``: a run's command, origin and trials' progress, for ``ls``, ``resume`` and people.

The command that owns a RunDirectory writes it; a reader may read a stranger's. The last part reads the commit from
which a run was started, without running any program that the repository names: its configuration and hooks name
programs that git runs (``core.fsmonitor``, filters, ``textconv``). So git gets a folder of ours in place of ``.git``,
with the repository's objects and its index, and never sees its configuration.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rlexp import __version__
from rlexp.errors import ResumeError
from rlexp.files import read_json, read_regular, replace_json
from rlexp.processes.locks import RUN_FILE
from rlexp.runs.rows import flatten

EXPERIMENT_FILE: Final = "experiment.yaml"
"""The first experiment file, unchanged."""
RESOLVED_FILE: Final = "resolved.yaml"
"""The experiments with every default and seed, which a resumed run uses."""

PARAMETERS_FILE: Final = "params.json"
"""A trial's agent, environment and keys."""
FORMAT: Final = 1
EVALUATED_REWARD: Final = "evaluation/episode_reward_mean"
_SEE_LS: Final = "rlexp ls DIR lists runs"
_IF_DAMAGED: Final = (
    "put back a copy of it; without one, rlexp logs and rlexp compare still read its trials, "
    "and rlexp evaluate a checkpoint in them"
)
_PACKAGES: Final = ("ray", "torch", "gymnasium", "numpy")
_NOTHING_ELSE: Final = ConfigDict(extra="forbid")


class Status(StrEnum):
    """The state of a run or a trial."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    TERMINATED = "TERMINATED"
    """Its ``stop`` was reached."""
    PRUNED = "PRUNED"
    """The scheduler of a sweep ended it, as others were better."""
    STOPPED = "STOPPED"
    """It was stopped; it can be resumed."""
    ERROR = "ERROR"


@dataclass
class RecordedError:
    """Why a trial failed."""

    __pydantic_config__ = _NOTHING_ELSE
    summary: str
    """One line."""
    traceback: str | None = None
    """File with the whole traceback, relative to the run directory."""


@dataclass
class TrialRecord:
    """One trial in ``run.json``; paths are relative to the run directory, so that it may be moved."""

    __pydantic_config__ = _NOTHING_ELSE
    name: str
    directory: str
    seed: int | None
    varied: dict[str, Any]
    status: Status = Status.PENDING
    iterations: int = 0
    timesteps_total: int = 0
    time_total_s: float = 0.0
    episode_reward_mean: float | None = None
    best_episode_reward_mean: float | None = None
    best_checkpoint: str | None = None
    best_checkpoint_reward: float | None = None
    """The mean reward of training when it was written."""
    best_checkpoint_evaluation: float | None = None
    """The mean reward of its evaluation, if it had one."""
    error: RecordedError | None = None
    reason: str | None = None
    """Why it ended, if it reached its stop or its sweep ended it."""
    env: str | None = None
    """Its env; None in records of earlier versions."""
    storage: str | None = None
    """URL of the second place of its checkpoints, without secrets."""
    board_task: str | None = None
    """The id of its task on a board, if it has one; a resumed run continues the task unless that is over."""
    board: str | None = None
    """The server of that board, as ids are unique on one board only, and submitters choose them."""

    def add_result(self, row: Mapping[str, Any]) -> None:
        """Record the trial's progress from a result row."""
        self.iterations = row["training_iteration"]
        self.timesteps_total = row["timesteps_total"]
        self.time_total_s = row["time_total_s"]
        reward = known_number(row.get("episode_reward_mean"))
        if reward is not None:
            self.episode_reward_mean = reward
            best = self.best_episode_reward_mean
            self.best_episode_reward_mean = reward if best is None else max(reward, best)

    def add_checkpoint(self, checkpoint: Path, row: Mapping[str, Any]) -> None:
        """Record the checkpoint that was written with ``row`` as the best, unless an earlier one was better."""
        values = flatten(row)
        evaluation, reward = (known_number(values.get(name)) for name in (EVALUATED_REWARD, "episode_reward_mean"))
        if self.best_checkpoint is None or rank_of_checkpoint(evaluation, reward) >= self.rank_of_checkpoint:
            self.best_checkpoint = f"{self.directory}/{checkpoint.name}"
            self.best_checkpoint_evaluation, self.best_checkpoint_reward = evaluation, reward

    @property
    def rank_of_checkpoint(self) -> float:
        """Rank of the best checkpoint; see :func:`rank_of_checkpoint`."""
        return rank_of_checkpoint(self.best_checkpoint_evaluation, self.best_checkpoint_reward)


@dataclass
class RunRecord:
    """The contents of ``run.json``."""

    __pydantic_config__ = _NOTHING_ELSE
    name: str
    command: list[str]
    versions: dict[str, str | None]
    git_commit: str | None
    host: str
    cpus: int
    started: str
    """ISO time with the offset from UTC, as ``ended`` is."""
    ended: str | None = None
    imports: list[str] = field(default_factory=list)
    """Modules that register its envs."""
    module_folders: list[str] = field(default_factory=list)
    """Folders in which these and modules of env classes were searched: the current folder then, and its files'."""
    status: Status = Status.RUNNING
    trials: list[TrialRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._by_name: dict[str, TrialRecord] = {}

    def trial(self, name: str) -> TrialRecord:
        """Return the record of the trial with this name; raises KeyError if the run has none."""
        return self._trials_by_name()[name]

    def knows(self, name: str) -> bool:
        """Return whether the run has a trial with this name."""
        return name in self._trials_by_name()

    def add(self, trial: TrialRecord) -> None:
        self.trials.append(trial)
        self._by_name[trial.name] = trial

    def _trials_by_name(self) -> dict[str, TrialRecord]:
        if len(self._by_name) != len(self.trials):
            self._by_name = {trial.name: trial for trial in self.trials}
        return self._by_name

    def write(self, run_directory: Path) -> None:
        """Replace ``run.json`` as a whole: a reader sees the old or the new one."""
        seeds = [trial.seed for trial in self.trials]
        replace_json(run_directory / RUN_FILE, {"format": FORMAT, **asdict(self), "seeds": seeds})


def read_run_record(run_directory: Path) -> RunRecord:
    """Read ``run.json``; raises ResumeError if it is missing, damaged or of another format."""
    path = run_directory / RUN_FILE
    try:
        content = read_json(path)
        _refuse_other_form(path, content)
        if content.pop("format") == FORMAT:
            content.pop("seeds", None)
            return _reader().validate_python(content)
    except NotADirectoryError:
        message = f"{run_directory} is a file, not the folder of a run"
        raise ResumeError(message, hint_to_runs(run_directory)) from None
    except FileNotFoundError:
        if not run_directory.exists():
            raise ResumeError(f"path {run_directory} does not exist", hint_to_runs(run_directory)) from None
        if looks_like_run(run_directory):
            raise ResumeError(f"the run {run_directory} has lost its {RUN_FILE}", _IF_DAMAGED) from None
        message = f"{run_directory} is not a run of rlexp: it has no {RUN_FILE}"
        raise ResumeError(message, hint_to_runs(run_directory)) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ResumeError(f"{path} is damaged ({where}: {first['msg']})", _IF_DAMAGED) from None
    except (OSError, ValueError) as error:
        raise ResumeError(f"{path} is damaged ({type(error).__name__}: {error})", _IF_DAMAGED) from error
    raise ResumeError(f"{path} was written by another version of rlexp", "use the version that it names")


@cache
def _reader() -> TypeAdapter[RunRecord]:
    return TypeAdapter(RunRecord)


def _refuse_other_form(path: Path, content: Any) -> None:
    """Raise ResumeError for a file of another program with the same name."""
    if not isinstance(content, dict):
        raise ResumeError(f"{path} does not belong to a run of rlexp: it has no mapping", _SEE_LS)
    if not isinstance(content.get("format"), int):
        raise ResumeError(f"{path} does not belong to a run of rlexp: its format is not a number", _SEE_LS)


def looks_like_run(path: Path) -> bool:
    """Return whether a path is the directory of a run, also of one that has lost its ``run.json``."""
    return any(os.path.isfile(path / name) for name in (RUN_FILE, RESOLVED_FILE))


def hint_to_runs(path: Path) -> str:
    """Return the hint for a path that is not a run: a run in it, or one of nearly that name, or how to list runs."""
    try:
        inside = min((found.parent for found in path.glob(f"*/{RUN_FILE}")), default=None)
        near = [found.parent for form in ("*", "*/*") for found in path.parent.glob(f"{form}/{RUN_FILE}")]
    except (OSError, ValueError):
        return _SEE_LS
    if inside is not None:
        return f"name a run in it, for example {inside}; rlexp ls {path} lists them"
    close = get_close_matches(path.stem, [run.name for run in near], n=1)
    meant = next((run for run in near if run.name in close), None)
    return _SEE_LS if meant is None else f"did you mean {meant}? {_SEE_LS}"


def is_in_run(directory: str) -> bool:
    """Return whether a recorded trial's directory is in the run's, as the record may be a stranger's."""
    return directory not in ("", "..") and "\0" not in directory and Path(directory).name == directory


def rank_of_checkpoint(evaluation: Any, training: Any) -> float:
    """Return how good a checkpoint is: the mean reward of its evaluation, or of the training before it if it had none.

    Both estimate the same return. Training explores, so its estimate is rather too low. If it is higher than every
    evaluation, the weights have improved since these.
    """
    for value in (evaluation, training):
        if isinstance(value, int | float) and not math.isnan(value):  # the record may be a stranger's
            return value
    return -math.inf


def known_number(value: Any) -> float | None:
    """Return ``value`` as a float; None if it is None or not finite, as before a first measurement."""
    return float(value) if value is not None and math.isfinite(value) else None


def now() -> str:
    """Return the local time in ISO form, to the second and with its offset from UTC."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Return the versions of rlexp, Python and the packages that affect results; None if one is not installed."""
    return {
        "rlexp": __version__,
        "python": platform.python_version(),
        **{name: installed_version(name) for name in _PACKAGES},
    }


def installed_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 << 20
"""Most bytes read from a file of git; packed-refs of a large repository has some MB."""
_HASH: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF: Final = re.compile(r"refs/[\w./+@#=-]+")
_SHA256_LENGTH: Final = 64
_CHANGED: Final = 1
"""The exit code of ``git diff --quiet`` if files differ."""
_WITH_SHA256: Final = "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n"


def git_commit(directory: Path) -> str | None:
    """Return the commit checked out in ``directory``, with ``-dirty`` if tracked files differ; None without one."""
    for tree in (directory.absolute(), *directory.absolute().parents):
        folder = _git_folder(tree / ".git")
        if folder is not None:
            commit = _head(folder)
            return commit if commit is None or not _is_dirty(tree, folder, commit) else f"{commit}-dirty"
    return None


def _git_folder(path: Path) -> Path | None:
    """Return git's folder for ``path``, which may be the folder or a file that names it, as in a worktree."""
    if path.is_dir():
        return path
    named = (_text(path) or "").partition("gitdir:")[2].strip()
    folder = path.parent / named
    return folder if named and folder.is_dir() else None


def _head(folder: Path) -> str | None:
    """Return the commit of HEAD; None if there is none yet, or if refs are stored in another format."""
    head = (_text(folder / "HEAD") or "").strip()
    if _HASH.fullmatch(head):
        return head
    ref = head.removeprefix("ref:").strip()
    if not _REF.fullmatch(ref) or ".." in ref:
        return None
    common = _common(folder)
    for place in dict.fromkeys((folder, common)):
        commit = (_text(place / ref) or "").strip()
        if _HASH.fullmatch(commit):
            return commit
    lines = (line.split(" ") for line in (_text(common / "packed-refs") or "").splitlines())
    packed = next((words[0] for words in lines if words[1:] == [ref]), "")
    return packed if _HASH.fullmatch(packed) else None


def _common(folder: Path) -> Path:
    """Return the folder of the refs and objects that a worktree shares with others."""
    named = (_text(folder / "commondir") or "").strip()
    return folder / named if named else folder


def _is_dirty(tree: Path, folder: Path, commit: str) -> bool:
    """Return whether tracked files differ from ``commit``; False if that is unknown."""
    index, objects = folder / "index", _common(folder) / "objects"
    if not index.is_file() or not objects.is_dir():
        return False
    with tempfile.TemporaryDirectory(prefix="rlexp-git-") as own:
        Path(own, "refs").mkdir()
        Path(own, "HEAD").write_text(f"{commit}\n", encoding="ascii")
        Path(own, "config").write_text(_WITH_SHA256 if len(commit) == _SHA256_LENGTH else "", encoding="ascii")
        places = {"GIT_DIR": own, "GIT_WORK_TREE": tree, "GIT_OBJECT_DIRECTORY": objects, "GIT_INDEX_FILE": index}
        words = ("diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", commit)
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", *words, "--"],
                cwd=tree,
                env=_environment() | {name: str(place) for name, place in places.items()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.SubprocessError):
            return False
    return done.returncode == _CHANGED


def _environment() -> dict[str, str]:
    """Return the environment without git's settings, so that no file of this user or the system names programs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0"}


def _text(path: Path) -> str | None:
    """Return the text of a small regular file; None if it is not one."""
    try:
        return read_regular(path, _MOST_BYTES).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return None
