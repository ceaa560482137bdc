"""What a person or a program sees of a run while it lasts and at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

from rich.console import Console

from rlexp.display.display import Display
from rlexp.display.live import LiveDisplay
from rlexp.display.plain import PlainDisplay
from rlexp.display.quiet import JsonDisplay, QuietDisplay

__all__ = ["Display", "JsonDisplay", "LiveDisplay", "PlainDisplay", "QuietDisplay", "choose_display"]


def choose_display(
    stdout: TextIO, stderr: TextIO, environment: Mapping[str, str], *, json: bool, quiet: bool
) -> QuietDisplay:
    """Return the display for ``--json``, ``-q``, or else the live one where there is a terminal for it.

    Both streams must be terminals: a summary that goes into a file has nobody before the screen.
    ``NO_COLOR`` (any value but the empty one) and ``TERM=dumb`` ask for plain lines.
    """
    if json:
        return JsonDisplay(stdout)
    if quiet:
        return QuietDisplay(stdout)
    capable = not environment.get("NO_COLOR") and environment.get("TERM") not in ("dumb", "unknown")
    if stdout.isatty() and stderr.isatty() and capable:
        return LiveDisplay(stdout, Console(file=stderr, highlight=False))
    return PlainDisplay(stdout, stderr)
