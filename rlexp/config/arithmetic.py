"""``eval: <arithmetic>`` anywhere in one variant of an experiment: computed, or refused at its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlexp.config.keys.key_table import key_table
from rlexp.config.rllib_compat.layout import proper_path
from rlexp.config.rllib_compat.names import current_path
from rlexp.config.space.expressions import ExpressionError, evaluated
from rlexp.config.space.grid import SEARCH
from rlexp.config.space.samplers import FREE_FORM, SAMPLERS
from rlexp.config.translation import Translation, node_of
from rlexp.config.yaml.nodes import KeyPath, Node, dotted

EVAL = "eval"
_SAMPLERS = ("sample_from", *SAMPLERS)


def compute(translation: Translation) -> None:
    """Replace every ``eval`` of a variant by its value; one that has none is a problem, and left out."""
    translation.experiment = _computed(translation, translation.experiment, ()) or translation.experiment


def _computed(translation: Translation, node: Node, path: KeyPath) -> Node | None:
    entries = node.entries()
    if EVAL in entries and len(entries) == 1:
        return _value_of(translation, node, path)
    sampler = next((name for name in _SAMPLERS if name in entries and len(entries) == 1), None)
    if sampler and path[-1:] and path[-1] != FREE_FORM:
        if SEARCH in translation.experiment.entries():
            hint = "write one sampler, or a list of values, not a list of samplers"
            translation.problem(entries[sampler], f"{dotted(path)}: {sampler} is not allowed here", hint)
            return None
        message = f"{dotted(path)}: {sampler} is random, which rlexp run does not support"
        hint = "use rlexp sweep, or write grid_search: [...] with the values to try"
        translation.problem(entries[sampler], message, hint)
        return None
    if isinstance(node.value, tuple):
        items = (_computed(translation, child, (*path, index)) for index, child in enumerate(node.value))
        return node.with_value(tuple(item for item in items if item is not None))
    if isinstance(node.value, Mapping):
        made = {key: _computed(translation, child, (*path, key)) for key, child in entries.items()}
        return node.with_value({key: child for key, child in made.items() if child is not None})
    return node


def _value_of(translation: Translation, node: Node, path: KeyPath) -> Node | None:
    text = node.entries()[EVAL]
    if not isinstance(text.value, str):
        return text
    try:
        return node_of(evaluated(text.value, lambda names: _looked_up(translation, names)), node)
    except ExpressionError as error:
        translation.problem(
            text, f"{dotted(path)}: the expression {error}", "numbers, + - * / and spec.config.KEY are allowed"
        )
        return None


def _looked_up(translation: Translation, names: tuple[str, ...]) -> Any:
    """Return the value of a key of any age, or its default; raises ExpressionError."""
    path = proper_path(current_path(names, translation.run), translation.run) if names else names
    node, key = translation.experiment.find(path), key_table(translation.run).get(path)
    if node is not None and not isinstance(node.value, Mapping):
        return node.plain()
    if node is not None or key is None or key.is_group or key.required:
        raise ExpressionError(f"uses spec.{'.'.join(names)}, which has no value")
    return key.default
