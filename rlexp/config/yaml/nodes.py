"""Nodes: the data of a file, each value with its place; their text in messages, and the meaning of plain words.

A plain word is read by the core schema of YAML 1.2. PyYAML speaks 1.1, which reads ``1e-4`` as a string, ``no`` as
false, ``1:30`` as 90 and ``012`` as 10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

from rlexp.errors import Notice, Problem

Scalar = None | bool | int | float | str
KeyPath = tuple[str | int, ...]
"""The keys (and places in lists) from the root to a node."""

MISSING: Final = object()
"""Returned for missing data, as None is data."""

_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Place:
    """The place of a text: a file with line and column, an option of the command line, or a key of a dict."""

    source: str
    """The file as its user named it, or the option: ``-o lr=1e-3``."""
    line: int = 0
    """Line from 1; 0 if the source has no lines."""
    column: int = 0
    subscript: str = ""
    """The expression in a program's dict: ``experiments["a"]["config"]``; its line is its number in the dict."""

    def __str__(self) -> str:
        if self.subscript:
            return self.subscript
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Node:
    """A value and its place; the values inside a list or a mapping are nodes too."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Node]
    place: Place
    key_place: Place
    """The place of its key; its own place in a list and at the root."""
    is_plain: bool = False
    """Whether it is a single value that was written without quotes and without a tag."""

    def child(self, key: str | int) -> Node | None:
        """Return the node under ``key``; None if there is none."""
        if isinstance(self.value, Mapping):
            return self.value.get(str(key))
        if isinstance(self.value, tuple) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]
        return None

    def find(self, path: KeyPath) -> Node | None:
        """Return the node at ``path``; None if there is none."""
        node: Node | None = self
        for key in path:
            node = node.child(key) if node else None
        return node

    def entries(self) -> Mapping[str, Node]:
        """Return the entries of a mapping; empty for any other value."""
        return self.value if isinstance(self.value, Mapping) else {}

    def with_value(self, value: Scalar | tuple[Node, ...] | Mapping[str, Node]) -> Node:
        """Return this node, at the same place, with another value."""
        return replace(self, value=value, is_plain=False)

    def put(self, path: KeyPath, value: Node) -> Node:
        """Return this node with another one at ``path``; missing mappings are made, also in place of a single value."""
        if not path:
            return value
        key, rest = path[0], path[1:]
        if isinstance(self.value, tuple):
            items = (child.put(rest, value) if index == key else child for index, child in enumerate(self.value))
            return self.with_value(tuple(items))
        below = self.child(key) or value.with_value({})
        return self.with_value({**self.entries(), str(key): below.put(rest, value)})

    def without(self, *path: str) -> Node:
        """Return this mapping without the key at ``path``."""
        key, *rest = path
        entries = dict(self.entries())
        if not rest:
            entries.pop(key, None)
        elif key in entries:
            entries[key] = entries[key].without(*rest)
        return self.with_value(entries)

    def is_same_as(self, other: Node) -> bool:
        """Return whether another node holds the same data; 1 is 1.0, but not true."""
        return bool(changed(self.plain(), _typed) == changed(other.plain(), _typed))

    def plain(self) -> Any:
        """Return the data without places: dicts, lists and scalars."""
        if isinstance(self.value, Mapping):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, tuple):
            return [child.plain() for child in self.value]
        return self.value


@dataclass(frozen=True)
class Finding:
    """A problem or a notice, and its place."""

    place: Place
    message: str
    hint: str | None = None
    is_minor: bool = False
    """Whether a notice changes nothing for its user, so that only a converted file mentions it."""

    def problem(self) -> Problem:
        """Return the displayed form of a problem."""
        return Problem(str(self.place), self.message, self.hint)

    def notice(self) -> Notice:
        """Return the displayed form of a notice."""
        return Notice(str(self.place), self.message)


def both(first: Node, second: Node) -> str:
    """Return two values with their places, for a message at the second one."""
    return f"{shown(first.plain())} at {first.key_place}, {shown(second.plain())} here"


def given_twice(key: str, first: Node, second: Node, places: str = "") -> Finding:
    """Return the finding, at the second place, that a key has two different values."""
    message = f"{key} is given twice with different values{places}: {both(first, second)}"
    return Finding(second.key_place, message, "keep one of them")


def at(data: Any, path: KeyPath) -> Any:
    """Return the plain data at a path, MISSING if there is none."""
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return MISSING
    return data


def changed(data: Any, change: Callable[[Any], Any]) -> Any:
    """Return plain data with each single value replaced by ``change`` of it."""
    if isinstance(data, dict):
        return {key: changed(value, change) for key, value in data.items()}
    return [changed(value, change) for value in data] if isinstance(data, list) else change(data)


def _typed(value: Scalar) -> tuple[bool, Scalar]:
    """Return a single value so that true differs from 1, as Python's are equal."""
    return (type(value) is bool, value)


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as messages show it: ``config.model.fcnet_hiddens[1]``."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{shown_key(key)}" for key in path)
    return text.removeprefix(".")


