"""Envs that installed packages bring by entry points of the group ``rlexp.envs``; nothing of them is imported here.

The name of an entry point is an env's id, or the namespace in front of the slash of several ids::

    [project.entry-points."rlexp.envs"]
    Maze-v0 = "maze.envs:MazeEnv"         # a class: env: Maze-v0
    maze = "maze.envs:register_envs"      # a function that registers envs with Gymnasium: env: maze/Large-v0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rlexp.config.keys.entry_points import PackageEntry, entry_points

GROUP: Final = "rlexp.envs"


def provider_of(env: str) -> PackageEntry | None:
    """Return the entry point of an id that is neither Gymnasium's nor a class; None where no package has one."""
    found = _providers()
    return found.get(env) or found.get(env.partition("/")[0] if "/" in env else "")


def provided_names() -> tuple[str, ...]:
    """Return what installed packages bring, for messages: ids, and namespaces as ``maze/...``."""
    return tuple(sorted(_providers()))


def _providers() -> Mapping[str, PackageEntry]:
    return entry_points(GROUP)
