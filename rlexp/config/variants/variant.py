"""Variant: one point of an experiment's grid, where every value is known and validated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlexp.config.command_line import LoadOptions
from rlexp.config.keys import env_ids
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.rllib_compat.ages import Age, leave_out_ignored
from rlexp.config.rllib_compat.layout import arranged, proper_path
from rlexp.config.rllib_compat.names import current_path, use_current_names
from rlexp.config.rllib_compat.table import old_groups
from rlexp.config.rllib_compat.values import use_current_values
from rlexp.config.space.expressions import EVAL, ExpressionError, evaluated
from rlexp.config.space.grid import SEARCH
from rlexp.config.space.samplers import FREE_FORM, SAMPLERS
from rlexp.config.translation import Translation, node_of
from rlexp.config.validation import unknown_keys, validated
from rlexp.config.yaml.nodes import Finding, KeyPath, Node, dotted, shown_key

_SAMPLERS = ("sample_from", *SAMPLERS)


@dataclass(frozen=True)
class Variant:
    """What became of one variant."""

    experiment: Experiment | None
    """None where anything is wrong with it."""
    written: Node
    """What the file gives, in today's spelling."""
    problems: tuple[Finding, ...]
    notices: tuple[Finding, ...]


def variants_of(
    name: str, nodes: Sequence[Node], run: str, age: Age | None, defaults: Collection[KeyName], options: LoadOptions
) -> tuple[Variant, ...]:
    """Return all variants of an experiment; valid ones without the keys that have no effect in any of them.

    A notice names each of these keys that is not at its default, but ``defaults``, which the file does not give.
    """
    made = tuple(variant_of(name, node, run, age, options) for node in nodes)
    ineffective = [dict(variant.experiment.config.ineffective_keys()) for variant in made if variant.experiment]
    if len(ineffective) < len(made):
        return made
    everywhere = {key: reason for key, reason in ineffective[0].items() if all(key in other for other in ineffective)}
    return tuple(_without(name, variant, run, everywhere, defaults) for variant in made)


def variant_of(name: str, node: Node, run: str, age: Age | None, options: LoadOptions) -> Variant:
    """Return a variant, or everything that is wrong with it."""
    translation = Translation(node, run)
    _use_names_of_chosen_groups(translation, age)
    _compute(translation)
    use_current_values(translation)
    _drop_empty_groups(translation)
    if options.allow_unknown:
        _leave_out_unknown(translation)
    _refuse_unknown_env(translation, options)
    experiment, wrong = validated(name, translation.experiment, run)
    problems = (*translation.problems, *wrong)
    if experiment is None or problems:
        return Variant(None, translation.experiment, problems, tuple(translation.notices))
    return Variant(experiment, translation.experiment, (), tuple(translation.notices))


def _use_names_of_chosen_groups(translation: Translation, age: Age | None) -> None:
    """Give the keys of a mapping that stood in a ``grid_search`` their current names and places."""
    use_current_names(translation)
    if age is not None:
        leave_out_ignored(translation, age, decided=key_table(translation.run))
    translation.experiment, contradictory = arranged(translation.experiment, translation.run)
    translation.problems += contradictory


def _compute(translation: Translation) -> None:
    """Replace every ``eval`` of a variant by its value; one that has none is a problem, and left out."""
    translation.experiment = _computed(translation, translation.experiment, ()) or translation.experiment


def _computed(translation: Translation, node: Node, path: KeyPath) -> Node | None:
    entries = node.entries()
    if EVAL in entries and len(entries) == 1:
        return _value_of(translation, node, path)
    sampler = next((name for name in _SAMPLERS if name in entries and len(entries) == 1), None)
    if sampler and path[-1:] and path[-1] != FREE_FORM:
        if SEARCH in translation.experiment.entries():
            hint = "write a sampler: {uniform: [0, 1]}, for example, or {choice: [a, b, c]}"
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


def _drop_empty_groups(translation: Translation) -> None:
    for group in sorted(old_groups(), key=len, reverse=True):
        node = translation.experiment.find(group)
        if node is not None and node.plain() in ({}, None):
            translation.take(".".join(group))


def _leave_out_unknown(translation: Translation) -> None:
    for path, finding in unknown_keys(translation.experiment, translation.run):
        translation.take(".".join(path))
        translation.notices.append(Finding(finding.place, f"{finding.message}: it is left out"))


def _refuse_unknown_env(translation: Translation, options: LoadOptions) -> None:
    env = translation.find("env")
    if env is None or not isinstance(env.value, str) or options.imports or env_ids.is_known(env.value):
        return
    if env_ids.ENV_ID.fullmatch(env.value):
        message, hint = env_ids.why_unknown(env.value)
        translation.problems.append(Finding(env.place, f"env {shown_key(env.value)} {message}", hint))


def _without(
    name: str, variant: Variant, run: str, ineffective: Mapping[str, str], defaults: Collection[KeyName]
) -> Variant:
    translation = Translation(variant.written, run)
    for key, reason in ineffective.items():
        node = translation.find(f"config.{key}")
        if node is None or node.plain() == key_table(run)["config", *key.split(".")].default:
            continue
        translation.take(f"config.{key}")
        if ("config", *key.split(".")) not in defaults:
            translation.notice(node, f"config.{key} has no effect: {reason}")
    if translation.experiment is variant.written:
        return variant
    experiment, _ = validated(name, translation.experiment, run)
    return Variant(experiment, translation.experiment, (), (*variant.notices, *translation.notices))
