"""Meaning, values, defaults and other spellings of keys, for ``explain`` and docs/keys.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from rlexp.config.keys.experiment import AGENTS
from rlexp.config.keys.key_table import KeyName, flat_keys_of_optimizer, key_table
from rlexp.config.rllib_compat.table import Absent, absent_keys, computed_keys, old_groups, renamed_keys

_LIKENESS = 0.6


@dataclass(frozen=True)
class KeyReference:
    """One key, whatever the agent."""

    path: KeyName
    expects: str
    """Of the first agent that has the key."""
    defaults: Mapping[str, Any]
    """By agent; agents that lack the key are left out."""
    required: bool
    meaning: str
    spellings: tuple[str, ...]
    """Its other names in files of RLlib."""
    is_group: bool

    @property
    def dotted(self) -> str:
        """The key as an override names it."""
        return ".".join(self.path)


@dataclass(frozen=True)
class OldKey:
    """A key of RLlib that rlexp does not have."""

    dotted: str
    says: str
    """What happens to it, as the end of a sentence."""


@cache
def key_references() -> tuple[KeyReference, ...]:
    """Return every key of every agent, in the models' order, those beside ``config`` first."""
    paths = dict.fromkeys(path for run in AGENTS for path in key_table(run))
    return tuple(_reference(path) for path in sorted(paths, key=lambda path: path[0] == "config"))


def _reference(path: KeyName) -> KeyReference:
    keys = {run: key_table(run)[path] for run in AGENTS if path in key_table(run)}
    first = next(iter(keys.values()))
    defaults = {run: key.default for run, key in keys.items()}
    spellings = tuple(dict.fromkeys(_spellings(path)))
    expects = f"one of {', '.join(AGENTS)}" if path == ("run",) else first.expects
    return KeyReference(path, expects, defaults, first.required, first.meaning, spellings, first.is_group)


def _spellings(path: KeyName) -> Iterator[str]:
    for run in AGENTS:
        if path[:2] == ("config", "optimizer") and path[-1] in flat_keys_of_optimizer(run):
            yield f"config.{path[-1]}"
        yield from (".".join(old) for old, new in renamed_keys(run).items() if new == path)
    yield from (".".join(old) for old, new in computed_keys().items() if path in new)


def find_keys(name: str) -> tuple[KeyReference, ...]:
    """Return the keys with a name: a path, the end of one, or one of their other spellings."""
    wanted = tuple(name.split("."))
    exact = [key for key in key_references() if key.path == wanted or key.path[1:] == wanted]
    ending = [key for key in key_references() if key.path[-len(wanted) :] == wanted]
    return tuple(exact or ending or _spelled(wanted, from_the_start=True) or _spelled(wanted, from_the_start=False))


def _spelled(wanted: KeyName, from_the_start: bool) -> list[KeyReference]:
    """Return the keys with a spelling that is, or ends in, what is wanted; ``config`` may be left out."""
    found = []
    for key in key_references():
        spellings = [tuple(spelling.split(".")) for spelling in key.spellings]
        if any(wanted in (path, path[1:]) if from_the_start else path[-len(wanted) :] == wanted for path in spellings):
            found.append(key)
    return found


def find_old_key(name: str) -> OldKey | None:
    """Return what happens to a key that rlexp does not have."""
    wanted = tuple(name.split("."))
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        if absent.path[-len(wanted) :] == wanted:
            return OldKey(".".join(absent.path), _says(absent))
    group = next((group for group in sorted(old_groups()) if group[-len(wanted) :] == wanted), None)
    return OldKey(".".join(group), "is a mapping of RLlib; rlexp explain has its keys") if group else None


def _says(absent: Absent) -> str:
    if not absent.is_feature:
        return f"has no effect here: {absent.reason}"
    hint = f"; {absent.hint}" if absent.hint else ""
    return f"is not supported by rlexp: {absent.reason}{hint}"


def nearest_key(name: str) -> str | None:
    """Return the key that is spelled most like an unknown name."""
    names = [key.path[-1] for key in key_references()]
    return next(iter(get_close_matches(name.rpartition(".")[2][:100], names, n=1, cutoff=_LIKENESS)), None)
