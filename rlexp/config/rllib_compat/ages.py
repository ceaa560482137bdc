"""The age of a file: the releases of RLlib that its spelling belongs to, with their defaults and ignored keys."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.rllib_compat.absent_keys import choices_of, leave_out
from rlexp.config.rllib_compat.releases import (
    Age,
    ChangedDefault,
    changed_defaults,
    dated_values,
    ignored_keys,
    keys_of_rlexp,
    spellings,
)
from rlexp.config.space.samplers import GRID
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node


def age_of(experiment: Node, run: str) -> Age | None:
    """Return the releases that an experiment was written for, as its file spells it; None where nothing tells.

    Keys as rlexp spells them narrow an age that another spelling proves, but prove none: files of today have them too.
    Nothing tells where spellings are of different ages, nor where a key is rlexp's own.
    """
    age, is_proved = Age(), False
    for path, value in _written(experiment, ()):
        if path in keys_of_rlexp():
            return None
        for dated in (spellings().get(path), dated_values().get((path, str(value)))):
            if dated is not None:
                age = age.within(dated)
                is_proved = is_proved or path not in key_table(run)
    return age if is_proved and not age.is_empty else None


def leave_out_ignored(translation: Translation, age: Age, decided: Container[KeyName] = ()) -> None:
    """Drop the keys that RLlib of an age ignored, except those that are ``decided`` and those of the command line."""
    for ignored in ignored_keys(translation.run):
        node = translation.experiment.find(ignored.absent.path)
        if node is None or not node.place.line or ignored.absent.path in decided or not age.lies_in(ignored.age):
            continue
        words = [str(choice.plain()).rpartition(".")[2] for choice in choices_of(node)]
        if not ignored.values or set(words) <= set(ignored.values):
            leave_out(translation, ignored.absent)


def use_defaults(translation: Translation, age: Age) -> frozenset[KeyName]:
    """Give keys that are not given the default of an age where it is not rlexp's; return them."""
    table, used = key_table(translation.run), set()
    for default in changed_defaults():
        if translation.run not in default.agents or not _is_open(translation, default):
            continue
        index = default.index_at(age)
        if index is None:
            continue
        is_newest = index == len(default.values) - 1
        value = _value_of(translation, default.same_as) if is_newest and default.same_as else default.values[index][1]
        if value != table[default.path].default and not isinstance(value, dict):  # no second axis for a searched key
            translation.put(".".join(default.path), value, translation.experiment)
            used.add(default.path)
    return frozenset(used)


def _is_open(translation: Translation, default: ChangedDefault) -> bool:
    """Return whether a key is not given, and matters."""
    if translation.experiment.find(default.path) is not None:
        return False
    beside = default.beside
    return beside is None or _value_of(translation, beside) != key_table(translation.run)[beside].default


def _value_of(translation: Translation, path: KeyName) -> Any:
    """Return the value of a key, or its default; of one that is searched, its grid."""
    node = translation.experiment.find(path)
    return key_table(translation.run)[path].default if node is None else node.plain()


def _written(node: Node, path: KeyName) -> Iterator[tuple[KeyName, Any]]:
    """Yield every key below a node, at any depth, with its value; metrics count as mappings: ``outer/inner``."""
    if GRID in node.entries():
        for choice in choices_of(node):
            if choice is not node:
                yield from _written_at(choice, path)
        return
    for key, child in node.entries().items():
        group, slash, rest = key.partition("/")
        if slash:
            yield (*path, group), None
        yield from _written_at(child, (*path, *((group, rest) if slash else (key,))))


def _written_at(node: Node, path: KeyName) -> Iterator[tuple[KeyName, Any]]:
    yield path, None if node.entries() else node.value
    yield from _written(node, path)
