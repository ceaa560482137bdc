"""The user's own modules that an experiment names: which they are and where they may lie; none is imported here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class UserModules:
    """What a run may import that is not installed."""

    imports: tuple[str, ...] = ()
    """Modules that register envs (``--import``)."""
    folders: tuple[str, ...] = ()
    """Folders, absolute, in which these and the modules of env classes are looked for after all installed ones."""
    decided: tuple[str, ...] | None = None
    """The only modules that may be imported by name; None: any, since it is an experiment of the user's own.

    Others have been refused before: this is a second lock, also in processes that were handed a part of a run.
    """

    @staticmethod
    def of(content: Mapping[str, Any]) -> UserModules:
        """Return the modules whose fields went through JSON."""
        decided = content["decided"]
        return UserModules(
            tuple(content["imports"]), tuple(content["folders"]), None if decided is None else tuple(decided)
        )


@dataclass(frozen=True)
class UserPart:
    """A class of the user's own that an experiment names."""

    key: str
    """The key that names it, from the experiment on: ``config.model.custom_model``."""
    name: str
    """``package.module:Class``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments that the file gives it."""
    base: str = ""
    """What it must derive from, as its user knows it: ``gymnasium.Wrapper``; empty: not said."""

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.name.partition(":")[0]


NO_MODULES = UserModules()
"""Of a run that imports nothing but what is installed."""


def modules_of(env: str) -> tuple[str, ...]:
    """Return the modules that the name of an env makes a run import: that of ``package.module:Class``, or none."""
    module, colon, _ = env.partition(":")
    return (module,) if colon else ()


def folders_for(files: Iterable[Path]) -> tuple[str, ...]:
    """Return where the modules of experiment files are looked for: the current folder, then those of the files."""
    return with_current_folder(str(file.absolute().parent) for file in files)


def with_current_folder(folders: Iterable[str]) -> tuple[str, ...]:
    """Return ``folders`` behind the one where the command was started."""
    return tuple(dict.fromkeys((str(Path.cwd()), *folders)))
