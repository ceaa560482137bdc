"""Numbers that options take: each has a range, which its error names."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import typer

from rlexp.errors import UsageError

MOST: Final = 10**15
"""Far above any count or time that will be reached, and exact in a float and in JSON."""
_LONGEST_SHOWN: Final = 60


def whole(option: str, metavar: str, sentence: str, least: int, most: int = MOST) -> Any:
    """Return an option that takes a whole number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    hint = f"{option} {metavar}: {sentence}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise UsageError(f"{option} must be a whole number from {least} to {most}, got {_shown(text)}", hint)
        return value

    return typer.Option(option, metavar=metavar, parser=read, help=sentence)


def real(option: str, metavar: str, sentence: str, least: float, most: float = MOST) -> Any:
    """Return an option that takes a finite number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    hint = f"{option} {metavar}: {sentence}"

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (isfinite(value) and least <= value <= most):
            raise UsageError(f"{option} must be a number from {least:g} to {most:g}, got {_shown(text)}", hint)
        return value

    return typer.Option(option, metavar=metavar, parser=read, help=sentence)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"
