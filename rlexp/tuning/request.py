"""A request for training: the options of ``rlexp run``, ``sweep`` and ``resume``, declared once.

The commands and the functions of Python make a request of their parameters, which have its names; ``rlexp.tuning``
reads it. A program's request goes as JSON to the process that trains for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rlexp.cluster.session import OWN, Joining

if TYPE_CHECKING:
    from rlexp.board.messages.address import BoardAddress
    from rlexp.config.command_line import Flag

NO_FILES: Final[tuple[Path, ...]] = ()
_DERIVED: Final = {"is_derived": True}
"""Marks a field that the training process computes from its own options: no parameter sets it, and JSON lacks it."""
Kind = Literal["run", "sweep", "resume"]


@dataclass(frozen=True)
class Source:
    """Where experiments come from: files, the values of a dict, or the preset for an agent and an env."""

    files: tuple[Path, ...] = NO_FILES
    data: Mapping[str, Any] | None = None
    folders: tuple[str, ...] = ()
    """Folders in which the modules of a dict are searched; modules of files are searched beside the files."""
    agent: str | None = None
    env: str | None = None
    """The agent and env of a preset, as given and perhaps misspelled."""
    name: str | None = None
    """The name of the experiment of a preset; None: the name that the preset has."""


@dataclass(frozen=True)
class TrainingRequest:
    """The experiments to train, and the options."""

    kind: Kind
    source: Source = field(default_factory=Source, metadata=_DERIVED)
    path: Path = Path()
    """The run to resume."""
    overrides: tuple[str, ...] = ()
    out: Path = Path("results")
    name: str | None = None
    """Name of the run's directory in ``out``; None: the experiment's name."""
    overwrite: bool = False
    seed: int | None = None
    imports: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Classes for names that a program registered, as ``NAME=MODULE:CLASS``."""
    allow_env: tuple[str, ...] = ()
    allow_class: tuple[str, ...] = ()
    allow_storage: tuple[str, ...] = ()
    allow_unknown: bool = False
    fit: bool = False
    allow_failures: int = 0
    """Trials of a sweep that may fail."""
    address: str | None = None
    quiet: bool = False
    as_json: bool = False
    debug: bool = False
    draws: bool = False
    """Whether a notebook shows the live display, which is sent to it."""
    command: tuple[str, ...] = ()
    """The command in the run's record."""
    joining: Joining = field(default=OWN, metadata=_DERIVED)
    """The Ray in which the trials run."""
    draw: Callable[[str, str], None] | None = field(default=None, metadata=_DERIVED)
    """Takes each picture of the live display, as HTML and as text; None: there is no notebook."""
    board: BoardAddress | None = field(default=None, metadata=_DERIVED)
    """The board at which actors join the trial; None: none."""
    flags: tuple[Flag, ...] = field(default=(), metadata=_DERIVED)
    """Options that are values of keys, for the reader of the experiments."""

    @staticmethod
    def of(kind: Kind, options: Mapping[str, Any], **derived: Any) -> TrainingRequest:
        """Return the request of ``options`` without those that are not fields: texts, lists and None as given.

        Derived fields come from ``derived`` alone.
        """
        given = {name: _typed(options[name], default) for name, default in OPTIONS.items() if name in options}
        return TrainingRequest(kind, **given, **derived)

    def to_json(self) -> dict[str, Any]:
        """Return the content from which ``from_json`` makes the request; of derived fields, only the source."""
        options = {name: getattr(self, name) for name in ("kind", *OPTIONS)}
        source = vars(self.source) | {"files": [*map(str, self.source.files)]}
        return options | {name: str(options[name]) for name in ("path", "out")} | {"source": source}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> TrainingRequest:
        """Return the request from JSON content."""
        source = content["source"]
        paths = {"files": tuple(map(Path, source["files"])), "folders": tuple(source["folders"])}
        return TrainingRequest.of(content["kind"], content, source=Source(**source | paths))


OPTIONS: Final[Mapping[str, Any]] = {
    each.name: each.default for each in fields(TrainingRequest) if each.name != "kind" and each.metadata != _DERIVED
}
"""The default of each field that parameters set."""


def _typed(value: Any, default: Any) -> Any:
    """Return a parameter's value in the type of its field's default."""
    if isinstance(default, tuple):
        return tuple(value or ())
    return Path(value) if isinstance(default, Path) else value
