"""JSON Schema (draft 7) of experiment files, for editors: keys, their types and ranges, other spellings included.

Parts that several agents share are written once; otherwise it would be three times as large.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from rlexp.config.domains import GRID, PYTHON_KEYS, SAMPLERS
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.experiment import NUM_SEEDS, TRACKERS
from rlexp.config.keys.key_table import KeyName, flat_keys_of_optimizer, key_table, nested_keys_of_config
from rlexp.config.keys.metrics import KNOWN_METRICS, OWN_METRIC_PATTERN, may_be_negative
from rlexp.config.rllib.names import absent_keys, computed_keys, renamed_keys

Schema = dict[str, Any]

_SHORTEST: Final = 80
"""Least characters of a schema, as JSON, with a definition of its own: a reference to one has 40."""


def with_shared_definitions(agents: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return definitions of ``agents`` by name, and of each key that several of them share, by its path.

    If every reference to a path is replaced by its definition, ``{name: definition}`` is ``agents`` again.
    """
    shared: dict[str, Schema] = {}
    own = _without_shared("", agents, shared)
    return {**own, **shared}


def _without_shared(path: str, groups: Mapping[str, Schema], shared: dict[str, Schema]) -> dict[str, Schema]:
    """Return ``groups`` of keys with references to shared parts, which are added to ``shared``."""
    properties: dict[str, Schema] = {run: dict(group["properties"]) for run, group in groups.items()}
    for name in dict.fromkeys(name for keys in properties.values() for name in keys):
        key_path = f"{path}.{name}" if path else name
        having = {run: keys[name] for run, keys in properties.items() if name in keys}
        for run, value in _shared_values(key_path, having, shared).items():
            properties[run][name] = value
    return {run: group | {"properties": properties[run]} for run, group in groups.items()}


def _shared_values(path: str, values: Mapping[str, Schema], shared: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of one key, by agent, with references for equal ones."""
    result: dict[str, Schema] = {}
    for runs in _alike(values):
        value = values[runs[0]]
        if len(runs) > 1 and len(json.dumps(value)) >= _SHORTEST:
            name = path if path not in shared else f"{path} ({runs[0]})"
            shared[name] = value
            value = {"$ref": f"#/definitions/{name}"}
        result |= dict.fromkeys(runs, value)
    # Some keys of a group that differs between agents may be equal.
    groups = {run: group for run, value in result.items() if (group := _group_of(value)) is not None}
    changed = _without_shared(path, groups, shared)
    return result | {run: _with_group(result[run], group) for run, group in changed.items()}


def _alike(values: Mapping[str, Schema]) -> Iterable[list[str]]:
    """Return groups of agents with equal schemas."""
    runs: dict[str, list[str]] = {}
    for run, value in values.items():
        runs.setdefault(json.dumps(value), []).append(run)
    return runs.values()


def _group_of(value: Schema) -> Schema | None:
    """Return the mapping with own keys that a value can be; None if it is not a group."""
    first = value["anyOf"][0] if "anyOf" in value else value
    return first if "properties" in first else None


def _with_group(value: Schema, group: Schema) -> Schema:
    return value | {"anyOf": [group, *value["anyOf"][1:]]} if "anyOf" in value else group


_LEFT_OUT = ("title", "description", "default")
"""Parts of pydantic's schema that are left out: the table of keys has the descriptions, also for changed defaults."""
_BOUNDS = {"ge": "minimum", "le": "maximum"}
"""Pydantic's words for the bounds of a number that a function checks first, and JSON Schema's."""


def experiment_schema() -> Schema:
    """Return the schema of a file: a mapping from names to experiments, each with its agent's keys."""
    any_case = {run: "".join(f"[{letter.upper()}{letter.lower()}]" for letter in run) for run in AGENTS}
    agents = [
        {"if": {"properties": {"run": {"pattern": f"^{name}$"}}}, "then": {"$ref": f"#/definitions/{run}"}}
        for run, name in any_case.items()
    ]
    experiment = {
        "type": "object",
        "required": ["run", "env"],
        "properties": {"run": {"type": "string"}},
        "allOf": agents,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "rlexp experiments",
        "type": "object",
        "minProperties": 1,
        "additionalProperties": experiment,
        "definitions": with_shared_definitions({run: _Agent(run).schema() for run in AGENTS})
        | {"searched": _searched()},
    }


def _searched() -> Schema:
    """Return the schema of what a file may have in place of any value to search, draw or compute it."""
    values: Schema = {"type": "array", "minItems": 1}
    return {"anyOf": [_only(name, values) for name in (GRID, *SAMPLERS)] + [_only(name, {}) for name in PYTHON_KEYS]}


def _only(key: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [key], "additionalProperties": False, "properties": {key: schema}}


def _or_searched(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"$ref": "#/definitions/searched"}]} if schema else schema


