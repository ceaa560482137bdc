"""Variant: one point of an experiment's grid, in current spelling and validated; then the axes' paths in all of them.

Some old keys set other keys, so the current path of an axis is known only after every variant.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlexp.config.command_line import LoadOptions
from rlexp.config.domains import EVAL, FREE_FORM, PYTHON_KEYS, SAMPLERS, sampler_in
from rlexp.config.grid import SEARCH, Axis, line_of, variant_indices
from rlexp.config.keys import env_ids
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.keys.model import CUSTOM_MODEL
from rlexp.config.keys.user_code import env_classes_in
from rlexp.config.rllib.ages import Age, leave_out_ignored
from rlexp.config.rllib.groups import TRIAL_RESOURCES
from rlexp.config.rllib.names import arrange, old_groups, read_literal, use_current_names
from rlexp.config.rllib.values import use_current_values
from rlexp.config.translation import Translation
from rlexp.config.validation import unknown_keys, unused_beside_errors, validated
from rlexp.config.yaml.nodes import MISSING, Finding, KeyPath, Node, at, dotted, shown_key, written

Data = dict[str, Any]

_SAMPLERS = (*PYTHON_KEYS, *SAMPLERS)
_MOST_MODULES = 50
"""Most modules of a folder that are searched for a class."""


@dataclass(frozen=True)
class Variant:
    """The result for one variant."""

    experiment: Experiment | None
    """The experiment; None if it has an error."""
    written: Node
    """The keys that the file gives, in current spelling."""
    problems: tuple[Finding, ...]
    notices: tuple[Finding, ...]


def variants_of(
    name: str, nodes: Sequence[Node], run: str, age: Age | None, defaults: Collection[KeyName], options: LoadOptions
) -> tuple[Variant, ...]:
    """Return all variants of an experiment; valid ones without the keys that have no effect in any of them.

    A notice names each of these keys that is not at its default, except ``defaults``, which the file does not give.
    """
    made = tuple(variant_of(name, node, run, age, options) for node in nodes)
    ineffective = [dict(variant.experiment.config.ineffective_keys()) for variant in made if variant.experiment]
    if len(ineffective) < len(made):
        return made
    everywhere = {key: reason for key, reason in ineffective[0].items() if all(key in other for other in ineffective)}
    return tuple(_without(name, variant, run, everywhere, defaults) for variant in made)


def variant_of(name: str, node: Node, run: str, age: Age | None, options: LoadOptions) -> Variant:
    """Return a variant, or all findings about it."""
    translation = Translation(node, run)
    _use_names_of_chosen_groups(translation, age)
    translation.experiment = _without_expressions(translation, translation.experiment, ()) or translation.experiment
    _use_classes_of_names(translation, options)
    use_current_values(translation)
    _drop_empty_groups(translation)
    if options.allow_unknown:
        _leave_out_unknown(translation)
    _refuse_unknown_env(translation, options)
    experiment, wrong = validated(name, translation.experiment, run)
    problems = (*translation.problems, *wrong)
    if problems and options.adjust is None:  # else they would show up once these are mended
        problems += tuple(unused_beside_errors(name, translation.experiment, run))
    return Variant(None if problems else experiment, translation.experiment, problems, tuple(translation.notices))


def _use_names_of_chosen_groups(translation: Translation, age: Age | None) -> None:
    """Give the keys of a mapping that was in a ``grid_search`` their current names and places."""
    use_current_names(translation)
    if age is not None:
        leave_out_ignored(translation, age, decided=key_table(translation.run))
    arrange(translation)


def _without_expressions(translation: Translation, node: Node, path: KeyPath) -> Node | None:
    """Refuse every remaining sampler in a variant, and arithmetic, which rlexp does not do; leave both out."""
    entries = node.entries()
    sampler = next((name for name in _SAMPLERS if name in entries and len(entries) == 1), None)
    if sampler and path[-1:] and path[-1] != FREE_FORM:
        if sampler == EVAL and sampler_in(node, path) is None:
            _refuse_arithmetic(translation, entries[EVAL], path)
        else:
            _refuse_sampler(translation, entries[sampler], path, sampler)
        return None
    if isinstance(node.value, tuple):
        items = (_without_expressions(translation, child, (*path, index)) for index, child in enumerate(node.value))
        return node.with_value(tuple(item for item in items if item is not None))
    if isinstance(node.value, Mapping):
        left = {key: _without_expressions(translation, child, (*path, key)) for key, child in entries.items()}
        return node.with_value({key: child for key, child in left.items() if child is not None})
    return node


def _refuse_arithmetic(translation: Translation, expression: Node, path: KeyPath) -> None:
    """Refuse ``eval: 4 + spec.config.num_workers``; note it in a trial's resources, which follow anyway."""
    message = f"{dotted(path)}: {EVAL} is not supported, as rlexp computes no expressions"
    if path[0] in TRIAL_RESOURCES:
        translation.notice(expression, f"{dotted(path)} has no effect here: rlexp computes no expressions")
        return
    value = read_literal(expression.value) if isinstance(expression.value, str) else expression.plain()
    is_value = value is None or isinstance(value, bool | int | float | list)
    hint = f"write {written(value)}" if is_value else "write the value itself, or grid_search: [...] with those to try"
    translation.problem(expression, message, hint)


