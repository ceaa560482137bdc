"""Checkpoints as somebody makes them who means harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlexp.runs.checkpoints import contents


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
    (path / "manifest.json").write_text(json.dumps({**content, "seal": contents._seal(content)}))
