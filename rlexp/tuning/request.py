"""What is asked of a training: the options of ``rlexp run``, ``sweep`` and ``resume``, declared once.

The commands and the functions of Python make a request of their parameters, which have its names; ``rlexp.tuning``
reads it. What a program asks goes to the process that trains for it as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rlexp.cluster.session import OWN, Joining

if TYPE_CHECKING:
    from rlexp.board.messages.address import BoardAddress
    from rlexp.config.command_line import Flag

NO_FILES: Final[tuple[Path, ...]] = ()
_DERIVED: Final = {"is_derived": True}
"""Marks a field that the process that trains works out of options of its own: no parameter has its value, nor JSON."""
Kind = Literal["run", "sweep", "resume"]


@dataclass(frozen=True)
class Source:
    """Where experiments come from: files, the values of a dict, or the preset for an agent and an env."""

    files: tuple[Path, ...] = NO_FILES
    data: Mapping[str, Any] | None = None
    folders: tuple[str, ...] = ()
    """Where the modules that a dict names are looked for; those of files are looked for beside them."""
    agent: str | None = None
    env: str | None = None
    """The agent and env of a preset as they were given, perhaps misspelled."""
    name: str | None = None
    """The name of the experiment of a preset; None: the name that the preset has."""


@dataclass(frozen=True)
class TrainingRequest:
    """What is trained, and how."""

    kind: Kind
    source: Source = field(default_factory=Source, metadata=_DERIVED)
    path: Path = Path()
    """The run that is resumed."""
    overrides: tuple[str, ...] = ()
    out: Path = Path("results")
    name: str | None = None
    """Of the run's directory in ``out``; None: that of the experiment."""
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
    as_json: bool = False
    debug: bool = False
    command: tuple[str, ...] = ()
    """What the run's record says started it."""
    joining: Joining = field(default=OWN, metadata=_DERIVED)
    """Which Ray the trials run in."""
    board: BoardAddress | None = field(default=None, metadata=_DERIVED)
    """Where actors join the trial; None: nowhere."""
    flags: tuple[Flag, ...] = field(default=(), metadata=_DERIVED)
    """Options that are values of keys, for the reader of the experiments."""

    @staticmethod
    def of(kind: Kind, options: Mapping[str, Any], **derived: Any) -> TrainingRequest:
        """Return the request that ``options`` make, those that are no fields left out: texts, lists and None as given.

        Fields that are derived come from ``derived`` alone.
        """
        given = {name: _typed(options[name], default) for name, default in OPTIONS.items() if name in options}
        return TrainingRequest(kind, **given, **derived)

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` makes the request of; nothing that is derived but the source."""
        options = {name: getattr(self, name) for name in ("kind", *OPTIONS)}
        return options | {name: str(options[name]) for name in ("path", "out")} | {"source": self._source_as_json()}

    def _source_as_json(self) -> dict[str, Any]:
        return vars(self.source) | {"files": [*map(str, self.source.files)]}

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> TrainingRequest:
        """Return the request that went through JSON."""
        source = content["source"]
        paths = {"files": tuple(map(Path, source["files"])), "folders": tuple(source["folders"])}
        return TrainingRequest.of(content["kind"], content, source=Source(**source | paths))


OPTIONS: Final[Mapping[str, Any]] = {
    each.name: each.default for each in fields(TrainingRequest) if each.name != "kind" and each.metadata != _DERIVED
}
"""The default of each field that parameters give."""


def _typed(value: Any, default: Any) -> Any:
    """Return the value of a parameter as its field has it, which is of the kind of its default."""
    if isinstance(default, tuple):
        return tuple(value or ())
    return Path(value) if isinstance(default, Path) else value
