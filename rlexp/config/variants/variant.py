"""Variant: one point of an experiment's grid, where every value is known and validated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rlexp.config.arithmetic import compute
from rlexp.config.keys import env_ids
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.keys.load_options import LoadOptions
from rlexp.config.rllib_compat.ages import Age, leave_out_ignored
from rlexp.config.rllib_compat.layout import arranged
from rlexp.config.rllib_compat.names import use_current_names
from rlexp.config.rllib_compat.table import old_groups
from rlexp.config.rllib_compat.values import use_current_values
from rlexp.config.translation import Translation
from rlexp.config.validation import unknown_keys, validated
from rlexp.config.yaml.nodes import Finding, Node, shown_key


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
    compute(translation)
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
        if node is None or node.plain() == key_table(run)["config", key].default:
            continue
        translation.take(f"config.{key}")
        if ("config", key) not in defaults:
            translation.notice(node, f"config.{key} has no effect: {reason}")
    if translation.experiment is variant.written:
        return variant
    experiment, _ = validated(name, translation.experiment, run)
    return Variant(experiment, translation.experiment, (), (*variant.notices, *translation.notices))
