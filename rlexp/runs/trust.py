"""Which directories may be written to, or name modules to import: a run or a checkpoint may be a stranger's."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_modules import UserModules
from rlexp.errors import ResumeError
from rlexp.runs.run_lock import in_use, is_in_use
from rlexp.runs.run_name import derived_name
from rlexp.runs.run_record import RUN_FILE, RunRecord

_MODULES: Final = (".py", ".pyc", ".so")


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
    refuse_modules_within(run, record.modules)


def refuse_own_modules(run: Path, trials: Iterable[Trial], folders: tuple[str, ...]) -> None:
    """Raise ResumeError where a class that a trial names would come from ``run`` itself."""
    names = dict.fromkeys(name for trial in trials for name in trial.experiment.named_modules)
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


def refuse_modules_within(path: Path, modules: UserModules) -> None:
    """Raise ResumeError where one of ``modules.imports``, or any that is imported later, may be in ``path``.

    No run of rlexp has any, so they were put there by someone else. Python looks where it is started, too.
    """
    for name in modules.imports:
        for place in _places(name, modules.folders):
            if place.parent.resolve().is_relative_to(path.resolve()) and _is_module(place):
                raise ResumeError(
                    f"the module {name}, which {path} names, is inside it: {place}",
                    "move it elsewhere if it is yours; a run has no modules",
                )
    here = Path.cwd()
    if not here.is_relative_to(path.resolve()):
        return
    for name in _modules_in(here):
        raise ResumeError(
            f"{here / name} is not part of a run, and would be imported from here",
            "start rlexp from another folder, and remove it unless you trust it",
        )


def _places(name: str, folders: tuple[str, ...]) -> Iterator[Path]:
    """Yield where a module and the packages around it would be, without a suffix."""
    parts = [part for part in name.split(".") if part]
    for folder in {Path.cwd(), *map(Path, (*sys.path, *folders))}:
        yield from (folder.joinpath(*parts[:count]) for count in range(1, len(parts) + 1))


def _is_module(place: Path) -> bool:
    return place.is_dir() or any(place.with_name(place.name + suffix).exists() for suffix in _MODULES)


def _modules_in(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.suffix in _MODULES or any((path / f"__init__{suffix}").exists() for suffix in _MODULES):
            yield path.name
