"""Names of run and trial directories: which ones a user may choose, and how the others are derived."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from rlexp.config.plan import Plan
from rlexp.errors import UsageError

MAX_NAME_BYTES: Final = 120
"""Room is left below the 255 bytes of a file system for ``-2``, ``.removing`` and the like."""
_FORBIDDEN: Final = re.compile(r"[/\\:\x00-\x1f\x7f]")


def check_name(name: str) -> str:
    """Return ``name`` if a directory in OUT may be called that; raises UsageError where it could leave OUT or confuse.

    ``:`` is refused because TensorBoard's and other programs' path lists split at it.
    """
    if not name.strip() or name[0] in "-." or _FORBIDDEN.search(name):
        raise UsageError(
            f"{name!r} cannot be the name of a run",
            "a name may not contain '/', '\\' or ':', nor begin with '.' or '-'",
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise UsageError(f"the name {name[:24]!r}… is too long", f"a name has at most {MAX_NAME_BYTES} bytes")
    return name


def usual_name(plan: Plan) -> str:
    """Return what a run is called without ``--name``: as its only experiment, else as the first file."""
    return plan.experiments[0].name if len(plan.experiments) == 1 else plan.sources[0].stem


def derived_name(text: str) -> str:
    """Return the directory name that comes closest to ``text``, an experiment's name for example."""
    name = _FORBIDDEN.sub("-", text).lstrip("-. ").rstrip()
    return name.encode()[:MAX_NAME_BYTES].decode(errors="ignore") or "run"


def as_typed(directory: Path) -> Path:
    """Return ``directory`` as it would be typed here: relative where it is below the working directory."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
