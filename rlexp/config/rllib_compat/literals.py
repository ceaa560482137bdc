"""Strings in other spellings of values: Python's ``None`` and ``(256, 256)``, YAML 1.1's ``yes`` and ``1_000_000``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.rllib_compat.names import current_path
from rlexp.config.space.expressions import ExpressionError, evaluated
from rlexp.config.space.samplers import FREE_FORM, GRID, SAMPLERS
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, dotted, shown
from rlexp.config.yaml.scalars import read_yaml_1_1

_STARTS = ("(", "[")


def read_yaml_1_1_words(translation: Translation) -> None:
    """Read such words as the booleans and numbers that they were, except where a key expects a string."""
    translation.experiment = _read(translation, translation.experiment, ())


def _read(translation: Translation, node: Node, path: KeyName) -> Node:
    if isinstance(node.value, Mapping):
        return node.with_value({key: _read(translation, child, _below(path, key)) for key, child in node.value.items()})
    if isinstance(node.value, tuple):
        return node.with_value(tuple(_read(translation, child, path) for child in node.value))
    if not node.is_plain or not isinstance(node.value, str) or _expects_string(path, translation.run):
        return node
    value = read_yaml_1_1(node.value)
    if value is node.value:
        return node
    otherwise = f", or {node.value!r} for a string" if FREE_FORM in path else ""
    translation.notice(node, f"{dotted(path)}: {node.value} is read as {shown(value)}; write {shown(value)}{otherwise}")
    return node.with_value(value)


def _below(path: KeyName, key: str) -> KeyName:
    """Return the path of an entry; the values of a grid or a sampler are those of its key."""
    return path if key in (GRID, *SAMPLERS) else (*path, key)


def _expects_string(path: KeyName, run: str) -> bool:
    key = key_table(run).get(current_path(path, run)) if path else None
    return key is not None and key.takes_strings


def read_literal(text: str) -> Any:
    """Return the value that a string has in Python; the same object for any other string."""
    stripped = text.strip()
    bare = stripped.removesuffix(",").rstrip()
    if bare.lower() in ("true", "false") and bare != text:
        return bare.lower() == "true"
    if bare != "None" and bare == stripped and not stripped.startswith(_STARTS):
        return text
    try:
        return evaluated(bare, _nothing_is_known)
    except ExpressionError:
        return text


def _nothing_is_known(path: tuple[str, ...]) -> Any:
    raise ExpressionError("uses a key")
