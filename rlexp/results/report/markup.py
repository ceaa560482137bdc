"""HTML and SVG by construction: whatever is not markup already is escaped where it is put in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

_VOID: Final = frozenset({"meta", "br"})
_UNPRINTABLE: Final = "�"


class Markup(str):
    """Text that is markup already; only this module makes it of other text."""

    __slots__ = ()


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``, ``stroke_width`` is ``stroke-width``, None is left out.

    Content that is not :class:`Markup`, and every attribute, is escaped.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escaped(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(content)}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return the parts one after the other."""
    return Markup("".join(part if isinstance(part, Markup) else _escaped(part) for part in parts))


def document(*content: Markup) -> str:
    """Return a whole page."""
    return f"<!DOCTYPE html>\n{element('html', *content, lang='en')}\n"


def style(css: str) -> Markup:
    """Return a style sheet of our own."""
    return Markup(f"<style>\n{css}</style>")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], class_: str | None = None) -> Markup:
    """Return a table that scrolls within itself where the page is too narrow; the first cell of a row is its head."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", head), element("tbody", *body), class_=class_)
    return element("div", whole, class_="scrolling")


def _escaped(text: str) -> str:
    """Return text for content or an attribute; characters that could hide or turn round others become visible."""
    return escape("".join(c if c.isprintable() or c in "\n\t" else _UNPRINTABLE for c in text), quote=True)
