"""Strings with values in Python's spelling: ``None``, ``True,``, ``(256, 256)``."""

from __future__ import annotations

from typing import Any

from rlexp.config.space.expressions import ExpressionError, evaluated

_STARTS = ("(", "[")


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
