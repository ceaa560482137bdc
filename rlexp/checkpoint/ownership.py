"""Whose a directory is: what a stranger can write may be read, but no module is imported because it says so."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlexp.config.keys.user_modules import UserModules
from rlexp.errors import ResumeError

_MODULES: Final = (".py", ".pyc", ".so")
_RUN_FILE: Final = "run.json"


def refuse_foreign(path: Path) -> None:
    """Raise ResumeError for what belongs to another user, or what every user may write."""
    about = path.lstat()
    if about.st_uid != os.geteuid():
        raise ResumeError(f"{path} belongs to another user", "it can name modules to import: copy it if you trust it")
    if about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode):
        raise ResumeError(f"{path} may be written by every user", "chmod -R o-w its folder, if you trust what is in it")


def run_of(checkpoint: Path) -> Path:
    """Return the run in which a checkpoint lies, or the checkpoint itself where it was copied out of one."""
    run = checkpoint.resolve().parent.parent
    return run if (run / _RUN_FILE).is_file() else checkpoint.resolve()


def refuse_modules_within(path: Path, modules: UserModules) -> None:
    """Raise ResumeError where one of ``modules.imports``, or any that is imported later, may lie in ``path``.

    No run of rlexp has any, so whoever handed it over put them there. Python looks where it is started, too.
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
