"""The entry points of installed packages, by which they bring agents and envs; nothing of a package is imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

INSTALLED_IN: tuple[str, ...] = tuple(path for path in sys.path if path not in ("", str(Path.cwd())))
"""Where packages are searched: without the folders of experiments and runs, which come to ``sys.path`` later."""


@dataclass(frozen=True)
class PackageEntry:
    """An entry point, and its packages."""

    name: str
    """The name in its package's spelling."""
    value: str
    """``package.module:attribute``."""
    packages: tuple[str, ...]
    """The packages with an entry point of this name, as pip shows them. The first one in the path is first; this is its
    entry point."""

    @property
    def package(self) -> str:
        """The package of the entry point."""
        return self.packages[0]

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.value.partition(":")[0]


def entry_points(group: str, key_of: Callable[[str], str] = str) -> Mapping[str, PackageEntry]:
    """Return the entry points of installed packages in a group, by ``key_of`` their names."""
    return _entry_points(INSTALLED_IN, group, key_of)


@cache
def _entry_points(path: tuple[str, ...], group: str, key_of: Callable[[str], str]) -> Mapping[str, PackageEntry]:
    from importlib.metadata import distributions  # its import takes longer than all keys

    found: dict[str, PackageEntry] = {}
    seen: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = distribution.metadata["Name"]
        if package is None or _as_pip_compares(package) in seen:  # the first in the path is the one that is imported
            continue
        seen.add(_as_pip_compares(package))
        for entry in distribution.entry_points.select(group=group):
            first = found.get(key_of(entry.name), PackageEntry(entry.name, entry.value, ()))
            found[key_of(entry.name)] = PackageEntry(first.name, first.value, (*first.packages, package))
    return MappingProxyType(found)


def _as_pip_compares(package: str) -> str:
    """Return the same name for all spellings of a package: ``my-cql`` for My_CQL and my.cql."""
    return re.sub(r"[-_.]+", "-", package).lower()