def _bare(schema: Schema) -> Schema:
    """Return pydantic's schema of a value without annotations, its bounds in the words of JSON Schema."""
    return {
        _BOUNDS.get(word, word): [_bare(choice) for choice in value] if word == "anyOf" else value
        for word, value in schema.items()
        if word not in _LEFT_OUT
    }


def _build(model: type[BaseModel]) -> None:
    """Build a model and the models of its defaults; pydantic before 2.14 writes no default otherwise."""
    model.model_rebuild()
    for field in model.model_fields.values():
        if isinstance(field.default, BaseModel):
            _build(type(field.default))


class _Agent:
    """Pydantic's schema of an agent's experiments, with what pydantic does not know: old spellings, searched values."""

    def __init__(self, run: str) -> None:
        self._run = run
        _build(AGENTS[run])
        self._model = AGENTS[run].model_json_schema()

    def schema(self) -> Schema:
        """Return the schema of one experiment."""
        group = self._group(self._model, ())
        group["type"] = "object"
        group["properties"] |= {"run": {"type": "string", "description": "The agent."}, "stop": self._stop()}
        seeds = "Number of trials of each variant, or of each configuration of a sweep, with different seeds."
        group["properties"][NUM_SEEDS] = group["properties"]["num_samples"] | {"description": seeds}
        group["properties"]["track"] = self._track(group["properties"]["track"])
        return group

    def _group(self, group: Schema, path: KeyName) -> Schema:
        """Return the schema of a mapping: its own keys, keys that may also be here, and RLlib's."""
        table = key_table(self._run)
        own = {
            name: {"description": table[*path, name].meaning, **self._value(schema, (*path, name))}
            for name, schema in group["properties"].items()
            if (*path, name) in table
        }
        properties = own | self._elsewhere(path) | self._older(path)
        return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}

    def _value(self, schema: Schema, path: KeyName) -> Schema:
        """Return the schema of a value, and of values inside it, that may also be searched."""
        if "$ref" in schema:
            group = schema["$ref"].rpartition("/")[2]
            return _or_searched(self._group(self._model["$defs"][group], path))
        value = _bare(schema)
        inside = {word: value[word] for word in ("items", "additionalProperties") if isinstance(value.get(word), dict)}
        value |= {word: _or_searched(_bare(each)) for word, each in inside.items()}
        return _or_searched(value | ({"type": ["object", "null"]} if value.get("type") == "object" else {}))

    def _stop(self) -> Schema:
        """Return the schema of ``stop``: metrics, also in RLlib's spelling; only rewards can be 0 or negative."""
        number: Schema = {"type": "number"}
        count = {**number, "exclusiveMinimum": 0}
        metrics = {name: _or_searched(number if may_be_negative(name) else count) for name in KNOWN_METRICS}
        own = {f"^{OWN_METRIC_PATTERN}$": _or_searched(number)}
        older: Schema = {"sampler_results/": {}, "env_runners": {}, "^(num|agent)_": {}, "^eval/": {}}
        mapping = {"type": ["object", "null"], "additionalProperties": False, "properties": metrics}
        meaning = key_table(self._run)["stop",].meaning
        return {"description": meaning, **_or_searched(mapping | {"patternProperties": own | older})}

    def _track(self, mapping: Schema) -> Schema:
        """Return the schema of ``track``: a tracker, a list of them, or the full ``mapping``."""
        name: Schema = {"enum": list(TRACKERS)}
        meaning = mapping.pop("description")
        return {"description": meaning, "anyOf": [name, {"type": "array", "items": name}, mapping]}

    def _elsewhere(self, path: KeyName) -> dict[str, Schema]:
        """Return the keys of other mappings that may be in this one."""
        if path == ("config",):
            keys, place = flat_keys_of_optimizer(self._run), "optimizer"
        elif path == ("config", "optimizer"):
            keys, place = nested_keys_of_config(self._run), "config"
        else:
            return {}
        return {name: {"description": f"The same as {name} under {place}."} for name in sorted(keys)}

    def _older(self, path: KeyName) -> dict[str, Schema]:
        """Return the first names, below ``path``, of the keys in RLlib's spelling."""
        texts = {old: f"Now {'.'.join(new)}." for old, new in renamed_keys(self._run).items()}
        texts |= {
            old: f"Now {', '.join('.'.join(key) for key in new)}." if new else "Of several policies or learners."
            for old, new in computed_keys().items()
        }
        texts |= {
            absent.path: f"{'Not supported' if absent.is_feature else 'No effect'}: {absent.reason}."
            for absent in absent_keys(self._run)
        }
        depth = len(path)
        below = {old: text for old, text in texts.items() if old[:depth] == path and len(old) > depth}
        return {
            old[depth]: {"description": text if len(old) == depth + 1 else "A mapping of RLlib."}
            for old, text in below.items()
            if old[: depth + 1] not in key_table(self._run)
        }