def _refuse_sampler(translation: Translation, arguments: Node, path: KeyPath, sampler: str) -> None:
    reason = "is random, which rlexp run does not support"
    hint = "use rlexp sweep, or write grid_search: [...] with the values to try"
    if SEARCH in translation.experiment.entries():
        reason = "is not allowed here"
        hint = "write a sampler: {uniform: [0, 1]}, for example, or {choice: [a, b, c]}"
    translation.problem(arguments, f"{dotted(path)}: {sampler} {reason}", hint)


def _drop_empty_groups(translation: Translation) -> None:
    for group in sorted(old_groups(), key=len, reverse=True):
        node = translation.experiment.find(group)
        if node is not None and node.plain() in ({}, None):
            translation.take(".".join(group))


def _leave_out_unknown(translation: Translation) -> None:
    for path, finding in unknown_keys(translation.experiment, translation.run):
        translation.take(".".join(path))
        translation.notices.append(Finding(finding.place, f"{finding.message}: it is left out"))


def _use_classes_of_names(translation: Translation, options: LoadOptions) -> None:
    """Name the class, which the user gives on the command line, for a name that a program registered in RLlib."""
    for key in ("env", CUSTOM_MODEL, "config.model.custom_preprocessor"):
        node = translation.find(key)
        if node is not None and isinstance(node.value, str) and node.value in options.names:
            found = options.names[node.value]
            translation.put(key, found, node)
            translation.notice(node, f"{key}: {shown_key(node.value)} is {shown_key(found)} (--map)")


def _refuse_unknown_env(translation: Translation, options: LoadOptions) -> None:
    env = translation.find("env")
    if env is None or not isinstance(env.value, str) or options.imports or env_ids.is_known(env.value):
        return
    if env_ids.ENV_ID.fullmatch(env.value):
        message, hint = env_ids.why_unknown(env.value)
        meant = _class_meant(env.value)
        hint = f"did you mean {meant}?" if meant else hint
        translation.problems.append(Finding(env.place, f"env {shown_key(env.value)} {message}", hint))


def _class_meant(name: str) -> str | None:
    """Return the env class, ``maze:Maze``, of which ``name`` is the module or the class; the module is in this folder.

    None if there is none, or several.
    """
    module = Path(f"{name}.py")
    files = [module] if os.path.isfile(module) else sorted(Path().glob("*.py"))[:_MOST_MODULES]
    found = [each for file in files for each in env_classes_in(file) if name in each.split(":")]
    return found[0] if len(found) == 1 else None


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


def located(axes: Sequence[Axis], variants: Sequence[Experiment]) -> tuple[tuple[Axis, ...], tuple[Finding, ...]]:
    """Return the axes with the paths at which variants differ, and findings about ranges that change nothing."""
    data = [data_of(variant) for variant in variants]
    found: list[Axis] = []
    lost: list[Finding] = []
    for number, axis in enumerate(axes):
        along = [data[place] for place in line_of(axes, number)]
        paths = {path for other in along[1:] for path in differences(along[0], other)}
        is_key = at(data[0], axis.path) is not MISSING
        if is_key and all(_overlap(path, axis.path) for path in paths) and (paths or axis.is_grid or len(along) == 1):
            found.append(axis)
        elif len(paths) == 1 and not axis.is_conditional:
            found.append(replace(axis, path=paths.pop(), given=axis.path))
        elif paths:
            found.append(replace(axis, makes=tuple(sorted(paths, key=str))))
        elif axis.is_grid:
            found.append(axis)
        else:
            why = dict(variants[0].config.ineffective_keys()).get(dotted(axis.path[1:]))
            message = f"{axis.key} cannot be searched: {why or 'it has no effect here'}"
            hint = "leave one of the two out" if why else "write one value, or leave the key out"
            lost.append(Finding(axis.choices[0].place, message, hint))
    return tuple(found), tuple(lost)


