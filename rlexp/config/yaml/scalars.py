"""What a plain word of YAML means, by the core schema of YAML 1.2; used to read and to write.

YAML 1.1, which PyYAML speaks, reads ``1e-4`` as a string, ``no`` as false, ``1:30`` as 90 and ``012`` as 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rlexp.config.yaml.nodes import Scalar, shown_key

NULL = re.compile(r"~|null|Null|NULL|")
BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
UNDERSCORED = re.compile(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
"""A number of YAML 1.1, a string in YAML 1.2."""

BOOLEAN_WORDS: Mapping[str, bool] = {"yes": True, "on": True, "no": False, "off": False}
"""Booleans of YAML 1.1, strings in YAML 1.2. They may have one capital letter, or only capital letters."""

MAX_DIGITS = 400
"""More than any number has that fits a float; Python refuses thousands of them."""

_LEADING_ZERO = re.compile(r"(?P<sign>[-+]?)0+(?P<digits>[0-9]+)")


class ScalarError(ValueError):
    """A word that has no value."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def read_plain(text: str) -> Scalar:
    """Return the value of a word that is neither quoted nor tagged; raises ScalarError."""
    for pattern, read in _READERS.values():
        if pattern.fullmatch(text):
            return read(text)
    return text


def read_tagged(tag: str, text: str) -> Scalar:
    """Return the value of a string with an explicit tag of YAML (``int`` of ``!!int``); raises ScalarError."""
    if tag == "str":
        return text
    if tag not in _READERS:
        raise ScalarError(f"tag {shown_key(tag)} is not supported")
    pattern, read = _READERS[tag]
    if not pattern.fullmatch(text):
        raise ScalarError(f"{shown_key(text)} is not of type {tag}")
    return read(text)


def read_yaml_1_1(text: str) -> Scalar:
    """Return what YAML 1.1 reads a word as that is a string in YAML 1.2; the word itself where it is one in both.

    >>> read_yaml_1_1("1_000_000"), read_yaml_1_1("Off"), read_yaml_1_1("oFF")
    (1000000, False, 'oFF')
    """
    if UNDERSCORED.fullmatch(text):
        try:
            return read_plain(text.replace("_", ""))
        except ScalarError:
            return text
    is_spelled_so = text in (text.lower(), text.upper(), text.capitalize())
    return BOOLEAN_WORDS.get(text.lower(), text) if is_spelled_so else text


def _read_integer(text: str) -> int:
    octal = _LEADING_ZERO.fullmatch(text)
    if octal:
        decimal = f"{octal['sign']}{octal['digits'][:40]}"
        raise ScalarError(f"{text[:40]} starts with 0, which YAML 1.1 reads as octal", f"write {decimal}, or quote it")
    if len(text) > MAX_DIGITS:
        raise ScalarError(f"a number of {len(text)} digits is too long")
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
