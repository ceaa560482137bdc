"""Setting the current key that an old one stands for, with a notice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, written


def becomes(translation: Translation, node: Node, old: str, new: str, value: Any, prefix: str = "config.") -> None:
    """Set the current key that an old one stands for, unless the file gives it as well."""
    if translation.put_unless_given(f"config.{new}", value, node):
        translation.notice(node, f"{prefix}{old} is config.{new}: {written(value)} now")
    else:
        translation.notice(node, f"{prefix}{old} has no effect beside config.{new}")


def said(keys: Mapping[str, Any]) -> str:
    """Return keys and values for a sentence."""
    return ", ".join(f"{key}: {written(value)}" for key, value in keys.items())
