"""What a program names its experiments by: files, or a dict, whose classes must be found by other processes too."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.api.request import Source
from rlexp.config.keys.user_code import with_current_folder
from rlexp.config.yaml.python_values import ExperimentDict
from rlexp.errors import ConfigError

_INSTALLED: Final = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def files_of(experiments: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return the files that are named."""
    return [Path(file) for file in ([experiments] if isinstance(experiments, str | Path) else experiments)]


def source_of(experiments: str | Path | Sequence[str | Path] | Mapping[str, Any]) -> Source:
    """Return where experiments come from, for another process; raises ConfigError where a value cannot go there."""
    if not isinstance(experiments, Mapping):
        return Source(files=tuple(map(str, files_of(experiments))))
    found = ExperimentDict(experiments).read()
    if found.problems or found.root is None:
        raise ConfigError([finding.problem() for finding in found.problems])
    return Source(data=found.root.plain(), folders=module_folders(experiments))


def module_folders(experiments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the modules that a dict names lie: here, beside the program, and where its classes come from.

    Values of the dict are values that experiments can have.
    """
    program = getattr(sys.modules["__main__"], "__file__", None)
    beside = [] if program is None else [str(Path(program).absolute().parent)]
    return with_current_folder([*beside, *dict.fromkeys(_folders(experiments))])


def _folders(value: object) -> Iterator[str]:
    """Yield the folders in which the modules of classes are found that are not installed."""
    if isinstance(value, type):
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
        if file is not None and not str(file).startswith(_INSTALLED):
            path = Path(file).absolute()
            levels = value.__module__.count(".") + (path.stem == "__init__")
            yield str(path.parents[levels])
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _folders(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _folders(item)
