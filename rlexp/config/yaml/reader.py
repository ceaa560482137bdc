"""YAML text to nodes: 1.2 scalars, duplicate keys found, every value's line and column, limits against bombs.

Pure Python on purpose: libyaml's C loader crashes the process on deep nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlexp.config.yaml import text as yaml_text
from rlexp.config.yaml.nodes import Finding, Node, Place, Scalar, shown, shown_key
from rlexp.config.yaml.scalars import ScalarError, read_plain, read_tagged
from rlexp.config.yaml.text import Locate, UnreadableError

MAX_DEPTH = 32
"""Levels of nesting, of the text and again with its aliases expanded; experiment files need about 8."""

MAX_NODES = 20_000
"""Values of a file, and again with its aliases expanded; read in half a second."""

_TAG = "tag:yaml.org,2002:"

_PLAIN = "plain"
"""Our own tag of a value that is neither quoted nor tagged."""

_ODD_SPACE = re.compile(r"[^\S \t\n\r]|[\u200b\ufeff]")

_SURROGATE = re.compile(r"[\ud800-\udfff]")

_FORM = "write the name of an experiment (my-experiment:) and indent its keys below it"


class YamlText(NamedTuple):
    """What was read."""

    root: Node | None
    """None where the text cannot be read or is empty."""
    problems: tuple[Finding, ...]
    notices: tuple[Finding, ...] = ()


def read_file(path: Path, name: str) -> YamlText:
    """Read an experiment file, a mapping at its top; ``name`` is the path as its user wrote it. Raises nothing."""
    try:
        text = yaml_text.read_text(path, name)
    except UnreadableError as error:
        return YamlText(None, (error.finding,))
    found = parse(text, lambda line, column: Place(name, line, column))
    if found.root is None and found.problems:
        return found
    if found.root is None or found.root.value is None:
        return YamlText(None, (*found.problems, Finding(Place(name), "is empty", _FORM)))
    if not isinstance(found.root.value, Mapping):
        kind = "a list" if isinstance(found.root.value, tuple) else "a single value"
        problem = Finding(found.root.place, f"a file must be a mapping of names to experiments, got {kind}", _FORM)
        return YamlText(None, (*found.problems, problem))
    return found


def parse(text: str, locate: Locate) -> YamlText:
    """Read YAML text. Raises nothing."""
    builder = _NodeBuilder(locate)
    try:
        yaml_text.refuse_unprintable(text, locate)
        root = _compose(text, locate)
        node = builder.build(root) if root else None
    except UnreadableError as error:
        return YamlText(None, (*builder.problems, error.finding))
    return YamlText(node, tuple(builder.problems), tuple(builder.notices))


def _compose(text: str, locate: Locate) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise UnreadableError(yaml_text.explain(error, text, locate)) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a code point or a %YAML version beyond all bounds
        mark = loader.get_mark()
        message = "not valid YAML: a number is too large"
        raise UnreadableError(Finding(locate(mark.line + 1, mark.column + 1), message)) from error


class _Loader(yaml.SafeLoader):
    """Composes PyYAML's nodes; marks plain values, and stops at the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none; plain values are read later."""
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _TAG + "str"
        return _TAG + ("seq" if kind is yaml.SequenceNode else "map")

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node; raises MarkedYAMLError where it is nested too deep, or one too many."""
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_NODES:
            limit = f"nested deeper than {MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"over {MAX_NODES} values"
            raise yaml.MarkedYAMLError(problem=limit, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _NodeBuilder:
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
        return Node(value, place, key_place or place, is_plain=node.tag == _PLAIN)

    def _check_limits(self, node: yaml.Node, place: Place) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise UnreadableError(Finding(place, f"over {MAX_NODES} values once aliases are expanded"))
        if node in self._open:
            raise UnreadableError(Finding(place, "contains itself, by an alias"))
        if len(self._open) > MAX_DEPTH:
            raise UnreadableError(Finding(place, f"nested deeper than {MAX_DEPTH} levels once aliases are expanded"))
        odd = _ODD_SPACE.search(str(node.value)) if node.tag == _PLAIN else None
        if odd:
            message = f"U+{ord(odd.group()):04X} looks like a space, but is another character"
            raise UnreadableError(Finding(place, message, "replace it by an ordinary space"))

    def _value(self, node: yaml.Node, place: Place) -> Scalar | tuple[Node, ...] | dict[str, Node]:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
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
            if key_node.tag == _PLAIN and key_node.value == "<<":
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
    if node.tag == _PLAIN:
        return read_plain(text)
    return read_tagged(node.tag.removeprefix(_TAG), text)


def _text(node: yaml.ScalarNode) -> str:
    text = str(node.value)
    if _SURROGATE.search(text):
        raise ScalarError("\\ud800 to \\udfff are not characters")
    return text
