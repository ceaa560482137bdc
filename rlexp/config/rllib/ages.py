"""The age of a file: releases of RLlib, with their keys, defaults and ignored keys."""

from __future__ import annotations

import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlexp.config.keys.env_ids import current_env, has_discrete_actions, has_images
from rlexp.config.keys.key_table import KeyName, key_path, key_table
from rlexp.config.rllib.names import Absent, choices_of, computed_keys, leave_out
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, dotted, written

_TABLE = Path(__file__).with_name("releases.toml")
_SAME_AS = "= "
_NULL = "null"

Release = tuple[int, ...]
"""``(0, 8, 5)``."""
FIRST: Release = (0,)
LAST: Release = (9999,)


def leave_out_ignored(translation: Translation, age: Age, decided: Container[KeyName] = ()) -> None:
    """Drop the keys that RLlib of an age ignored, except ``decided`` ones and keys of the command line."""
    for ignored in ignored_keys(translation.run):
        node = translation.experiment.find(ignored.absent.path)
        if node is None or not node.place.line or ignored.absent.path in decided or not age.is_within(ignored.age):
            continue
        words = [str(choice.plain()).rpartition(".")[2] for choice in choices_of(node)]
        if not ignored.values or set(words) <= set(ignored.values):
            leave_out(translation, ignored.absent)


def report_meanings(translation: Translation, age: Age) -> None:
    """Add a notice for each key of a file that meant something else in RLlib of an age."""
    for entry in _table()["meaning"]:
        if translation.run in entry["agents"] and age.is_within(_age_of(entry)):
            for key in entry["keys"]:
                node = translation.find(key)
                if node is not None and node.place.line:
                    translation.notice(node, f"{key} {entry['message']}")


def share_out_fragments(translation: Translation, age: Age) -> None:
    """Divide the length of a fragment among the envs of a worker, which shared it up to RLlib 0.5.3, if it is whole."""
    length, number = (translation.find(f"config.{key}") for key in ("sample_batch_size", "num_envs_per_worker"))
    if age.last > (0, 5, 3) or number is None or not number.place.line:
        return
    default = key_table(translation.run)["config", "sample_batch_size"].default
    envs, whole = number.plain(), default if length is None else length.plain()
    if not all(isinstance(value, int) for value in (envs, whole)) or envs < 2 or whole % envs:
        return
    translation.put("config.sample_batch_size", whole // envs, number if length is None else length)
    text = f"{whole} for the {envs} envs of a worker, as RLlib up to 0.5.3 counted, is {whole // envs} for each"
    translation.notice(number if length is None else length, f"config.sample_batch_size: {text} now")


def use_defaults(translation: Translation, age: Age) -> frozenset[KeyName]:
    """Give missing keys the default of an age if it differs from rlexp's; return them."""
    table, used = key_table(translation.run), set()
    for default in changed_defaults():
        if not is_open(translation, default):
            continue
        index = default.index_at(age)
        if index is None:
            continue
        is_newest = index == len(default.values) - 1
        value = _value_of(translation, default.same_as) if is_newest and default.same_as else default.values[index][1]
        if value == table[default.path].default or isinstance(value, dict):  # not a second axis for a searched key
            continue
        if default.except_images and shows_images(translation):
            key, ours = dotted(default.path), written(table[default.path].default)
            message = f"the default of RLlib {age}, {written(value)}, does not suit images. It is {ours} here"
            translation.notice(translation.experiment, f"{key}: {message}")
            continue
        translation.put(".".join(default.path), value, translation.experiment)
        used.add(default.path)
    return frozenset(used)


def shows_images(translation: Translation) -> bool:
    """Return whether an env, or one in its grid, is known to have images as observations."""
    return any(has_images(name, settings) for name, settings in current_envs(translation))


def has_only_discrete_actions(translation: Translation) -> bool:
    """Return whether all envs are known to have discrete actions."""
    envs = current_envs(translation)
    return bool(envs) and all(has_discrete_actions(name, settings) for name, settings in envs)


def current_envs(translation: Translation) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the current id of an experiment's env, or of the envs in its grid, each with its whole ``env_config``."""
    given = translation.value("config.env_config")
    settings = given if isinstance(given, dict) else {}
    current = (current_env(name) or (name, {}) for name in envs_of(translation.experiment))
    return [(name, {**implied, **settings}) for name, implied in current]


def envs_of(experiment: Node) -> list[str]:
    """Return the env of an experiment of any age, or the envs in its grid, in the file's spelling."""
    env = experiment.find(("env",)) or experiment.find(("config", "env"))
    return [choice.value for choice in choices_of(env) if isinstance(choice.value, str)] if env is not None else []


def is_open(translation: Translation, default: ChangedDefault) -> bool:
    """Return whether the agent has a key that is not given, also not by one of which it is computed, with an effect."""
    if translation.run not in default.agents:
        return False
    sources = (old for old, new in computed_keys().items() if new == (default.path,))
    if any(translation.experiment.find(path) is not None for path in (default.path, *sources)):
        return False
    beside = default.beside
    if beside is not None and _value_of(translation, beside) == key_table(translation.run)[beside].default:
        return False
    return not (default.continuous_only and has_only_discrete_actions(translation))


def _value_of(translation: Translation, path: KeyName) -> Any:
    """Return the value of a key, or its default; for a searched key, its grid."""
    node = translation.experiment.find(path)
    return key_table(translation.run)[path].default if node is None else node.plain()


@dataclass(frozen=True)
class Age:
    """The releases of RLlib for which a file may have been written, both ends included."""

    first: Release = FIRST
    last: Release = LAST

    def within(self, other: Age) -> Age:
        """Return the releases of both ages; see ``is_empty``."""
        return Age(max(self.first, other.first), min(self.last, other.last))

    @property
    def is_empty(self) -> bool:
        """Whether it has no release, as the spellings of a file contradict each other."""
        return self.first > self.last

    def is_within(self, other: Age) -> bool:
        """Return whether every release of this age belongs to the other."""
        return other.first <= self.first and self.last <= other.last

    def __str__(self) -> str:
        first, last = (".".join(map(str, end)) for end in (self.first, self.last))
        if self.last == LAST:
            return f"{first} or later"
        if self.first == FIRST:
            return f"{last} or earlier"
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True)
class ChangedDefault:
    """A default of RLlib that differs between releases."""

    path: KeyName
    agents: tuple[str, ...]
    values: tuple[tuple[Release, Any], ...]
    """The first release of each value, and the value, in the order of the releases."""
    same_as: KeyName | None
    """The key whose value is the newest default."""
    beside: KeyName | None
    """The key without which this one has no effect."""
    except_images: bool
    """Whether rlexp's default is used in envs with images."""
    continuous_only: bool
    """Whether it has an effect only for continuous actions."""
    is_reported: bool
    """Whether to report that the possible releases of a file differ in it, as it changes what is learned."""

    def values_in(self, age: Age) -> list[tuple[Release, Any]]:
        """Return the defaults in the releases of an age, each with its first release."""
        ends = [release for release, _ in self.values[1:]]
        pairs = zip(self.values, [*ends, (*LAST, 0)], strict=True)
        return [(since, value) for (since, value), end in pairs if since <= age.last and age.first < end]

    def index_at(self, age: Age) -> int | None:
        """Return which of ``values`` is the default in every release of an age; None if they differ."""
        began = [place for place, (release, _) in enumerate(self.values) if release <= age.first]
        changed = any(age.first < release <= age.last for release, _ in self.values)
        return None if changed or not began else began[-1]


