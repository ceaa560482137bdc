"""What the user's own code has raised, as a sentence that names the line."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Final

import rlexp

NOT_THE_USERS: Final = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), os.path.dirname(rlexp.__file__))
)
"""Folders of code that the user did not write."""


def raised_by_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: ValueError: the first line of its message``."""
    lines = str(error).strip().splitlines()
    return _line_of_user(error) + type(error).__name__ + (f": {lines[0]}" if lines else "")


def _line_of_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: `` for the innermost line of code that is no library's; empty without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_absolute() and not str(path.resolve()).startswith(NOT_THE_USERS):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{shown}:{frame.lineno} in {frame.name}: "
    return ""