def _overlap(one: KeyPath, other: KeyPath) -> bool:
    """Return whether one path leads to the other, or to something inside it."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def differences(one: Any, other: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of the keys in which two experiments differ; lists count as one value."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        if one != other:
            yield path
        return
    for key in {**one, **other}:
        yield from differences(one.get(key, MISSING), other.get(key, MISSING), (*path, key))


def is_at_a_key(axis: Axis, experiment: Experiment) -> bool:
    """Return whether a located axis is at a key of an experiment, or sets several keys."""
    return bool(axis.makes) or at(data_of(experiment), axis.path) is not MISSING


def varied_values(axes: Sequence[Axis], variants: Sequence[Experiment]) -> list[dict[str, Any]]:
    """Return the values of located axes in each variant, by their keys as trials show them.

    Of a mapping, as in a grid over the whole ``config``, only the keys in which the variants differ are varied.
    """
    every = [data_of(variant) for variant in variants]
    differing = [_differing(axis, [every[place] for place in line_of(axes, n)]) for n, axis in enumerate(axes)]
    found: list[dict[str, Any]] = []
    for point, data in zip(variant_indices(axes), every, strict=True):
        values = (_value_on(axis, data, choice) for axis, choice in zip(axes, point, strict=True))
        found.append({})
        for axis, value, paths in zip(axes, values, differing, strict=True):
            chosen = value if paths is None else _only(value, paths)
            found[-1].update(chosen if paths is not None and axis.path == ("config",) else {axis.key: chosen})
    return found


def _differing(axis: Axis, along: Sequence[Data]) -> set[KeyPath] | None:
    """Return the paths at which the mappings of an axis differ; None if it has other values, or only one."""
    values = [_value_on(axis, data, choice) for choice, data in enumerate(along)]
    if len(values) == 1 or not all(isinstance(value, dict) for value in values):
        return None
    return {path for other in values[1:] for path in differences(values[0], other)} or None


def _only(value: Data, paths: Collection[KeyPath]) -> Data:
    """Return the items of a mapping at these paths, in its own order."""
    kept: Data = {}
    for key, item in value.items():
        inside = {path[1:] for path in paths if path[0] == key}
        if inside:
            kept[key] = item if () in inside or not isinstance(item, dict) else _only(item, inside)
    return kept


def resolved(axes: Sequence[Axis], variants: Sequence[Experiment]) -> Data:
    """Return the first variant with every key, then each axis put back with its choices."""
    data = data_of(variants[0])
    for number, axis in enumerate(axes):
        along = [data_of(variants[place]) for place in line_of(axes, number)]
        _put_axis(data, axis, [_value_on(axis, other, choice) for choice, other in enumerate(along)])
    return data


def _value_on(axis: Axis, data: Data, choice: int) -> Any:
    """Return the value on a located axis of an experiment with this data and nth choice."""
    return axis.choices[choice].plain() if axis.keeps_spelling else at(data, axis.path)


def _put_axis(data: Data, axis: Axis, values: Sequence[Any]) -> None:
    """Put a located axis with its values into the data of an experiment, in place of the keys that it sets."""
    for path in axis.makes:
        del at(data, path[:-1])[path[-1]]
    group: Any = data
    for key in axis.path[:-1]:
        group = group.setdefault(key, {}) if isinstance(group, dict) else group[key]
    group[axis.path[-1]] = axis.data(values)


def data_of(experiment: Experiment) -> Data:
    """Return an experiment as plain data with every key, in the form of a file; ``search`` if it was given."""
    unwritten = {"name"} if SEARCH in experiment.model_fields_set else {"name", SEARCH}
    return experiment.model_dump(mode="json", by_alias=True, exclude=unwritten)
