"""Translation: brings an experiment from its spelling to ours, with the notices of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.yaml.nodes import Finding, Node, both, dotted, shown, written


class Translation:
    """Holds one experiment; moves, replaces and drops keys, and collects problems and notices."""

    def __init__(self, experiment: Node, run: str) -> None:
        self.experiment = experiment
        self.run = run
        self.problems: list[Finding] = []
        self.notices: list[Finding] = []

    def nodes(self) -> Mapping[KeyName, Node]:
        """Return the nodes of all keys that are given, by path, also of those with other keys below them."""
        return dict(_nodes(self.experiment, ()))

    def find(self, key: str) -> Node | None:
        """Return the node at a dotted path."""
        return self.experiment.find(tuple(key.split(".")))

    def value(self, key: str) -> Any:
        """Return the plain data at a dotted path; None if there is none."""
        node = self.find(key)
        return node.plain() if node else None

    def take(self, key: str) -> Node | None:
        """Remove the key at a dotted path and return its node; None if there is none."""
        node = self.find(key)
        if node is not None:
            self.experiment = self.experiment.without(*key.split("."))
        return node

    def take_flag(self, key: str) -> Node | None:
        """Remove a key that is true or false, and return its node if it is true; another value is a problem."""
        node = self.take(key)
        if node is not None and not isinstance(node.value, bool | None):
            self.problem(node, f"{key} must be true or false, got {shown(node.plain())}")
        return node if node is not None and node.value is True else None

    def put(self, key: str, value: Any, at: Node) -> None:
        """Set the key at a dotted path to plain data or a node, at the place of ``at``; missing mappings are made."""
        node = value if isinstance(value, Node) else node_of(value, at)
        self.experiment = self.experiment.put(tuple(key.split(".")), node)

    def put_unless_given(self, key: str, value: Any, at: Node) -> bool:
        """Set a key that the file does not give; return whether it did not."""
        if self.find(key) is not None:
            return False
        self.put(key, value, at)
        return True

    def put_over(self, key: str, value: Any, at: Node) -> bool:
        """Set a key unless it is given as surely as ``at``: the command line precedes files."""
        given = self.find(key)
        if given is not None and (at.place.line or not given.place.line):
            return False
        self.put(key, value, at)
        return True

    def put_instead(self, node: Node, old: str, new: str, value: Any) -> None:
        """Set the current key for which an old one stands, as ``put_over`` does; a notice says which holds."""
        if self.put_over(new, value, node):
            self.notice(node, f"{old} is {new}: {written(value)} now")
        else:
            self.notice(node, f"{old} has no effect beside {new}")

    def compute(self, old: str, new: str, value_of: Callable[[Node], Any]) -> None:
        """Set the current key for which an old one stands to ``value_of`` its node, by ``put_instead``."""
        node = self.take(old)
        if node is not None:
            self.put_instead(node, old, new, value_of(node))

    def move(self, old: KeyName, new: KeyName) -> None:
        """Give a key its current name; different values under both names are a problem."""
        node = self.take(".".join(old))
        if node is None:
            return
        current = self.experiment.find(new)
        is_override = not node.place.line
        if node.value is None and not is_override and (current is not None or not key_table(self.run)[new].takes_null):
            return  # RLlib wrote null under one of two names for "see the other one", or for its default
        is_open = current is None or current.value is None
        if is_open or is_override:
            self.put(".".join(new), node, node)
        elif current is not None and current.place.line and not current.is_same_as(node):
            message = f"{dotted(old)} is another name of {dotted(new)}, but they differ: {both(current, node)}"
            self.problems.append(Finding(node.key_place, message, "keep one of them"))
            return
        self.notice(node, f"{dotted(old)} is {dotted(new)} now")

    def notice(self, node: Node, message: str, *, is_minor: bool = False) -> None:
        """Add a notice about a key."""
        self.notices.append(Finding(node.key_place, message, is_minor=is_minor))

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


def _nodes(node: Node, path: KeyName) -> Iterator[tuple[KeyName, Node]]:
    for key, child in node.entries().items():
        yield (*path, key), child
        yield from _nodes(child, (*path, key))


def leaves(node: Node) -> Iterator[Node]:
    """Yield the single values below a node."""
    children = node.value if isinstance(node.value, tuple) else tuple(node.entries().values())
    if isinstance(node.value, tuple | Mapping):
        for child in children:
            yield from leaves(child)
    else:
        yield node
