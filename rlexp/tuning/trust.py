"""What ``rlexp resume`` asks of a run before it imports and writes there what the run says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rlexp.checkpoint import refuse_foreign, refuse_modules_within
from rlexp.errors import ResumeError
from rlexp.tuning.run_name import derived_name
from rlexp.tuning.run_record import RUN_FILE, RunRecord


def refuse_untrusted(run: Path, record: RunRecord) -> None:
    """Raise ResumeError where to go on with ``run`` could run or overwrite what is not its own.

    All of it belongs to this user alone, its trials lie in it, and it is made of files and directories: a link would
    be written through, and a pipe would keep its reader waiting.
    """
    for path in (run.resolve(), *_below(run)):
        refuse_foreign(path)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            what = "a link" if path.is_symlink() else "neither a file nor a directory"
            raise ResumeError(f"{path} is {what}", "resume writes into a run: put files in its place if you trust it")
    for trial in record.trials:
        if not str(trial.name).isprintable() or trial.directory != derived_name(str(trial.name)):
            message = f"{run / RUN_FILE} leads elsewhere: {trial.directory!r} is no directory of {trial.name!r}"
            raise ResumeError(message, "restore the file from a copy")
    refuse_modules_within(run)


def _below(run: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(run):
        for name in sorted((*folders, *files)):
            yield Path(folder, name)
