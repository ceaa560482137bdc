"""Whose a directory is: what a stranger can write may be read, but no module is imported because it says so."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rlexp.errors import ResumeError

_MODULES: Final = (".py", ".pyc", ".so")


def refuse_foreign(path: Path) -> None:
    """Raise ResumeError for what belongs to another user, or what every user may write."""
    about = path.lstat()
    if about.st_uid != os.geteuid():
        raise ResumeError(f"{path} belongs to another user", "its modules would be imported: copy it if you trust it")
    if about.st_mode & stat.S_IWOTH and not stat.S_ISLNK(about.st_mode):
        raise ResumeError(f"{path} may be written by every user", f"chmod o-w {path}, if you trust what is in it")


def refuse_modules_within(path: Path) -> None:
    """Raise ResumeError where Python would look for modules in ``path`` and find some: it does so where it is started.

    No run of rlexp has any, so whoever handed it over put them there.
    """
    here = Path.cwd()
    if not here.is_relative_to(path.resolve()):
        return
    for name in _modules_in(here):
        raise ResumeError(
            f"{here / name} is no part of a run, and would be imported from here",
            "start rlexp from another folder, and remove it unless you trust it",
        )


def _modules_in(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.suffix in _MODULES or any((path / f"__init__{suffix}").exists() for suffix in _MODULES):
            yield path.name
