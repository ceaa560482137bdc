"""What the user's own code has raised, as a sentence that names the line.

Whoever calls it catches ``BaseException``: an env may raise anything, ``KeyboardInterrupt`` and ``GeneratorExit`` too.
"""

from __future__ import annotations

import dis
import os
import sysconfig
import traceback
from pathlib import Path
from typing import Final

import rlexp

_OURS: Final = str(Path(rlexp.__file__).resolve().parent) + os.sep
NOT_THE_USERS: Final = (
    *(str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "purelib", "platlib")),
    _OURS,
)
"""Folders of code that the user did not write."""
_LONGEST_LINE: Final = 500


def raised_by_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: ValueError: the first line of its message``.

    Raises ``error`` itself if it is a Ctrl-C that came while the code ran.
    """
    if isinstance(error, KeyboardInterrupt) and not _is_of_users_statement(error):
        raise error
    return _line_of_user(error) + named(error)


def named(error: BaseException) -> str:
    """Return ``ValueError: the first line of its message``, of a message that cannot be made only the type."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        return f"{type(error).__name__} (its __str__ fails)"
    return type(error).__name__ + (f": {lines[0][:_LONGEST_LINE]}" if lines else "")


def _is_of_users_statement(error: BaseException) -> bool:
    """Return whether a ``raise`` has raised an error, neither Python itself nor a signal handler of ours."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or str(Path(last.tb_frame.f_code.co_filename).resolve()).startswith(_OURS):
        return False
    return dis.opname[last.tb_frame.f_code.co_code[last.tb_lasti]] == "RAISE_VARARGS"


def _line_of_user(error: BaseException) -> str:
    """Return ``my_env.py:31 in step: `` for the innermost line of code that is no library's; empty without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_absolute() and not str(path.resolve()).startswith(NOT_THE_USERS):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{shown}:{frame.lineno} in {frame.name}: "
    return ""
