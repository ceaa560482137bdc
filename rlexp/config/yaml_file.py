"""Text to nodes: YAML 1.2 scalars, duplicate keys refused, every value's line and column, limits against bombs.

Pure Python on purpose: libyaml's C loader crashes the process on deep nesting.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rlexp.config import yaml_text
from rlexp.config.node_builder import MAX_DEPTH, MAX_NODES, PLAIN, TAG, NodeBuilder
from rlexp.config.nodes import Finding, Node, Place
from rlexp.config.yaml_text import Locate, UnreadableError

Result = tuple[Node | None, tuple[Finding, ...]]
"""The root, None where the text cannot be read or holds nothing, and what is wrong with it."""


def read_file(path: Path, name: str) -> Result:
    """Read an experiment file, a mapping at its top; ``name`` is the path as its user wrote it. Raises nothing."""
    try:
        text = yaml_text.read_text(path, name)
    except UnreadableError as error:
        return None, (error.finding,)
    root, findings = parse(text, lambda line, column: Place(name, line, column))
    if findings and root is None:
        return None, findings
    if root is None or root.value is None:
        return None, (*findings, Finding(Place(name), "is empty", "an experiment file maps names to experiments"))
    if not isinstance(root.value, Mapping):
        kind = "a list" if isinstance(root.value, tuple) else "a single value"
        hint = "write `name:` and indent the experiment below it"
        return None, (*findings, Finding(root.place, f"a file maps names to experiments, this one is {kind}", hint))
    return root, findings


def parse(text: str, locate: Locate) -> Result:
    """Read YAML text. Raises nothing."""
    builder = NodeBuilder(locate)
    try:
        yaml_text.refuse_unprintable(text, locate)
        root = _compose(text, locate)
        return builder.build(root) if root else None, tuple(builder.findings)
    except UnreadableError as error:
        return None, (*builder.findings, error.finding)


def _compose(text: str, locate: Locate) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise UnreadableError(yaml_text.explain(error, text, locate)) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # a code point or a %YAML version beyond all bounds
        mark = loader.get_mark()
        message = "not valid YAML: a number too large for what it stands for"
        raise UnreadableError(Finding(locate(mark.line + 1, mark.column + 1), message)) from error


class _Loader(yaml.SafeLoader):
    """Composes PyYAML's nodes; tells plain words from quoted ones, and stops at the limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._count = 0

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        """Return the tag of a node that has none; what plain words mean is decided later."""
        if kind is yaml.ScalarNode:
            return PLAIN if implicit[0] else TAG + "str"
        return TAG + ("seq" if kind is yaml.SequenceNode else "map")

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose one node, unless it is nested too deep or one too many."""
        self._depth += 1
        self._count += 1
        if self._depth > MAX_DEPTH or self._count > MAX_NODES:
            limit = f"nested deeper than {MAX_DEPTH} levels" if self._depth > MAX_DEPTH else f"over {MAX_NODES} values"
            raise yaml.MarkedYAMLError(problem=limit, problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node
