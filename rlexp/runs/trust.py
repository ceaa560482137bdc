"""Which directories may be written to, or choose among this user's modules: a run may be a stranger's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from rlexp.errors import ResumeError
from rlexp.processes.locks import RUN_FILE, in_use, is_in_use
from rlexp.runs.directories import derived_name
from rlexp.runs.record import RunRecord


def refuse_untrusted(run: Path, record: RunRecord) -> None:
    """Raise ResumeError where resuming ``run`` could run or overwrite files that are not part of it.

    All of it belongs to this user and not every other may write it, its trials are in it, and it is made of files and
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


def _refuse_no_file(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        what = "a link" if stat.S_ISLNK(mode) else "neither a file nor a directory"
        raise ResumeError(f"{path} is {what}", "resume writes into a run: put files in its place if you trust it")


def _below(run: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(run):
        for name in sorted((*folders, *files)):
            yield Path(folder, name)


def refuse_foreign(path: Path) -> None:
    """Raise ResumeError for what belongs to another user, or what every user may write."""
    about = path.lstat()
    if about.st_uid != os.geteuid():
        raise ResumeError(f"{path} belongs to another user", "it can name modules to import: copy it if you trust it")
    if about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode):
        raise ResumeError(f"{path} may be written by every user", "chmod -R o-w its folder, if you trust what is in it")


def run_of(checkpoint: Path) -> Path:
    """Return the run that a checkpoint is in, or the checkpoint itself where it was copied out of one."""
    run = checkpoint.resolve().parent.parent
    return run if (run / RUN_FILE).is_file() else checkpoint.resolve()