@dataclass(frozen=True)
class Ignored:
    """A key that RLlib of an age accepted and ignored."""

    absent: Absent
    age: Age
    values: tuple[Any, ...]
    """Only these are ignored; empty: every value is."""


@dataclass(frozen=True)
class Kept:
    """Keys with rlexp's default for files of any age."""

    keys: tuple[str, ...]
    reason: str


@cache
def spellings(run: str) -> Mapping[KeyName, Age]:
    """Return the keys that belong to an age, for an agent."""
    own = _table()["spellings_of_an_agent"].get(run, {})
    return MappingProxyType({key_path(key): _age(*ends) for key, ends in (_table()["spellings"] | own).items()})


@cache
def dated_values() -> Mapping[tuple[KeyName, str], Age]:
    """Return the values that belong to an age, with their keys."""
    pairs = ((entry.partition(": "), ends) for entry, ends in _table()["values"].items())
    return MappingProxyType({(key_path(key), value): _age(*ends) for (key, _, value), ends in pairs})


@cache
def dated_envs() -> Mapping[str, Age]:
    """Return patterns of env ids, and the releases that can have them."""
    return MappingProxyType({pattern: _age(first, "") for pattern, first in _table()["envs"].items()})


@cache
def unused_if_stale() -> frozenset[KeyName]:
    """Return the keys that are left out of a file if its other keys are of other releases."""
    return frozenset(map(key_path, _table()["unused_if_stale"]["keys"]))


@cache
def changed_defaults() -> tuple[ChangedDefault, ...]:
    """Return the defaults that follow the age of a file."""
    return tuple(_changed_default(entry) for entry in _table()["default"])


@cache
def kept_defaults() -> tuple[Kept, ...]:
    """Return the defaults that changed too but do not follow the age of a file, and why."""
    return tuple(Kept(tuple(entry["keys"]), entry["reason"]) for entry in _table()["kept"])


@cache
def ignored_keys(run: str) -> tuple[Ignored, ...]:
    """Return the keys of an agent that RLlib of some age ignored."""
    return tuple(
        Ignored(Absent(key_path(key), entry["reason"], (), False), _age_of(entry), tuple(entry.get("values", ())))
        for entry in _table()["ignored"]
        if run in entry["agents"]
        for key in entry["keys"]
    )


def _changed_default(entry: Mapping[str, Any]) -> ChangedDefault:
    newest = list(entry["releases"].values())[-1]
    same_as = newest.removeprefix(_SAME_AS) if isinstance(newest, str) and newest.startswith(_SAME_AS) else None
    return ChangedDefault(
        path=key_path(entry["key"]),
        agents=tuple(entry["agents"]),
        values=tuple((_release(text), _value(value)) for text, value in entry["releases"].items()),
        same_as=key_path(same_as) if same_as else None,
        beside=key_path(entry["beside"]) if "beside" in entry else None,
        except_images=entry.get("except_images", False),
        continuous_only=entry.get("continuous_only", False),
        is_reported=entry.get("is_reported", False),
    )


def _value(value: Any) -> Any:
    """Return a default as keys have it."""
    return tuple(value) if isinstance(value, list) else None if value == _NULL else value


def _age_of(entry: Mapping[str, Any]) -> Age:
    return _age(entry.get("first", ""), entry.get("last", ""))


def _age(first: str, last: str) -> Age:
    return Age(_release(first) if first else FIRST, _release(last) if last else LAST)


def _release(text: str) -> Release:
    return tuple(map(int, text.split(".")))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))
