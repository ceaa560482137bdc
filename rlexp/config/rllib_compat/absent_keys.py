"""Keys that rlexp does not have: dropped with a notice, or refused where they ask for a feature."""

from __future__ import annotations

from collections.abc import Mapping

from rlexp.config.rllib_compat.table import Absent
from rlexp.config.space.samplers import GRID
from rlexp.config.translation import Translation, leaves
from rlexp.config.yaml.nodes import Node, dotted, shown_key

_NOTHING = "None"
"""Null, as Python writes it."""


def leave_out(translation: Translation, absent: Absent) -> None:
    """Drop a key, and say why; refuse it where it asks for a feature that rlexp does not have."""
    node = translation.take(".".join(absent.path))
    if node is None:
        return
    name, choices = dotted(absent.path), choices_of(node)
    asking = [choice for choice in choices if _asks(choice, absent)]
    if absent.is_feature and asking:
        translation.problem(node, f"{name}: rlexp does not support {absent.reason}", absent.hint)
    elif len(choices) > 1:
        grid = f"the {len(choices)} values of its {GRID} make one trial"
        translation.notice(node, f"{name} has no effect here: {absent.reason}; {grid}")
    elif asking:
        translation.notice(node, f"{name} has no effect here: {absent.reason}")
    elif node.place.line:
        reason = f"rlexp does not support {absent.reason}" if absent.is_feature else absent.reason
        translation.notice(node, f"{name} is left out: {reason}", is_minor=True)


def choices_of(node: Node) -> tuple[Node, ...]:
    """Return what a value may be: the choices of a ``grid_search``, else itself."""
    grid = node.entries().get(GRID)
    return grid.value if grid is not None and isinstance(grid.value, tuple) else (node,)


def _asks(node: Node, absent: Absent) -> bool:
    """Return whether a value asks for something: not null, false, 0, empty, or one that is known to be harmless."""
    if absent.has_names and any(name not in absent.welcome for name in _names(node)):
        return True
    values = [leaf.value for leaf in leaves(node)]
    return not all(not value or value == _NOTHING or value in absent.welcome for value in values)


def _names(node: Node) -> list[str]:
    """Return the names in a mapping from names, or in a list of them."""
    if isinstance(node.value, Mapping):
        return list(node.value)
    items = node.value if isinstance(node.value, tuple) else ()
    return [shown_key(str(item.value)) for item in items]
