"""Text for people: short numbers, lines that fit a terminal, and masked passwords."""

from __future__ import annotations

import math
import os
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, Final, TextIO, TypeGuard

from rlexp.errors import UsageError
from rlexp.files import plain, to_json

_USUAL: Final = 80
"""Columns of a terminal that does not report its width."""
_SHORTEST_LINE: Final = 20
"""Least columns of a line beside its indentation on the narrowest terminals."""


def columns_of(stream: TextIO) -> int | None:
    """Return the width of a terminal ``stream``; None if it is not a terminal, as programs read whole lines.

    The environment variable COLUMNS overrides the width, as for other programs.
    """
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except OSError:
        return _USUAL


def wrapped(text: str, columns: int | None, indent: str = "", first: int = 0) -> str:
    """Return the text wrapped between words into lines of at most ``columns``; unchanged if that is None.

    All lines except the first begin with ``indent``; the first has ``first`` columns less. A word that is longer than a
    line stays whole, as it may be a path or a command to copy.
    """
    if columns is None:
        return text
    width = max(columns, len(indent) + _SHORTEST_LINE)
    lines = []
    for number, line in enumerate(text.split("\n")):
        lead = indent if number else " " * first
        lines += textwrap.wrap(
            line,
            width,
            initial_indent=lead,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(lines).removeprefix(" " * first)


MISSING: Final = "-"
CUT: Final = "…"
MOST_LINES: Final = 20
"""Most lines of a list that may be very long; the rest is counted."""
BLOCKS: Final = "▁▂▃▄▅▆▇█"
"""Eight heights, the lowest first."""
_MOST_DIGITS: Final = 6
_SIZES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SMALLEST_DECIMAL: Final = 1e-3
"""Below this, six digits after the point are too few."""


def count(value: Any) -> str:
    """Return 12345 as ``12,345``."""
    return f"{value:,.0f}" if is_known(value) else MISSING


def decimal(value: Any, digits: int = 1) -> str:
    """Return a number with ``digits`` digits after the point."""
    return f"{value:,.{digits}f}" if is_known(value) else MISSING


def exact(value: float) -> str:
    """Return a number as its user wrote it, with commas: ``475``, ``2,000,000``, ``0.95``."""
    return f"{value:,.10g}"


def score(value: Any) -> str:
    """Return a reward with four significant digits, without needless zeros: ``486.7``, ``0.8727``, ``9.0``."""
    if not is_known(value):
        return MISSING
    if 0 < abs(value) < _SMALLEST_DECIMAL:
        return short(value)
    whole, point, decimals = f"{value:,.{digits_for(abs(value))}f}".partition(".")
    return f"{whole}{point}{decimals.rstrip('0') or '0'}" if point else whole


def score_at(value: Any, at: float, of: float | None = None, unit: str = "") -> str:
    """Return a reward and when it was reached: ``40.0 @ 100 of 1,000``; ``unit`` is left out for env steps."""
    goal = "" if of is None else f" of {exact(of)}"
    return f"{score(value)} @ {exact(round(at, 1))}{goal}{f' {unit}' if unit else ''}"


def digits_for(largest: float) -> int:
    """Return how many digits after the point show a number up to ``largest`` with four significant ones."""
    return min(max(3 - math.floor(math.log10(largest)), 0), _MOST_DIGITS) if largest > 0 else 1


def short(value: Any) -> str:
    """Return a number with three significant digits and no needless zeros: ``0.02``, ``12.3``, ``1e-05``."""
    return f"{value:.3g}" if is_known(value) else MISSING


def size(num_bytes: Any) -> str:
    """Return 1234567 bytes as ``1.2 MB``."""
    if not is_known(num_bytes):
        return MISSING
    unit, name = next(((unit, name) for unit, name in _SIZES if num_bytes >= unit), (1, "B"))
    return f"{num_bytes:.0f} B" if unit == 1 else f"{num_bytes / unit:.1f} {name}"


def value_words(value: Any) -> str:
    """Return the value of a key on one line: ``0.001``, ``[64,64]``, ``true``, a text without quotes.

    Numbers have four significant digits, as many as drawn numbers have.
    """
    value = plain(value)
    if isinstance(value, list):
        return "[" + ",".join(map(value_words, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else to_json(value)


def percent(share: Any) -> str:
    """Return 0.123 as ``12 %``; only 1 is ``100 %``."""
    return f"{math.floor(share * 100 + 1e-9)} %" if is_known(share) else MISSING


def duration(seconds: Any) -> str:
    """Return seconds as ``h:mm:ss``, with days before it from the second day on."""
    if not is_known(seconds):
        return MISSING
    minutes, second = divmod(int(max(seconds, 0)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}d ' if days else ''}{hour}:{minute:02d}:{second:02d}"


_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_SECONDS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_S: Final = 10 * 365 * 86400.0
"""Timers of the operating system take no much longer waits."""


def seconds_of(text: str, option: str) -> float:
    """Return the duration that ``option`` gives, ``90``, ``90s``, ``30m``, ``2h`` or ``1d``, in seconds.

    Raises UsageError.
    """
    found = _DURATION.fullmatch(text.strip())
    hint = f"write {option} 90s, 30m, 2h or 1d"
    if found is None:
        raise UsageError(f"{option} {text:.60} is not a valid duration", hint)
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST_S:
        raise UsageError(f"{option} {text:.60} is more than 10 years", hint)
    return seconds


def bar(share: float, width: int) -> str:
    """Return a bar of ``width`` cells of which ``share`` (0..1) are full."""
    full = min(max(int(share * width), 0), width)
    return "█" * full + "░" * (width - full)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return at most ``width`` blocks over all of ``values``, each the mean of its stretch, the lowest mean lowest."""
    if not values:
        return ""
    cells = min(width, len(values))
    edges = [len(values) * cell // cells for cell in range(cells + 1)]
    return heights([sum(values[a:b]) / (b - a) for a, b in pairwise(edges)])


def heights(values: Sequence[float], blocks: str = BLOCKS) -> str:
    """Return a block per value, the lowest value lowest; a space if it is not finite."""
    known = [value for value in values if is_known(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    spread = (high / 2 - low / 2) or 1.0  # halves, as their difference must be finite too
    return levels([(value / 2 - low / 2) / spread for value in values], blocks)


def levels(shares: Sequence[float], blocks: str = BLOCKS) -> str:
    """Return a block per share (0..1), empty lowest and full highest; a space if it is not finite."""
    top = len(blocks) - 1
    return "".join(blocks[min(max(round(share * top), 0), top)] if is_known(share) else " " for share in shares)


def first_of(lines: Sequence[str], rest: str) -> list[str]:
    """Return the first lines of a list that may be very long, and a line with the number of omitted ones: ``rest``."""
    left_out = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], *([f"… and {left_out:,} more{rest}"] if left_out > 0 else [])]


def middle_cut(text: str, width: int) -> str:
    """Return ``text`` in ``width`` cells, cut in its middle, as trials differ in their last characters."""
    if len(text) <= width:
        return text
    head = min(6, width // 3)
    return f"{text[:head]}…{text[len(text) - max(width - head - 1, 0) :]}"


def distinct_cuts(names: Sequence[str], width: int) -> list[str]:
    """Return names in ``width`` cells each; common parts are left out first, so that they stay different.

    Names that would become equal are cut again by their common parts.
    """
    cuts = _without_shared_pieces(names, width)
    for cut, times in Counter(cuts).items():
        if 1 < times < len(names):
            same = [place for place, each in enumerate(cuts) if each == cut]
            for place, again in zip(same, distinct_cuts([names[place] for place in same], width), strict=True):
                cuts[place] = again
    return cuts


def _without_shared_pieces(names: Sequence[str], width: int) -> list[str]:
    if len(set(names)) < 2:
        return [middle_cut(name, width) for name in names]
    pieces = _aligned([re.findall(r"[^-_=,/. ]*[-_=,/. ]?", name) for name in names])
    while max(map(len, names), default=0) > width:
        shared = [place for place, found in enumerate(zip(*pieces, strict=True)) if len(set(found)) == 1]
        left = [place for place in shared if pieces[0][place] not in ("", CUT)]
        if not left:
            return [middle_cut(name, width) for name in names]
        # One long gap reads better than several short ones.
        beside = [
            place for place in left if CUT in (*pieces[0][max(place - 1, 0) : place], *pieces[0][place + 1 :][:1])
        ]
        longest = max(beside or left, key=lambda place: len(pieces[0][place]))
        for each in pieces:
            each[longest] = CUT
        names = [re.sub(f"{CUT}+", CUT, "".join(each)) for each in pieces]
    return list(names)


def _aligned(pieces: Sequence[list[str]]) -> list[list[str]]:
    """Return as many pieces of each name; pieces that only some names have are joined in one place."""
    if len({len(each) for each in pieces}) < 2:
        return [list(each) for each in pieces]
    start = _shared(pieces)
    end = min(_shared([each[::-1] for each in pieces]), min(map(len, pieces)) - start)
    return [[*each[:start], "".join(each[start : len(each) - end]), *each[len(each) - end :]] for each in pieces]


def _shared(pieces: Sequence[Sequence[str]]) -> int:
    """Return how many of the first pieces are equal in all."""
    return sum(1 for _ in takewhile(lambda found: len(set(found)) == 1, zip(*pieces, strict=False)))


def one_line(text: str) -> str:
    """Return the first line of ``text`` without control characters, which could move the cursor or hide text."""
    lines = text.strip().splitlines() or [""]
    return "".join(character if character.isprintable() else " " for character in lines[0])


def is_known(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a finite number, as a mean of nothing is None or NaN."""
    # Compared without conversion, as an integer of hundreds of digits has no float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


MASK: Final = "***"
_SECRET_WORDS: Final = frozenset({"password", "passwd", "passphrase", "secret", "token", "credential", "credentials"})
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("access", "key"), ("private", "key")})
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")
_URL_QUERY: Final = re.compile(r"(?<=[?&])(?P<key>[\w.-]+)=(?P<value>[^&#\s]+)")


def is_secret(key: str) -> bool:
    """Return whether a key names a secret: by whole words, so ``auth_token`` does and ``num_tokens`` does not."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower())
    return not _SECRET_WORDS.isdisjoint(words) or not _SECRET_PAIRS.isdisjoint(pairwise(words))


def masked(value: Any) -> Any:
    """Return ``value`` with the values of secret keys, at any depth, and passwords inside URLs as ``***``."""
    if isinstance(value, Mapping):
        return {key: MASK if is_secret(str(key)) and item is not None else masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return _masked_text(value) if isinstance(value, str) else value


def _masked_text(text: str) -> str:
    """Return a text without the passwords of its URLs: ``//user:PASSWORD@host`` and ``?password=PASSWORD``."""
    if "://" not in text:
        return text
    text = _URL_PASSWORD.sub(rf"\1:{MASK}", text)
    return _URL_QUERY.sub(lambda found: f"{found['key']}={MASK}" if is_secret(found["key"]) else found[0], text)


def has_secrets(value: Any) -> bool:
    """Return whether ``masked`` would hide something of ``value``, which is made of JSON's types."""
    return bool(masked(value) != value)


def masked_command(arguments: Sequence[str]) -> list[str]:
    """Return a command line with ``key=SECRET``, ``--key SECRET`` and passwords in URLs masked."""
    shown: list[str] = []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        follows_secret = bool(shown) and shown[-1].startswith("-") and "=" not in shown[-1] and is_secret(shown[-1])
        if follows_secret:
            shown.append(MASK)
        else:
            shown.append(f"{name}={MASK}" if equals and is_secret(name) else masked(argument))
    return shown
