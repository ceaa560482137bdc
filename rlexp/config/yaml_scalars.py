"""What a plain word of YAML means, by the core schema of YAML 1.2; used to read and to write.

YAML 1.1, which PyYAML speaks, reads ``1e-4`` as text, ``no`` as false, ``1:30`` as 90 and ``012`` as 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rlexp.config.nodes import Scalar, shown_key

NULL = re.compile(r"~|null|Null|NULL|")
BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

MAX_DIGITS = 400
"""More than any number has that fits a float; Python refuses thousands of them."""

_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")


def read_plain(text: str) -> Scalar:
    """Return the value of a word that is neither quoted nor tagged; raises ValueError."""
    for pattern, read in _READERS.values():
        if pattern.fullmatch(text):
            return read(text)
    return text


def read_tagged(tag: str, text: str) -> Scalar:
    """Return the value of a text with an explicit tag of YAML (``int`` of ``!!int``); raises ValueError."""
    if tag == "str":
        return text
    if tag not in _READERS:
        raise ValueError(f"tag {shown_key(tag)} is not supported")
    pattern, read = _READERS[tag]
    if not pattern.fullmatch(text):
        raise ValueError(f"{shown_key(text)} is no {tag}")
    return read(text)


def _read_integer(text: str) -> int:
    if _LEADING_ZERO.fullmatch(text):
        without = text.lstrip("+-0") or "0"
        raise ValueError(f"{text[:40]} starts with a 0, which some read as octal: write {without[:40]}, or quote it")
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text, 0)


def _read_float(text: str) -> float:
    lower = text.lower()
    return float(lower.replace(".inf", "inf").replace(".nan", "nan"))


_READERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Scalar]]] = {
    "null": (NULL, lambda text: None),
    "bool": (BOOLEAN, lambda text: text.lower() == "true"),
    "int": (INTEGER, _read_integer),
    "float": (FLOAT, _read_float),
}
