"""Text to nodes: YAML 1.2 scalars, duplicate keys found, every value's line and column, limits against bombs.

Pure Python on purpose: libyaml's C loader crashes the process on deep nesting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rlexp.config.yaml import text as yaml_text
from rlexp.config.yaml.node_builder import MAX_DEPTH, MAX_NODES, PLAIN, TAG, NodeBuilder
from rlexp.config.yaml.nodes import Finding, Node, Place
from rlexp.config.yaml.text import Locate, UnreadableError

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
    builder = NodeBuilder(locate)
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
            return PLAIN if implicit[0] else TAG + "str"
        return TAG + ("seq" if kind is yaml.SequenceNode else "map")

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
