"""How files are to be read: what a command's flags say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlexp.config.keys.experiment import Experiment

Adjust = Callable[[Experiment], tuple[Experiment, tuple[str, ...]]]
"""Changes an experiment, say to fit a machine, and says what it changed."""


@dataclass(frozen=True)
class Flag:
    """An option of the command line that is a key of every experiment."""

    shown: str
    """As messages name it: ``--num-samples 8``."""
    key: str
    """Its dotted path."""
    text: str
    """Its value, as YAML."""


@dataclass(frozen=True)
class LoadOptions:
    """How files are to be read."""

    imports: tuple[str, ...] = ()
    """Modules that register environments: unknown ids may be theirs."""
    module_folders: tuple[str, ...] | None = None
    """Folders in which the user's modules are searched. None: the current folder and those of the files."""
    allow_unknown: bool = False
    """Leave unknown keys out, with a notice each, instead of refusing them."""
    is_sweep: bool = False
    """Search, also where a file has no ``search`` section."""
    flags: tuple[Flag, ...] = ()
    """Laid over every experiment before its other overrides."""
    adjust: Adjust | None = None
    """Applied to every variant of every experiment once it is valid."""
