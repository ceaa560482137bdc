"""How files are to be read: what a command's flags say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlexp.config.experiment import Experiment

Adjust = Callable[[Experiment], tuple[Experiment, tuple[str, ...]]]
"""Changes an experiment, say to fit a machine, and says what it changed."""


@dataclass(frozen=True)
class LoadOptions:
    """How files are to be read."""

    imports: tuple[str, ...] = ()
    """Modules that register environments: ids that are known to nobody else may be theirs."""
    allow_unknown: bool = False
    """Leave unknown keys out, with a notice each, instead of refusing them."""
    adjust: Adjust | None = None
    """Applied to every corner of every experiment once it is valid."""
