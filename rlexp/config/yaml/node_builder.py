"""PyYAML's nodes to ours: aliases and merges expanded within limits, duplicate keys and bad values found."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from rlexp.config.yaml.nodes import Finding, Node, Place, Scalar, shown, shown_key
from rlexp.config.yaml.scalars import ScalarError, read_plain, read_tagged
from rlexp.config.yaml.text import Locate, UnreadableError

MAX_DEPTH = 32
"""Levels of nesting, of the text and again with its aliases expanded; experiment files need about 8."""

MAX_NODES = 20_000
"""Values of a file, and again with its aliases expanded; read in half a second."""

TAG = "tag:yaml.org,2002:"
PLAIN = "plain"
"""Our own tag of a value that is neither quoted nor tagged."""

_ODD_SPACE = re.compile(r"[^\S \t\n\r]|[\u200b\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class NodeBuilder:
    """Builds one file's nodes, and collects what is wrong with them and what its user should know."""

    def __init__(self, locate: Locate) -> None:
        self.problems: list[Finding] = []
        self.notices: list[Finding] = []
        self._locate = locate
        self._count = 0
        self._open: list[yaml.Node] = []

    def build(self, node: yaml.Node, key_place: Place | None = None) -> Node:
        """Return the node with everything below it; raises UnreadableError at a limit."""
        place = self._place(node)
        self._check_limits(node, place)
        self._open.append(node)
        value = self._value(node, place)
        self._open.pop()
        return Node(value, place, key_place or place, is_plain=node.tag == PLAIN)

    def _check_limits(self, node: yaml.Node, place: Place) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnreadableError(Finding(place, f"over {MAX_NODES} values once aliases are expanded"))
        if node in self._open:
            raise UnreadableError(Finding(place, "contains itself, by an alias"))
        if len(self._open) > MAX_DEPTH:
            raise UnreadableError(Finding(place, f"nested deeper than {MAX_DEPTH} levels once aliases are expanded"))
        odd = _ODD_SPACE.search(str(node.value)) if node.tag == PLAIN else None
        if odd:
            message = f"U+{ord(odd.group()):04X} looks like a space, but is another character"
            raise UnreadableError(Finding(place, message, "replace it by an ordinary space"))

    def _value(self, node: yaml.Node, place: Place) -> Scalar | tuple[Node, ...] | dict[str, Node]:
        if isinstance(node, yaml.MappingNode) and node.tag == TAG + "map":
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == TAG + "seq":
            return tuple(self.build(item) for item in node.value)
        try:
            return _scalar(node)
        except ScalarError as error:
            self.problems.append(Finding(place, error.message, error.hint))
            return None

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == PLAIN and key_node.value == "<<":
                merged.extend(self._merged(value_node))
            else:
                self._add_entry(entries, key_node, value_node)
        for source in merged:
            for key, child in source.entries().items():
                entries.setdefault(key, child)
        return entries

    def _add_entry(self, entries: dict[str, Node], key_node: yaml.Node, value_node: yaml.Node) -> None:
        place = self._place(key_node)
        self._check_limits(key_node, place)
        child = self.build(value_node, place)
        try:
            key = _key(key_node)
        except ScalarError as error:
            self.problems.append(Finding(place, error.message, error.hint))
            return
        first = entries.setdefault(key, child)
        if first is child:
            return
        if first.is_same_as(child):
            message = f"{shown_key(key)} is given twice with the same value: here and at {first.key_place}"
            self.notices.append(Finding(place, message))
        else:
            both = f"{shown(first.plain())} at {first.key_place}, {shown(child.plain())} here"
            message = f"{shown_key(key)} is given twice with different values: {both}"
            self.problems.append(Finding(place, message, "keep one of them"))

    def _merged(self, node: yaml.Node) -> Iterator[Node]:
        for source in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            built = self.build(source)
            if isinstance(source, yaml.MappingNode):
                yield built
            else:
                self.problems.append(Finding(built.place, "<< can merge mappings only"))

    def _place(self, node: yaml.Node) -> Place:
        return self._locate(node.start_mark.line + 1, node.start_mark.column + 1)


def _key(node: yaml.Node) -> str:
    """Return a key as a string, whatever it would mean as a value; raises ScalarError."""
    if not isinstance(node, yaml.ScalarNode):
        raise ScalarError("a key must be a string, not a list or a mapping")
    return _text(node)


def _scalar(node: yaml.Node) -> Scalar:
    """Return the value of a node without children; raises ScalarError."""
    if not isinstance(node, yaml.ScalarNode):
        raise ScalarError(f"tag {shown_key(node.tag)} is not supported")
    text = _text(node)
    if node.tag == PLAIN:
        return read_plain(text)
    return read_tagged(node.tag.removeprefix(TAG), text)


def _text(node: yaml.ScalarNode) -> str:
    text = str(node.value)
    if _SURROGATE.search(text):
        raise ScalarError("\\ud800 to \\udfff are not characters")
    return text
