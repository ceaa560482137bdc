"""What a program asks of the process that trains for it; goes there as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

NO_FILES: Final[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Source:
    """Where experiments come from: files, or the values of a dict."""

    files: tuple[str, ...] = NO_FILES
    data: Mapping[str, Any] | None = None
    folders: tuple[str, ...] = ()
    """Where the modules that a dict names are looked for; those of files are looked for beside them."""


@dataclass(frozen=True)
class TrainingRequest:
    """What is trained, and how."""

    kind: Literal["run", "sweep", "resume"]
    overrides: tuple[str, ...]
    source: Source = field(default_factory=Source)
    path: str = ""
    """The run that is resumed."""
    out: str = ""
    name: str | None = None
    overwrite: bool = False
    seed: int | None = None
    imports: tuple[str, ...] = ()
    allow_env: tuple[str, ...] = ()
    allow_class: tuple[str, ...] = ()
    allow_storage: tuple[str, ...] = ()
    allow_unknown: bool = False
    fit: bool = False
    allow_failures: int = 0
    """Of a sweep: trials that may fail."""
    address: str | None = None
    quiet: bool = False
    debug: bool = False
    command: tuple[str, ...] = ()
    """What the run's record says started it."""

    @staticmethod
    def of(content: Mapping[str, Any]) -> TrainingRequest:
        """Return the request whose fields went through JSON."""
        return TrainingRequest(**{**content, "source": Source(**content["source"])})
