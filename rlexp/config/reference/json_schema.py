"""JSON Schema (draft 7) of experiment files, for editors: keys, their types and ranges, other spellings included."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from rlexp.config.keys.experiment import AGENTS
from rlexp.config.keys.fields import Expects, KeyGroup
from rlexp.config.keys.key_table import KeyName, flat_keys_of_optimizer, key_table, nested_keys_of_config
from rlexp.config.keys.metric_names import KNOWN_METRICS, is_reward
from rlexp.config.rllib_compat.table import absent_keys, computed_keys, renamed_keys
from rlexp.config.space.python_samplers import KEYS
from rlexp.config.space.samplers import GRID, SAMPLERS

Schema = dict[str, Any]

_TYPES: Mapping[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
}
_ANYTHING: Schema = {}


def experiment_schema() -> Schema:
    """Return the schema of a file: a mapping from names to experiments, each by its agent's keys."""
    agents = [
        {"if": {"properties": {"run": {"pattern": _any_case(run)}}}, "then": {"$ref": f"#/definitions/{run}"}}
        for run in AGENTS
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
        "definitions": {run: _agent_schema(run) for run in AGENTS},
    }


def _any_case(name: str) -> str:
    return "^" + "".join(f"[{letter.upper()}{letter.lower()}]" for letter in name) + "$"


def _agent_schema(run: str) -> Schema:
    schema = _group(AGENTS[run], run, ())
    schema["properties"]["run"] = {"type": "string", "description": "The agent."}
    return schema


def _group(group: type[KeyGroup], run: str, path: KeyName) -> Schema:
    """Return the schema of a mapping: its own keys, those that may be here as well, and RLlib's."""
    own = {
        field.alias or name: _searched(_field(field, run, (*path, field.alias or name)))
        for name, field in group.model_fields.items()
        if (*path, field.alias or name) in key_table(run)
    }
    return {
        "type": ["object", "null"] if path else "object",
        "additionalProperties": False,
        "properties": own | _elsewhere(run, path) | _older(run, path),
    }


def _elsewhere(run: str, path: KeyName) -> dict[str, Schema]:
    """Return the keys of other mappings that may be in this one."""
    if path == ("config",):
        return {
            name: _described(f"The same as {name} under optimizer.") for name in sorted(flat_keys_of_optimizer(run))
        }
    if path == ("config", "optimizer"):
        return {name: _described(f"The same as {name} under config.") for name in sorted(nested_keys_of_config(run))}
    return {}


def _older(run: str, path: KeyName) -> dict[str, Schema]:
    """Return the first names, below ``path``, of the keys in RLlib's spelling."""
    said = {old: f"Now {'.'.join(new)}." for old, new in renamed_keys(run).items()}
    said |= {old: f"Now {', '.join('.'.join(key) for key in new)}." for old, new in computed_keys().items()}
    said |= {
        absent.path: f"{'Not supported' if absent.is_feature else 'No effect'}: {absent.reason}."
        for absent in absent_keys(run)
    }
    depth = len(path)
    below = {old: text for old, text in said.items() if old[:depth] == path and len(old) > depth}
    return {
        old[depth]: _described(text if len(old) == depth + 1 else "A mapping of RLlib.")
        for old, text in below.items()
        if old[: depth + 1] not in key_table(run)
    }


def _described(text: str) -> Schema:
    return {"description": text}


def _field(field: FieldInfo, run: str, path: KeyName) -> Schema:
    schema = _type(field.annotation, field.metadata, run, path)
    return {**schema, "description": key_table(run)[path].meaning}


def _type(annotation: Any, metadata: Iterable[Any], run: str, path: KeyName) -> Schema:
    metadata = tuple(metadata)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if any(isinstance(item, Expects) for item in metadata):
        return _ANYTHING
    if origin is Annotated:
        return _type(arguments[0], (*arguments[1:], *metadata), run, path)
    if origin in (Union, UnionType):
        return {"anyOf": [_type(choice, metadata, run, path) for choice in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple:
        return {"type": ["array", "null"], "items": _searched(_type(arguments[0], (), run, path))}
    if origin is dict:
        return _mapping(path)
    if isinstance(annotation, type) and issubclass(annotation, KeyGroup):
        return _group(annotation, run, path)
    return {**_TYPES[annotation], **_range(metadata)}


def _mapping(path: KeyName) -> Schema:
    if path != ("stop",):
        return {"type": ["object", "null"]}
    number = _searched({"type": "number"})
    older = {"sampler_results/": _ANYTHING, "env_runners": _ANYTHING, "^(num|agent)_": _ANYTHING, "^eval/": _ANYTHING}
    count = _searched({"type": "number", "exclusiveMinimum": 0})
    metrics = {metric: number if is_reward(metric) else count for metric in KNOWN_METRICS}
    return {
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": metrics,
        "patternProperties": older,
    }


def _searched(schema: Schema) -> Schema:
    """Return the schema of a value that may be searched, drawn or computed as well."""
    if not set(schema) - {"description"}:
        return schema
    description = {key: schema[key] for key in ("description",) if key in schema}
    bare = {key: value for key, value in schema.items() if key != "description"}
    return {
        **description,
        "anyOf": [
            bare,
            *(_only(name, {"type": "array", "minItems": 1}) for name in (GRID, *SAMPLERS)),
            *(_only(name, _ANYTHING) for name in KEYS),
        ],
    }


def _only(key: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [key], "additionalProperties": False, "properties": {key: schema}}


def _range(metadata: Iterable[Any]) -> Schema:
    bounds = [bound for item in metadata for bound in (item.metadata if isinstance(item, FieldInfo) else [item])]
    found: Schema = {}
    for bound in bounds:
        if isinstance(bound, Ge):
            found["minimum"] = bound.ge
        elif isinstance(bound, Gt):
            found["exclusiveMinimum"] = bound.gt
        elif isinstance(bound, Le):
            found["maximum"] = bound.le
    return found
