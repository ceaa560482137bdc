"""Records a command in a terminal of a fixed size, and makes one SVG of it that moves."""

from __future__ import annotations

import fcntl
import io
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

_TOKEN = re.compile(r"(?P<style>\x1b\[[\d;]*m)|\x1b\[(?P<numbers>[?\d;]*)(?P<letter>[A-Za-z])|(?P<other>.)", re.DOTALL)
_FONT_FILES = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
_QUIET_S: Final = 0.03
"""A picture is complete when nothing more has come for so long."""


@dataclass(frozen=True)
class Frame:
    """What a terminal showed from ``at_s`` on: its rows, with their colours as ANSI codes."""

    at_s: float
    rows: tuple[str, ...]


class Screen:
    """The rows that a terminal shows; knows the codes of the live display, which erases a line before it writes one."""

    def __init__(self, height: int) -> None:
        self._height = height
        self._rows = [""]
        self._row = 0

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(self._rows[-self._height :])

    def write(self, text: str) -> None:
        """Raises ValueError for a code that the display does not use today."""
        for token in _TOKEN.finditer(text):
            if token["letter"]:
                self._control(token["letter"], token["numbers"])
            elif token["other"] == "\n":
                self._row += 1
                self._rows += [""] * (self._row + 1 - len(self._rows))
            elif token["other"] != "\r":
                self._rows[self._row] += token["style"] or token["other"]

    def _control(self, letter: str, numbers: str) -> None:
        if letter == "A":
            self._row = max(self._row - int(numbers or 1), 0)
        elif letter == "K":
            self._rows[self._row] = ""
        elif letter not in ("h", "l"):
            raise ValueError(f"the screen does not know ESC[{numbers}{letter}")


def record(
    command: Sequence[str], folder: str, environment: Mapping[str, str], width: int, height: int, expected: int = 0
) -> list[Frame]:
    """Run a command in a terminal, and return what it showed; raises OSError if it ends with another code."""
    terminal, inside = os.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=inside, stdout=inside, stderr=inside, start_new_session=True
    )
    os.close(inside)
    frames = _watch(terminal, Screen(height))
    os.close(terminal)
    if (status := process.wait()) != expected:
        raise OSError(f"{' '.join(command)} ended with {status}")
    return frames


def _watch(terminal: int, screen: Screen) -> list[Frame]:
    frames: list[Frame] = []
    began_s, unread = time.monotonic(), b""
    while True:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # Linux: every process has closed the terminal
            read = b""
        text, unread = _decode(unread + read)
        screen.write(text)
        if not read or not select.select([terminal], [], [], _QUIET_S)[0]:
            frames.append(Frame(time.monotonic() - began_s, screen.shown))
        if not read:
            return frames


def _decode(data: bytes) -> tuple[str, bytes]:
    """Return the text before the last escape code or character, which may have come in part, and the rest."""
    end = data.rfind(b"\x1b")
    whole = end if end >= 0 and not re.search(rb"[A-Za-z]", data[end:]) else len(data)
    while whole and (text := data[:whole]):
        try:
            return text.decode("utf-8"), data[whole:]
        except UnicodeDecodeError as error:
            whole = error.start
    return "", data


def moving_svg(frames: Sequence[tuple[Frame, float]], title: str, width: int) -> str:
    """Return an SVG that shows each frame for so many seconds, again and again; without motion the last but one."""
    height = max(len(frame.rows) for frame, _ in frames)
    pictures = [_still(frame, title, width, height, f"frame-{number}") for number, (frame, _) in enumerate(frames)]
    box = re.search(r'viewBox="[^"]*"', pictures[0])
    assert box is not None
    total_s, at_s, rules = sum(seconds for _, seconds in frames), 0.0, []
    for number, (_, seconds) in enumerate(frames):
        begin, end = 100 * at_s / total_s, 100 * (at_s + seconds) / total_s
        steps = (
            f"0% {{ visibility: hidden }} {begin:.2f}% {{ visibility: visible }} {end:.2f}% {{ visibility: hidden }}"
        )
        rules.append(f"@keyframes k{number} {{ {steps} }} #p{number} {{ animation-name: k{number} }}")
        at_s += seconds
    style = (
        f".p {{ visibility: hidden }} #p{len(frames) - 2} {{ visibility: visible }} @media (prefers-reduced-motion: "
        f"no-preference) {{ .p {{ animation: {total_s:.1f}s step-end infinite }} {' '.join(rules)} }}"
    )
    inside = "\n".join(f'<g class="p" id="p{number}">{picture}</g>' for number, picture in enumerate(pictures))
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box[0]}><style>{style}</style>\n{inside}\n</svg>\n'


def _still(frame: Frame, title: str, width: int, height: int, name: str) -> str:
    """Return rich's own SVG of a frame, without the font files that it would load from another server."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for row in (*frame.rows, *[""] * (height - len(frame.rows))):
        console.print(Text.from_ansi(row), soft_wrap=True)
    return console.export_svg(title=title, code_format=_FONT_FILES.sub("", CONSOLE_SVG_FORMAT), unique_id=name)
