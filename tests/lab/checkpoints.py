"""Checkpoints as whoever means harm makes them, what a test's user has trained with, and states of replay in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.config.keys.experiment import Experiment
from rlexp.runs import checkpoint_contents
from rlexp.states import LazyArray, rows_of
from rlexp.user_code.finding import module_file
from rlexp.user_code.memory import Remembered, remember


class Bomb:
    """Unpickling this writes a file."""

    def __init__(self, sentinel: Path) -> None:
        self.sentinel = sentinel

    def __reduce__(self) -> Any:
        return Path.touch, (self.sentinel,)


def forge(path: Path, **changes: Any) -> None:
    """Change a manifest and seal it again."""
    content = json.loads((path / "manifest.json").read_bytes()) | changes
    del content["seal"]
    (path / "manifest.json").write_text(json.dumps({**content, "seal": checkpoint_contents._seal(content)}))


def trained_with(*names: str, storage: str | None = None) -> None:
    """Remember modules and classes (``module:Class``), and a storage."""
    found = ((name, module_file(name.partition(":")[0], ())) for name in names)
    notice = remember([Remembered(name, file) for name, file in found if file], [] if storage is None else [storage])
    assert notice is None


def trained(experiment: Experiment) -> None:
    """Remember what an experiment names."""
    trained_with(experiment.env, *(part.name for part in experiment.config.user_parts()))


def in_memory(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with a copy of each array, whole."""
    return {
        name: np.array(rows_of(value, 0, value.shape[0])) if isinstance(value, np.ndarray | LazyArray) else value
        for name, value in state.items()
    }
