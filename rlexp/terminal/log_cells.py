"""Tags, steps, values and curves as they stand in the tables of ``rlexp logs``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TextIO

MISSING: Final = "-"


@dataclass(frozen=True)
class Glyphs:
    """Characters beyond letters and digits that a stream can show."""

    blocks: str
    """Eight heights, the lowest first."""
    cut: str
    """Stands for what was cut off."""


_UNICODE: Final = Glyphs("▁▂▃▄▅▆▇█", "…")
_ASCII: Final = Glyphs("_.,-~+*#", "~")


def glyphs_of(stream: TextIO) -> Glyphs:
    """Return the characters that ``stream`` can encode."""
    try:
        f"{_UNICODE.blocks}{_UNICODE.cut}".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII
    return _UNICODE


def printable(text: str) -> str:
    """Return ``text`` without characters that could move the cursor or change colours: files may be anybody's."""
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str, width: int, glyphs: Glyphs) -> str:
    """Return the last ``width`` characters of ``text``: tags differ in their ends."""
    return text if len(text) <= width else glyphs.cut + text[len(text) - max(width - 1, 0) :]


def exact_step(step: int) -> str:
    """Return 1234567 as ``1,234,567``."""
    return f"{step:,}"


def compact_step(step: int) -> str:
    """Return 1234567 as ``1.23M``; up to four digits stand as they are."""
    return _compact(step, 3)


def number(value: float | None) -> str:
    """Return a value with four significant digits: ``0.01235``, ``123.5``, ``12.35k``."""
    return MISSING if value is None else _compact(value, 4)


def slope(value: float | None) -> str:
    """Return by how much a value grows in 1000 steps, with its sign."""
    return MISSING if value is None else f"{1000 * value:+.3g}"


def sparkline(means: Sequence[float], glyphs: Glyphs) -> str:
    """Return a block for each of ``means``, the lowest lowest; a space where it is not finite."""
    known = [mean for mean in means if math.isfinite(mean)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    spread = high / 2 - low / 2  # halves, for their difference has to be finite too
    scale = (len(glyphs.blocks) - 1) / spread if spread > 0 else 0.0
    return "".join(glyphs.blocks[round((mean / 2 - low / 2) * scale)] if math.isfinite(mean) else " " for mean in means)


def _compact(value: float, digits: int) -> str:
    if not 10_000 <= abs(value) < 1e15:
        return f"{value:.4g}"
    power = math.floor(math.log10(abs(value)) / 3)
    return f"{float(f'{value / 1000**power:.{digits}g}'):.{digits + 1}g}{' kMGT'[power]}"