def shown_key(key: str) -> str:
    """Return a key for a message: short, and without characters that could confuse a terminal."""
    return _shortened(key if key.isprintable() and key else repr(key))


def shown(value: Any) -> str:
    """Return a value for a message, in the words of YAML: ``null``, ``true``, ``the string 'abc'``, ``a list``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the string {_shortened(repr(value))}"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return _shortened(repr(value))


def written(value: Any) -> str:
    """Return a value for a message in the form of a file: ``null``, ``true``, ``abc``, ``[1, 2]``."""
    if isinstance(value, str):
        return _shortened(value if value.isprintable() and value else repr(value))
    if isinstance(value, list | tuple):
        return _shortened(f"[{', '.join(map(written, value[:_LONGEST_SHOWN]))}]")
    if isinstance(value, dict):
        return _shortened("{" + written_keys(dict(islice(value.items(), _LONGEST_SHOWN))) + "}")
    return shown(value)


def written_keys(keys: Mapping[str, Any]) -> str:
    """Return keys and values for a message in the form of a file: ``noisy: true, sigma0: 0.5``."""
    return ", ".join(f"{key}: {written(value)}" for key, value in keys.items())


def one_mapping(items: Sequence[Any]) -> str | None:
    """Return the mapping that a list was meant to be, as each item has other keys; None if it was none."""
    keys = [key for item in items if isinstance(item, dict) for key in item]
    if not keys or not all(isinstance(item, dict) for item in items) or len(set(keys)) < len(keys):
        return None
    return written({key: value for item in items for key, value in item.items()})


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"


NULL = re.compile(r"~|null|Null|NULL|")
BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
UNDERSCORED = re.compile(r"[-+]?[0-9]+(_[0-9]+)+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
"""A number of YAML 1.1, a string in YAML 1.2."""

_THOUSANDS = re.compile(r"[-+]?[1-9][0-9]{0,2}(?P<mark>[,.' ])[0-9]{3}((?P=mark)[0-9]{3})*")
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]+,[0-9]+")

_NO_SPACE = re.compile(r"\s*(?P<key>[A-Za-z_][\w./-]*):(?P<value>[^\s:].*)")

BOOLEAN_WORDS: dict[str, bool] = {"yes": True, "on": True, "no": False, "off": False}
"""Booleans of YAML 1.1, strings in YAML 1.2. They may have one capital letter, or only capital letters."""

MAX_DIGITS = 308
"""Digits of an integer that surely fits a float; Python refuses thousands of them."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LEADING_ZERO = re.compile(r"(?P<sign>[-+]?)0+(?P<digits>[0-9]+)")


class ScalarError(ValueError):
    """Raised for a word, or a value of a program, that is not valid in YAML; has the reason and a hint."""

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
    """Return YAML 1.1's value of a word that is a string in YAML 1.2; the word itself if it is a string in both.

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


def number_meant(text: str) -> str | None:
    """Return a number that is written as in a letter, in the form of a file; None for any other text.

    >>> number_meant("1,000,000"), number_meant("0,001"), number_meant("1e-3")
    ('1000000', '0.001', None)
    """
    if _THOUSANDS.fullmatch(text):
        return re.sub(r"[^-+0-9]", "", text)
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else None


def with_space(text: str) -> str | None:
    """Return ``key: value`` for ``key:value``; None for any other text."""
    found = _NO_SPACE.fullmatch(text)
    return f"{found['key']}: {found['value'].strip()}" if found else None


def without_surrogates(text: str) -> str:
    """Return a text; raises ScalarError if it has code points that are not characters."""
    if _SURROGATE.search(text):
        raise ScalarError("\\ud800 to \\udfff are not characters")
    return text


def _read_integer(text: str) -> int:
    octal = _LEADING_ZERO.fullmatch(text)
    if octal:
        decimal = f"{octal['sign']}{octal['digits'][:40]}"
        raise ScalarError(f"{text[:40]} starts with 0, which YAML 1.1 reads as octal", f"write {decimal}, or quote it")
    if len(text) > 4 * MAX_DIGITS or abs(number := int(text, 0)) >= 10**MAX_DIGITS:
        raise ScalarError(f"a number of {len(text)} digits is too long")
    return number


_READERS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Scalar]]] = {
    "null": (NULL, lambda text: None),
    "bool": (BOOLEAN, lambda text: text.lower() == "true"),
    "int": (INTEGER, _read_integer),
    "float": (FLOAT, lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))),
}
