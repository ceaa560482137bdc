"""The date of a file: the releases of RLlib that its keys prove, and keys that contradict them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from rlexp.config.domains import GRID
from rlexp.config.keys.env_ids import current_env
from rlexp.config.keys.key_table import KeyName, key_table, rlexp_only_keys
from rlexp.config.rllib.ages import (
    Age,
    ChangedDefault,
    changed_defaults,
    dated_envs,
    dated_values,
    envs_of,
    is_open,
    shows_images,
    spellings,
    unused_if_stale,
)
from rlexp.config.rllib.names import absent_keys, choices_of
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, dotted, shown_key, written

_OLD_IN_GYMNASIUM: Final = "CartPole-v0"
"""Ids that Gymnasium still has, though their files are years old."""


@dataclass(frozen=True)
class Evidence:
    """A key that only some releases of RLlib have."""

    path: KeyName
    node: Node
    age: Age
    is_proof: bool
    """Whether rlexp spells it otherwise, so that a file for rlexp does not have it."""


@dataclass(frozen=True)
class Dating:
    """What the keys of an experiment tell about its releases."""

    age: Age | None = None
    """The releases that they prove; None: rlexp's own file, or not known."""
    possible: Age | None = None
    """The releases that it may belong to, if it is RLlib's."""
    stale: tuple[Evidence, ...] = ()
    """The keys that contradict most others."""


def dated(experiment: Node, run: str) -> Dating:
    """Return the releases on which most keys of an experiment agree, the newest of several.

    Keys in rlexp's spelling narrow an age that another spelling proves, but prove none, as current files have them too.
    Nothing is known if a key is rlexp's own, or if more than a third of the keys contradict the others.
    """
    found: dict[KeyName, Evidence] = {}
    for path, node in _written(experiment, ()):
        if path in rlexp_only_keys():
            return Dating()
        evidence = _evidence(path, node, run)
        if evidence is not None:
            found[path] = evidence
    kept = _agreeing(tuple(found.values()))
    stale = tuple(evidence for evidence in found.values() if evidence not in kept)
    age = _narrowed_by_env(reduce(Age.within, (evidence.age for evidence in kept), Age()), experiment)
    is_proved = any(evidence.is_proof for evidence in kept)
    if is_proved and 2 * len(stale) <= len(kept):
        return Dating(age, age, stale)
    is_of_rllib = is_proved or (kept and _has_old_env(experiment))
    return Dating(None, age if is_of_rllib else None, stale if is_proved else ())


def report_stale_keys(translation: Translation, dating: Dating) -> None:
    """Add a notice for each key that contradicts the others, and leave out keys that would only ask for a GPU.

    Keys without an effect here have a notice of their own.
    """
    without_effect = {absent.path for absent in absent_keys(translation.run)}
    for evidence in dating.stale:
        releases = spellings(translation.run).get(evidence.path)
        if dating.age is None or releases is None or not releases.within(dating.age).is_empty:
            continue
        if evidence.path in without_effect or evidence.node.value is None:
            continue
        key = dotted(evidence.path)
        message = f"{key} is a key of RLlib {evidence.age}, but other keys of this file are of RLlib {dating.age}"
        if evidence.path in unused_if_stale():
            translation.take(".".join(evidence.path))
            translation.notice(evidence.node, f"{message}. It is left out; num_gpus: 1 asks for a GPU")
        else:
            translation.notice(evidence.node, f"{message}. It is used for what it meant there")


def report_undecided(translation: Translation, dating: Dating, name: str) -> None:
    """Add one notice with the defaults that differ between the possible releases; rlexp's are used."""
    possible = dating.possible
    if possible is None:
        return
    sentences = (_undecided(translation, default, possible) for default in changed_defaults() if default.is_reported)
    found = [sentence for sentence in sentences if sentence is not None]
    if found:
        which = f"the keys of {shown_key(name)} fit RLlib {possible}, whose releases have different defaults"
        translation.notice(translation.experiment, f"{which}: {'; '.join(found)}. To choose, write the keys")


def _undecided(translation: Translation, default: ChangedDefault, possible: Age) -> str | None:
    """Return ``KEY: A before R, B since (here B)``; None if the default is known, or has no effect."""
    if not is_open(translation, default) or (default.except_images and shows_images(translation)):
        return None
    newest, same_as = default.values[-1][1], default.same_as
    values = [
        (since, f"the value of {same_as[-1]}" if same_as and value == newest else written(value))
        for since, value in default.values_in(possible)
    ]
    if len({name for _, name in values}) < 2:
        return None
    before = ", ".join(
        f"{name} before {'.'.join(map(str, since))}" for (_, name), (since, _) in itertools.pairwise(values)
    )
    ours = written(key_table(translation.run)[default.path].default)
    return f"{dotted(default.path)}: {before}, {values[-1][1]} since (here {ours})"


def _evidence(path: KeyName, node: Node, run: str) -> Evidence | None:
    value = "" if node.entries() else str(node.value)
    ages = [age for age in (spellings(run).get(path), dated_values().get((path, value))) if age is not None]
    if not ages:
        return None
    return Evidence(path, node, reduce(Age.within, ages), is_proof=path not in key_table(run))


def _agreeing(found: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Return the largest set of keys on which some release agrees: most proofs, then most keys, then newest."""
    groups = [
        (release, tuple(other for other in found if other.age.first <= release <= other.age.last))
        for release in {evidence.age.first for evidence in found}
    ]
    ranked = ((sum(one.is_proof for one in group), len(group), release, group) for release, group in groups)
    return max(ranked, key=lambda rank: rank[:3], default=(0, 0, (), ()))[3]


def _narrowed_by_env(age: Age, experiment: Node) -> Age:
    """Return the releases of an age that can have the env; all if none can, as newer ids replace older ones."""
    for name in envs_of(experiment):
        for pattern, since in dated_envs().items():
            narrowed = age.within(since)
            if re.fullmatch(pattern, name) and not narrowed.is_empty:
                age = narrowed
    return age


def _has_old_env(experiment: Node) -> bool:
    """Return whether an env is named as RLlib's users did and current users do not."""
    return any(name == _OLD_IN_GYMNASIUM or current_env(name) is not None for name in envs_of(experiment))


def _written(node: Node, path: KeyName) -> Iterator[tuple[KeyName, Node]]:
    """Yield every key below a node, at any depth; metrics count as mappings: ``outer/inner``."""
    if GRID in node.entries():
        below = [(path, choice) for choice in choices_of(node) if choice is not node]
    else:
        below = [((*path, *key.split("/", 1)), child) for key, child in node.entries().items()]
    for place, child in below:
        if len(place) == len(path) + 2:
            yield place[:-1], child
        yield place, child
        yield from _written(child, place)
