"""Keeps Python from importing files of runs, and installed packages from importing files beside them."""

from __future__ import annotations

import dis
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Final, ParamSpec, TypeVar

from rlexp.user_code.finding import is_installed_file

P = ParamSpec("P")
Result = TypeVar("Result")

_OF_THIS_PACKAGE: Final = os.path.dirname(__file__) + os.sep
_IMPORT: Final = dis.opmap["IMPORT_NAME"]
_OF_IMPORTS: Final = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)


class FromSource(SourceFileLoader):
    """Runs the source that was shown and hashed, never the bytecode beside it, which may be from another source."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the compiled source."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class ImportGuard:
    """A finder before Python's own for files, which hides some of its results."""

    def __init__(self) -> None:
        self._runs: set[Path] = set()
        self._beside: list[Path] = []
        self._named: list[Path] = []
        self._allowed: set[Path] = set()

    def refuse(self, run: Path) -> None:
        """Hide everything in a run or checkpoint from now on, as it has no modules."""
        self._runs.add(run.resolve())
        self._install()

    def _install(self) -> None:
        if self not in sys.meta_path:
            places = [number for number, finder in enumerate(sys.meta_path) if finder is PathFinder]
            sys.meta_path.insert(places[0] if places else 0, self)

    def allow(self, folders: Sequence[str]) -> None:
        """Let modules be found in folders of the user's, while a run beside them is read.

        This applies to named modules and their imports. Nobody has allowed a module there that an installed package
        asks for by name.
        """
        self._allowed |= {Path(folder).resolve() for folder in folders}
        if self._allowed:
            self._install()

    @contextmanager
    def reading(self, run: Path) -> Iterator[None]:
        """Hide what is beside ``run`` and in the current folder from installed packages in the body.

        They may try to import optional packages that are not installed, and would find files there. Folders inside
        these that the user's PYTHONPATH names hold packages of the user's: their modules can be found by name. A
        relative path in it names another folder wherever the user stands, also one of a stranger, and does not count.
        """
        run = run.resolve()
        places = [run, run.parent, run.parent.parent, Path.cwd().resolve()]
        paths = map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        folders = (path.resolve() for path in paths if path.is_absolute())
        named = [folder for folder in folders if not folder.is_relative_to(run)]
        self._beside += places
        self._named += named
        self._install()
        try:
            yield
        finally:  # not the last ones: another thread may read another run
            for place in places:
                self._beside.remove(place)
            for folder in named:
                self._named.remove(folder)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the result of Python's own finder; raises ModuleNotFoundError if that is hidden."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and any(map(self._is_hidden, _places(spec))):
            place = next(_places(spec))
            why = (
                "is in a run"
                if self._is_in_a_run(place)
                else "is beside a run, and PYTHONPATH has no absolute path to it"
            )
            raise ModuleNotFoundError(f"No module named {name!r}: {place} is not imported, as it {why}", name=name)
        if spec is not None and type(spec.loader) is SourceFileLoader and self._is_allowed(spec.loader.path):
            spec.loader = FromSource(spec.loader.name, spec.loader.path)
        return spec

    def invalidate_caches(self) -> None:
        """Do nothing, as it has no caches."""

    def _is_hidden(self, place: str) -> bool:
        if self._is_in_a_run(place):
            return True
        if is_installed_file(place):
            return False
        if self._is_allowed(place):
            return _importer_is_installed(by_statement=True)
        path = Path(os.path.realpath(place))
        beside = _depth(path, self._beside)
        return beside > 0 and _importer_is_installed(by_statement=_depth(path, self._named) > beside)

    def _is_in_a_run(self, place: str) -> bool:
        return any(Path(os.path.realpath(place)).is_relative_to(run) for run in self._runs)

    def _is_allowed(self, place: str) -> bool:
        path = Path(os.path.realpath(place))
        return any(path.is_relative_to(folder) for folder in self._allowed) and not is_installed_file(place)


GUARD: Final = ImportGuard()
"""The guard of this process."""


def hides_what_is_beside(read: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function whose first argument is a run or checkpoint; see ``ImportGuard.reading``."""

    @wraps(read)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> Result:
        with GUARD.reading(Path(str(args[0]))):
            return read(*args, **kwargs)

    return guarded


def _depth(path: Path, folders: Iterable[Path]) -> int:
    """Return the number of parts of the innermost folder that contains ``path``; 0 if none does."""
    return max((len(folder.parts) for folder in folders if path.is_relative_to(folder)), default=0)


def _places(spec: ModuleSpec) -> Iterator[str]:
    if spec.has_location and spec.origin is not None:
        yield spec.origin
    yield from spec.submodule_search_locations or ()


def _importer_is_installed(*, by_statement: bool = False) -> bool:
    """Return whether the importing code is an installed package's; imports of rlexp itself are decided elsewhere.

    ``by_statement``: it must also have the name in its own ``import`` statement; else somebody gave it the name.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name != __file__ and not name.startswith(_OF_IMPORTS):
            is_installed = name.startswith("<frozen") or is_installed_file(name)
            if name.startswith(_OF_THIS_PACKAGE) or not is_installed:
                return False
            return not by_statement or frame.f_code.co_code[frame.f_lasti] == _IMPORT
        if by_statement and name.startswith(_OF_IMPORTS[1]):
            return False  # importlib.import_module
        frame = frame.f_back
    return False
