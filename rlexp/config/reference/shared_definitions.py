"""Writes once what several agents have alike: the definitions of the JSON Schema would be three times as large."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Schema = dict[str, Any]

_SHORTEST: Final = 80
"""Characters of a schema, as JSON, that is worth a definition of its own: a reference to one has 40."""


def with_shared_definitions(agents: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return definitions of ``agents`` by name, and of each key that is the same in several of them, by its path.

    ``{name: definition}`` with every reference to a path replaced by its definition is ``agents`` again.
    """
    shared: dict[str, Schema] = {}
    own = _without_shared("", agents, shared)
    return {**own, **shared}


def _without_shared(path: str, groups: Mapping[str, Schema], shared: dict[str, Schema]) -> dict[str, Schema]:
    """Return ``groups`` of keys with references to what several have alike; add that to ``shared``."""
    properties: dict[str, Schema] = {run: dict(group["properties"]) for run, group in groups.items()}
    for name in dict.fromkeys(name for keys in properties.values() for name in keys):
        key_path = f"{path}.{name}" if path else name
        having = {run: keys[name] for run, keys in properties.items() if name in keys}
        for run, value in _shared_values(key_path, having, shared).items():
            properties[run][name] = value
    return {run: group | {"properties": properties[run]} for run, group in groups.items()}


def _shared_values(path: str, values: Mapping[str, Schema], shared: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of one key, by agent: references where they are the same."""
    result: dict[str, Schema] = {}
    for runs in _alike(values):
        value = values[runs[0]]
        if len(runs) > 1 and len(json.dumps(value)) >= _SHORTEST:
            name = path if path not in shared else f"{path} ({runs[0]})"
            shared[name] = value
            value = {"$ref": f"#/definitions/{name}"}
        result |= dict.fromkeys(runs, value)
    return result | _deeper(path, {run: value for run, value in result.items() if _group_of(value)}, shared)


def _deeper(path: str, values: Mapping[str, Schema], shared: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of a key that is a group and not the same in these agents: some of its keys may be."""
    groups = {run: group for run, value in values.items() if (group := _group_of(value)) is not None}
    changed = _without_shared(path, groups, shared)
    return {run: _with_group(values[run], group) for run, group in changed.items()}


def _alike(values: Mapping[str, Schema]) -> Iterable[list[str]]:
    """Return the agents that have the same schema together."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(json.dumps(value), []).append(run)
    return runs.values()


def _group_of(value: Schema) -> Schema | None:
    """Return the mapping with keys of its own that a value can be; None: it is no group."""
    first = value["anyOf"][0] if "anyOf" in value else value
    return first if "properties" in first else None


def _with_group(value: Schema, group: Schema) -> Schema:
    return value | {"anyOf": [group, *value["anyOf"][1:]]} if "anyOf" in value else group
