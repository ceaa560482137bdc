"""What ``rlexp resume`` asks of a run before it imports and writes there what the run says."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlexp.checkpoint import refuse_foreign, refuse_modules_within
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_modules import UserModules, modules_of
from rlexp.errors import ResumeError
from rlexp.runs.run_lock import in_use, is_in_use
from rlexp.runs.run_name import derived_name
from rlexp.runs.run_record import RUN_FILE, RunRecord


def refuse_untrusted(run: Path, record: RunRecord) -> None:
    """Raise ResumeError where to go on with ``run`` could run or overwrite what is not its own.

    All of it belongs to this user and not every other may write it, its trials lie in it, and it is made of files and
    directories: a link would be written through, and a pipe would keep its reader waiting.
    """
    if is_in_use(run):
        raise in_use(run)  # and its files come and go
    for path in (run.resolve(), *_below(run)):
        try:
            refuse_foreign(path)
            _refuse_no_file(path)
        except FileNotFoundError:
            continue
    for trial in record.trials:
        if not str(trial.name).isprintable() or trial.directory != derived_name(str(trial.name)):
            message = f"{run / RUN_FILE} points elsewhere: {trial.directory!r} is not the directory of {trial.name!r}"
            raise ResumeError(message, "restore the file from a copy")
    refuse_modules_within(run, record.modules)


def refuse_own_modules(run: Path, trials: Iterable[Trial], folders: tuple[str, ...]) -> None:
    """Raise ResumeError where the class of a trial's env would come from ``run`` itself."""
    names = dict.fromkeys(name for trial in trials for name in modules_of(trial.experiment.env))
    refuse_modules_within(run, UserModules(tuple(names), folders))


def _refuse_no_file(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a directory"
        raise ResumeError(f"{path} is {what}", "resume writes into a run: put files in its place if you trust it")


def _below(run: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(run):
        for name in sorted((*folders, *files)):
            yield Path(folder, name)
