"""One corner to an Experiment, or to what is wrong with it: pydantic's complaints with their place, in our words."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlexp.config import hints
from rlexp.config.dialect_table import old_groups
from rlexp.config.experiment import AGENTS, Experiment
from rlexp.config.fields import CONFLICT, LARGEST_COUNT, RULE
from rlexp.config.key_table import KeyName, key_table
from rlexp.config.nodes import Finding, KeyPath, Node, dotted, shown
from rlexp.config.yaml_scalars import FLOAT, INTEGER

_KEY_MARK = "[key]"
"""What pydantic appends to the path when the key of a mapping is wrong, not its value."""

_BOOLEAN_WORDS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def validated(name: str, experiment: Node, run: str) -> tuple[Experiment | None, tuple[Finding, ...]]:
    """Return a corner, arranged and without grids, as an Experiment; or None and everything wrong with it."""
    data = {**experiment.plain(), "name": name, "run": run}
    try:
        return AGENTS[run].model_validate(data), ()
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, tuple(finding for detail in details for finding in _findings(detail, experiment, run))


def _findings(detail: ErrorDetails, experiment: Node, run: str) -> Iterator[Finding]:
    path = detail["loc"]
    if detail["type"] == CONFLICT:
        yield from _conflicts(detail, experiment)
    elif detail["type"] == "missing":
        yield Finding(experiment.key_place, f"{dotted(path)} is missing")
    elif detail["type"] == "extra_forbidden":
        yield from _unknown_key(path, experiment, run)
    elif path[-1] == _KEY_MARK:
        yield _unknown_metric(path[:-1], experiment)
    else:
        yield _wrong_value(detail, experiment, run)


def _conflicts(detail: ErrorDetails, experiment: Node) -> Iterator[Finding]:
    group = detail["loc"]
    for conflict in detail["ctx"]["conflicts"]:
        nodes = (experiment.find((*group, *key.split("."))) for key in conflict.keys)
        place = next((node.key_place for node in nodes if node), experiment.key_place)
        yield Finding(place, f"{dotted(group)}.{conflict.message}".removeprefix("."), conflict.hint)


def unknown_keys(experiment: Node, run: str) -> tuple[tuple[KeyName, Finding], ...]:
    """Return the keys of an arranged corner that the agent does not have."""
    data = {**experiment.plain(), "name": "any", "run": run}
    try:
        AGENTS[run].model_validate(data)
    except ValidationError as error:
        details = [detail for detail in error.errors(include_url=False) if detail["type"] == "extra_forbidden"]
        paths = [tuple(str(key) for key in detail["loc"]) for detail in details]
        return tuple((path, finding) for path in paths for finding in _unknown_key(path, experiment, run))
    return ()


def _unknown_key(path: KeyPath, experiment: Node, run: str) -> Iterator[Finding]:
    """Yield a finding for a key that the agent does not have; for a group of other ages, one for each of its keys."""
    node = _node(path, experiment)
    names = tuple(str(key) for key in path)
    if names in old_groups() and node.entries():
        for name in node.entries():
            yield from _unknown_key((*path, name), experiment, run)
        return
    owner = run if path[0] == "config" else "an experiment"
    yield Finding(node.key_place, f"{dotted(path)} is not a key of {owner}", hints.for_unknown_key(names, run))


def _unknown_metric(path: KeyPath, experiment: Node) -> Finding:
    hint = hints.for_unknown_metric(str(path[-1]))
    return Finding(_node(path, experiment).key_place, f"{dotted(path)} is not a metric that results report", hint)


def _wrong_value(detail: ErrorDetails, experiment: Node, run: str) -> Finding:
    path, value, demand = detail["loc"], detail["input"], _demand(detail, run)
    hint = _hint_for_text(value, demand) if isinstance(value, str) else None
    node = experiment.find(path)
    place = node.place if node else experiment.key_place
    return Finding(place, f"{dotted(path)} {demand}, got {shown(value)}", hint)


def _demand(detail: ErrorDetails, run: str) -> str:
    """Return what the key demands of its value: ``must be a number > 0``."""
    if detail["type"] == RULE:
        return detail["msg"]
    if detail["type"] == "finite_number":
        return "must be finite"
    if detail["type"] == "less_than_equal" and detail["ctx"]["le"] == LARGEST_COUNT:
        return f"must be at most {LARGEST_COUNT}"
    path, table = detail["loc"], key_table(run)
    names = tuple(str(key) for key in path)
    return f"must be {table[names].expects if names in table else table[names[:-1]].items_expect}"


def _hint_for_text(text: str, demand: str) -> str | None:
    """Return how to write what a text was probably meant to be."""
    if "true or false" in demand and text.lower() in _BOOLEAN_WORDS:
        return f"write {_BOOLEAN_WORDS[text.lower()]}: YAML 1.2 reads {text} as a text"
    bare = text.replace("_", "")
    if "number" in demand and (FLOAT.fullmatch(bare) or INTEGER.fullmatch(bare)):
        return f"write {bare}, without quotes or underscores"
    return None


def _node(path: KeyPath, experiment: Node) -> Node:
    """Return the node at ``path``, or the nearest one above it."""
    while path and experiment.find(path) is None:
        path = path[:-1]
    return experiment.find(path) or experiment
