"""Envs that installed packages bring by entry points of the group ``rlexp.envs``; nothing of them is imported here.

The name of an entry point is an env's id, or the namespace in front of the slash of several ids::

    [project.entry-points."rlexp.envs"]
    Maze-v0 = "maze.envs:MazeEnv"         # a class: env: Maze-v0
    maze = "maze.envs:register_envs"      # a function that registers envs with Gymnasium: env: maze/Large-v0
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

GROUP: Final = "rlexp.envs"

INSTALLED_IN: tuple[str, ...] = tuple(path for path in sys.path if path not in ("", str(Path.cwd())))
"""Where packages are looked for: without the folders of experiments and runs, which come to ``sys.path`` later."""


@dataclass(frozen=True)
class Provider:
    """An entry point, and who brings it."""

    name: str
    """An env's id, or the namespace of several."""
    value: str
    """``package.module:attribute``, a class of envs or a function that registers some."""
    package: str
    """The package, as pip knows it."""
    rivals: tuple[str, ...] = ()
    """Other packages with an entry point of the same name."""

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.value.partition(":")[0]


def provider_of(env: str) -> Provider | None:
    """Return the entry point of an id that is neither Gymnasium's nor a class; None where no package has one."""
    found = providers(INSTALLED_IN)
    return found.get(env) or found.get(env.partition("/")[0] if "/" in env else "")


@cache
def providers(path: tuple[str, ...]) -> Mapping[str, Provider]:
    """Return the entry points of all packages that are installed in the folders of ``path``, by their names."""
    from importlib.metadata import distributions  # takes longer to import than all keys

    found: dict[str, Provider] = {}
    packages: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = distribution.metadata["Name"]
        if package is None or package in packages:  # the first in the path is the one that is imported
            continue
        packages.add(package)
        for entry in distribution.entry_points.select(group=GROUP):
            own = Provider(entry.name, entry.value, package)
            first = found.setdefault(entry.name, own)
            if first is not own:
                found[entry.name] = replace(first, rivals=(*first.rivals, package))
    return MappingProxyType(found)


def provided_names() -> tuple[str, ...]:
    """Return what installed packages bring, for messages: ids, and namespaces as ``maze/...``."""
    return tuple(sorted(providers(INSTALLED_IN)))
