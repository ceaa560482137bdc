"""The options that say what a command prints; they load nothing of what experiments are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import typer

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
