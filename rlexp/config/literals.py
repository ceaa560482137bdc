"""Texts that Python or a slip of the pen wrote where YAML wants a value: ``None``, ``True,``, ``(256, 256)``."""

from __future__ import annotations

from typing import Any

from rlexp.config.expressions import ExpressionError, evaluated

_STARTS = ("(", "[")


def read_literal(text: str) -> Any:
    """Return what the text stands for; the text itself, the same object, where it is none of these slips."""
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
    raise ExpressionError("names a key")
