"""Finds the user's code without running it: folders and files of modules, and the line that raised an error.

Callers catch ``BaseException`` to ask for that line: an env may raise anything, even ``KeyboardInterrupt`` and
``GeneratorExit``.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Final

import rlexp
from rlexp.files import open_regular

_OURS: Final = str(Path(rlexp.__file__).resolve().parent) + os.sep
NOT_THE_USERS: Final = (
    *(str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "purelib", "platlib")),
    _OURS,
)
"""Folders of code that the user did not write."""
_LONGEST_LINE: Final = 500


def raised_by_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: ValueError: the first line of its message``.

    Raises ``error`` itself if it is a Ctrl-C during the code.
    """
    if isinstance(error, KeyboardInterrupt) and not _is_of_users_statement(error):
        raise error
    return _line_of_user(error) + named(error)


def named(error: BaseException) -> str:
    """Return ``ValueError: the first line of its message``; only the type if the message cannot be made."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        return f"{type(error).__name__} (its __str__ fails)"
    return type(error).__name__ + (f": {lines[0][:_LONGEST_LINE]}" if lines else "")


def _is_of_users_statement(error: BaseException) -> bool:
    """Return whether a ``raise`` raised an error, and not Python itself or a signal handler of ours."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or str(Path(last.tb_frame.f_code.co_filename).resolve()).startswith(_OURS):
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _line_of_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: `` for the innermost line of code that is not a library's; empty without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_absolute() and not str(path.resolve()).startswith(NOT_THE_USERS):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{shown}:{frame.lineno} in {frame.name}: "
    return ""


LOADERS = (
    (ExtensionFileLoader, EXTENSION_SUFFIXES),
    (SourceFileLoader, SOURCE_SUFFIXES),
    (SourcelessFileLoader, BYTECODE_SUFFIXES),
)
"""Python's own loaders of modules, in its order."""
_PIECE: Final = 1 << 20


@dataclass(frozen=True)
class ModuleFile:
    """The files that run when a module is imported."""

    module: str
    file: str
    """The real path of its file, or of its archive."""
    folder: str
    """The folder in which its outermost package is searched."""
    sha256: str
    """Hash of its file and the files of the packages around it."""

    def is_within(self, places: Sequence[Path]) -> bool:
        """Return whether it is in one of ``places``, which are real paths."""
        return any(Path(self.file).is_relative_to(place) for place in places)


def module_file(name: str, folders: Sequence[str]) -> ModuleFile | None:
    """Return what importing ``name`` would run, from Python's search path or ``folders``; None if there is none."""
    parts = name.split(".")
    specs = [find_module(".".join(parts[:count]), folders) for count in range(1, len(parts) + 1)]
    files = [_file_of(spec) for spec in specs if spec is not None]
    if None in specs or not specs or files[-1] is None:
        return None
    digest = hashlib.sha256()
    for file in files:
        if file is not None and not _add(file, digest):
            return None
    return ModuleFile(name, str(files[-1]), _folder_of(specs[0]), digest.hexdigest())


def is_installed_file(path: str) -> bool:
    """Return whether a file belongs to Python, an installed package or rlexp itself."""
    return os.path.realpath(path).startswith(NOT_THE_USERS)


def _file_of(spec: ModuleSpec) -> Path | None:
    """Return the file of a module, or the archive around it; None for one without: a mere folder, or built in."""
    if spec.origin is None or not spec.has_location:
        return None
    path = Path(spec.origin).resolve()
    return next((each for each in (path, *path.parents) if each.exists()), path)


def _folder_of(spec: ModuleSpec | None) -> str:
    """Return the folder that Python searches for a top-level module."""
    places = [] if spec is None else list(spec.submodule_search_locations or filter(None, [spec.origin]))
    return str(Path(places[0]).resolve().parent) if places else ""


def _add(path: Path, digest: hashlib._Hash) -> bool:
    """Add the bytes of a regular file to ``digest``; return False if it cannot be read."""
    try:
        with open_regular(path, None) as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    except OSError:
        return False
    return True


def find_module(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """Return the place of a module in Python's search path or in ``folders``, without importing it or its packages."""
    first, *others = name.split(".")
    found = _find_top_level(first, folders)
    for count in range(1, len(others) + 1):
        if found is None or found.submodule_search_locations is None:
            return None
        found = _find_in(list(found.submodule_search_locations), ".".join((first, *others[:count])))
    return found


def _find_top_level(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    if not name.isidentifier():
        return None
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__
    try:
        return importlib.util.find_spec(name) or _find_in(folders, name)
    except (ValueError, ModuleNotFoundError):  # __main__ of a program that is not a file; a file in a run
        return None


def _find_in(folders: Sequence[str], name: str) -> ModuleSpec | None:
    """Return the module or package, with or without an ``__init__``, for the last part of ``name`` in ``folders``."""
    portions: list[str] = []
    for folder in folders:
        found = FileFinder(folder, *LOADERS).find_spec(name)
        if found is not None and found.loader is not None:
            return found
        portions += (found.submodule_search_locations or ()) if found is not None else ()
    if not portions:
        return None
    package = ModuleSpec(name, None, is_package=True)
    package.submodule_search_locations = portions
    return package
