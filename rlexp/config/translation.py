"""Translation: an experiment on its way from the spelling of its age to ours, and what is said about each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlexp.config.key_table import KeyName, key_table
from rlexp.config.nodes import Finding, Node, dotted, shown


class Translation:
    """Holds one experiment; moves, replaces and drops keys, and collects errors and notices on the way."""

    def __init__(self, experiment: Node, run: str) -> None:
        self.experiment = experiment
        self.run = run
        self.problems: list[Finding] = []
        self.notices: list[Finding] = []

    def find(self, key: str) -> Node | None:
        """Return the node at a dotted path."""
        return self.experiment.find(tuple(key.split(".")))

    def value(self, key: str) -> Any:
        """Return the plain data at a dotted path, None where there is nothing."""
        node = self.find(key)
        return node.plain() if node else None

    def take(self, key: str) -> Node | None:
        """Remove the key at a dotted path and return its node, None where there is none."""
        node = self.find(key)
        if node is not None:
            self.experiment = _without(self.experiment, tuple(key.split(".")))
        return node

    def put(self, key: str, value: Any, at: Node) -> None:
        """Set the key at a dotted path to plain data or a node, at the place of ``at``; groups are made on the way."""
        node = value if isinstance(value, Node) else node_of(value, at)
        self.experiment = _with(self.experiment, tuple(key.split(".")), node)

    def put_unless_given(self, key: str, value: Any, at: Node) -> bool:
        """Set a key that the file does not give; return whether it did not."""
        if self.find(key) is not None:
            return False
        self.put(key, value, at)
        return True

    def move(self, old: KeyName, new: KeyName) -> None:
        """Give a key its current name; one that is given under both names with different values is a problem."""
        node = self.take(".".join(old))
        if node is None:
            return
        current = self.experiment.find(new)
        if node.value is None and (current is not None or "null" not in key_table(self.run)[new].expects):
            return  # RLlib wrote null under the newer of two names for "see the older one", or for its default
        if current is not None and current.plain() != node.plain() and node.place.line and current.place.line:
            message = f"{dotted(old)} is {dotted(new)}, and they differ: {_both(node, current)}"
            self.problems.append(Finding(node.key_place, message, "keep one of them"))
            return
        if current is None or not node.place.line:  # what the command line says wins
            self.put(".".join(new), node, node)
        self.notice(node, f"{dotted(old)} is {dotted(new)} now")

    def notice(self, node: Node, message: str) -> None:
        """Tell the user something about a key."""
        self.notices.append(Finding(node.key_place, message))

    def problem(self, node: Node, message: str, hint: str | None = None) -> None:
        """Refuse a key."""
        self.problems.append(Finding(node.key_place, message, hint))


def node_of(value: Any, at: Node) -> Node:
    """Return plain data as a node at the place of another."""
    if isinstance(value, Mapping):
        return at.with_value({key: node_of(child, at) for key, child in value.items()})
    if isinstance(value, list | tuple):
        return at.with_value(tuple(node_of(child, at) for child in value))
    return at.with_value(value)


def leaves(node: Node) -> Iterator[Node]:
    """Yield the single values below a node."""
    children = node.value if isinstance(node.value, tuple) else tuple(node.entries().values())
    if isinstance(node.value, tuple | Mapping):
        for child in children:
            yield from leaves(child)
    else:
        yield node


def _both(old: Node, new: Node) -> str:
    return f"{shown(old.plain())} here, {shown(new.plain())} at {new.key_place}"


def _without(node: Node, path: KeyName) -> Node:
    if len(path) == 1:
        return node.without(path[0])
    return node.with_value({**node.entries(), path[0]: _without(node.entries()[path[0]], path[1:])})


def _with(node: Node, path: KeyName, value: Node) -> Node:
    if not path:
        return value
    below = node.child(path[0]) or value.with_value({})
    return node.with_value({**node.entries(), path[0]: _with(below, path[1:], value)})
