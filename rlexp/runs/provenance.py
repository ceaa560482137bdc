"""Where a run comes from: versions, git commit, host; read without importing what is heavy."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from rlexp import __version__

_PACKAGES: Final = ("ray", "torch", "gymnasium", "numpy")
_GIT_TIMEOUT_S: Final = 5.0


def versions() -> dict[str, str | None]:
    """Return the versions of rlexp, Python and the packages that decide a result; None where one is not installed."""
    return {
        "rlexp": __version__,
        "python": platform.python_version(),
        **{name: _installed(name) for name in _PACKAGES},
    }


def git_commit(directory: Path) -> str | None:
    """Return the commit checked out in ``directory``, ``-dirty`` after it where tracked files differ, else None."""
    described = _git(directory, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    return described or None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
