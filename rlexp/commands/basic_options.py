"""Options that any command may have: numbers, whose errors name their range, and what is printed.

They load nothing of what experiments are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from rlexp.errors import UsageError

MOST: Final = 10**15
"""Far above any count or time that will be reached, and exact in a float and in JSON."""
_LONGEST_SHOWN: Final = 60


def whole(option: str, metavar: str, sentence: str, least: int, most: int = MOST) -> Any:
    """Return an option that takes a whole number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    return _option(option, metavar, sentence, int, f"a whole number from {least} to {most}", (least, most))


def real(option: str, metavar: str, sentence: str, least: float, most: float = MOST) -> Any:
    """Return an option that takes a finite number from ``least`` to ``most``; ``sentence`` explains it in its help."""
    return _option(option, metavar, sentence, float, f"a number from {least:g} to {most:g}", (least, most))


def _option(
    option: str, metavar: str, sentence: str, kind: Callable[[str], float], expected: str, bounds: tuple[float, float]
) -> Any:
    def read(text: str) -> float:
        with suppress(ValueError):
            value = kind(text)
            if bounds[0] <= value <= bounds[1]:  # NaN is not
                return value
        raise UsageError(f"{option} must be {expected}, got {_shown(text)}", f"{option} {metavar}: {sentence}")

    return typer.Option(option, metavar=metavar, parser=read, help=sentence)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}
"""Settings of a context: the options that print what a command does."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines, one per event.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print only errors and the summary.")]


@dataclass
class ErrorOptions:
    """How an error that ends a command is shown: the ``obj`` of the command's context."""

    show_tracebacks: bool = False


def _show_tracebacks(context: typer.Context, debug: bool) -> bool:
    context.ensure_object(ErrorOptions).show_tracebacks = debug
    return debug


Debug = Annotated[bool, typer.Option("--debug", callback=_show_tracebacks, is_eager=True, help="Show tracebacks.")]
