"""The table of RLlib's other spellings, ``table.toml``: renamed keys, keys without effect, missing features."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlexp.config.keys.agents import AGENTS, built_in_base
from rlexp.config.keys.key_table import KeyName, key_path, key_table

_TABLE = Path(__file__).with_name("table.toml")


@dataclass(frozen=True)
class Absent:
    """A key of older or newer RLlib that rlexp does not have."""

    path: KeyName
    reason: str
    """Why it has no effect; or, where ``is_feature``, the name of the feature that it asks for."""
    welcome: tuple[Any, ...]
    """Values that are accepted without a notice, beside those that ask for nothing (null, false, 0, empty)."""
    is_feature: bool
    """Whether it asks for something that rlexp cannot do, so that it must not be ignored."""
    hint: str | None = None
    has_names: bool = False
    """Whether its own keys are names of things, each of which asks for the feature whatever its value is."""


@cache
def renamed_keys(run: str) -> Mapping[KeyName, KeyName]:
    """Return old paths and the current ones of the agent; a name whose current one it lacks is left out."""
    table = key_table(run)
    pairs = ((key_path(old), key_path(new)) for old, new in _table()["renamed"].items())
    return MappingProxyType({old: new for old, new in pairs if new in table})


@cache
def absent_keys(run: str) -> tuple[Absent, ...]:
    """Return the keys that RLlib or Tune had and the agent does not have, those in a mapping before the mapping."""
    found, agent = [], built_in_base(run)
    for group in (*_table()["no_effect"], *_table()["unsupported"]):
        if "agents" not in group or agent in group["agents"]:
            is_feature = "feature" in group
            reason = group["feature"] if is_feature else group["reason"]
            welcome = tuple(group.get("off" if is_feature else "silent", ()))
            hint, has_names = group.get("hint"), group.get("names", False)
            found += [Absent(key_path(key), reason, welcome, is_feature, hint, has_names) for key in group["keys"]]
    found.sort(key=lambda absent: -len(absent.path))
    return tuple(absent for absent in found if absent.path not in renamed_keys(run))


@cache
def computed_keys() -> Mapping[KeyName, tuple[KeyName, ...]]:
    """Return old paths whose values are computed, and the current keys that they set."""
    return MappingProxyType({key_path(old): tuple(map(key_path, new)) for old, new in _table()["computed"].items()})


@cache
def old_groups() -> frozenset[KeyName]:
    """Return the mappings that only other spellings have: ``config.exploration_config``."""
    paths = [*map(key_path, _table()["renamed"]), *computed_keys()]
    paths += [
        key_path(key) for kind in ("no_effect", "unsupported") for group in _table()[kind] for key in group["keys"]
    ]
    current = {path for run in AGENTS for path in key_table(run)}
    return frozenset(path[:-1] for path in paths if len(path) > 1) - current


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))
