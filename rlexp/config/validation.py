"""One variant becomes an Experiment, or findings: pydantic's errors with their place, in our words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlexp.config.domains import GRID, python_call
from rlexp.config.keys.agents import experiment_class
from rlexp.config.keys.experiment import NUM_SEEDS, Experiment
from rlexp.config.keys.fields import CONFLICT, RULE, UNSAID_LIMITS, Conflict
from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.keys.user_code import UserClass
from rlexp.config.reference import hints
from rlexp.config.rllib.names import old_groups, old_keys
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import (
    BOOLEAN_WORDS,
    FLOAT,
    INTEGER,
    Finding,
    KeyPath,
    Node,
    at,
    dotted,
    number_meant,
    one_mapping,
    shown,
    with_space,
    written,
)
from rlexp.errors import UsageError
from rlexp.text import seconds_of

_KEY_MARK = "[key]"
"""What pydantic appends to the path when the key of a mapping is wrong, not its value."""

_MOST_ITEMS: Final = 5
"""Most items of a list whose errors are shown."""
_MOST_ERRORS: Final = 200
"""Most errors of a variant whose remedies are looked for: that takes milliseconds each."""
_MULTIPLES = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_ABBREVIATED = re.compile(r"(?P<number>[-+]?[0-9]+(\.[0-9]+)?)\s*(?P<unit>[kKmMbBgG%])")

_SOME_ENV: Final = "CartPole-v1"
_MOST_ROUNDS: Final = 4
"""Wrong values hide conflicts, and conflicts inside a group hide those with other groups."""
_EXAMPLES = {"env": "write env: CartPole-v1, or env: package.module:Class for one of your own"}
"""Examples for a missing key."""


def validated(name: str, experiment: Node, run: str) -> tuple[Experiment | None, tuple[Finding, ...]]:
    """Return a variant, arranged and without grids, as an Experiment; or None and all findings."""
    made = _validated(name, experiment, run)
    if isinstance(made, Experiment):
        return made, ()
    # The value of an unknown key does not matter.
    unknown = {detail["loc"][:-1] for detail in made if detail["loc"][-1:] == (_KEY_MARK,)}
    details = (detail for detail in _first_of_lists(made) if detail["loc"] not in unknown)
    findings = (finding for detail in details for finding in _findings(detail, experiment, run))
    found = list(islice(findings, _MOST_ERRORS))
    if next(findings, None) is not None:
        found.append(Finding(found[-1].place, "further errors are not listed", "correct the others first"))
    return None, tuple(dict.fromkeys((*found, *_right_part(name, experiment, run).conflicts)))


def unused_beside_errors(name: str, experiment: Node, run: str) -> Iterator[Finding]:
    """Yield what a variant would reserve, but its agent cannot use; wrong values are left out."""
    part = _right_part(name, experiment, run)
    if part.experiment is not None:
        found = _apart_from(part.wrong, ("config",), part.experiment.config.unused_resources())
        yield from conflict_findings(found, experiment, ("config",))


def _validated(name: str, experiment: Node, run: str) -> Experiment | list[ErrorDetails]:
    return _read({**experiment.plain(), "name": name, "run": run}, run)


def _read(data: Mapping[str, Any], run: str) -> Experiment | list[ErrorDetails]:
    try:
        return experiment_class(run).model_validate(data)
    except ValidationError as error:
        return error.errors(include_url=False)


@dataclass(frozen=True)
class _RightPart:
    """A variant without its wrong values, as pydantic looks for no conflicts in a group that has one."""

    experiment: Experiment | None
    """The variant without the keys that are wrong or do not fit; None if something else is wrong with it."""
    wrong: tuple[KeyPath, ...]
    """The keys that were left out."""
    conflicts: tuple[Finding, ...]
    """The conflicts between the others."""


def _right_part(name: str, experiment: Node, run: str) -> _RightPart:
    data = {**experiment.plain(), "name": name, "run": run}
    wrong: list[KeyPath] = [] if "env" in data else [("env",)]
    found: list[Finding] = []
    for _ in range(_MOST_ROUNDS):
        made = _read({"env": _SOME_ENV, **data}, run)
        if isinstance(made, Experiment):
            return _RightPart(made, tuple(wrong), tuple(found))
        left_out: list[KeyPath] = []
        for detail in made:
            path = detail["loc"]
            if detail["type"] != CONFLICT:
                # the key at the beginning of a path into its value, such as one item of a list
                left_out.append(tuple(takewhile(lambda part: isinstance(part, str) and part != _KEY_MARK, path)))
                continue
            conflicts = detail["ctx"]["conflicts"]
            found += conflict_findings(_apart_from(wrong, path, conflicts), experiment, path)
            left_out += [(*path, *blamed.split(".")) for conflict in conflicts for blamed in conflict.keys]
        for *groups, key in left_out:
            group = at(data, tuple(groups))
            if isinstance(group, dict):
                group.pop(key, None)
        wrong += left_out
    return _RightPart(None, tuple(wrong), tuple(found))


def _apart_from(wrong: Iterable[KeyPath], group: KeyPath, conflicts: Iterable[Conflict]) -> Iterator[Conflict]:
    """Yield the conflicts that are about none of the ``wrong`` keys."""
    for conflict in conflicts:
        paths = [(*group, *key.split(".")) for key in conflict.keys]
        if not any(path[: len(each)] == each or each[: len(path)] == path for path in paths for each in wrong):
            yield conflict


def _first_of_lists(details: Iterable[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Yield the errors, for items of a list only the first few, as a list may have thousands."""
    seen: Counter[KeyPath] = Counter()
    for detail in details:
        path = detail["loc"]
        whole = path[:-1] if path and isinstance(path[-1], int) else None
        if whole is not None:
            seen[whole] += 1
        if whole is None or seen[whole] <= _MOST_ITEMS:
            yield detail


def _findings(detail: ErrorDetails, experiment: Node, run: str) -> Iterator[Finding]:
    path = detail["loc"]
    if detail["type"] == CONFLICT:
        yield from conflict_findings(detail["ctx"]["conflicts"], experiment, path)
    elif detail["type"] == "missing":
        yield Finding(experiment.key_place, f"{dotted(path)} is missing", _EXAMPLES.get(dotted(path)))
    elif detail["type"] == "extra_forbidden":
        for names, found in _unknown_key(path, experiment, run):
            yield replace(found, hint=hints.for_unknown_key(names, run))
    elif path[-1] == _KEY_MARK:
        yield _unknown_metric(path[:-1], experiment, run)
    else:
        yield _wrong_value(detail, experiment, run)


def conflict_findings(conflicts: Iterable[Conflict], experiment: Node, group: KeyPath) -> Iterator[Finding]:
    """Yield conflicts between the keys of a group, each at the first of its keys that the experiment gives."""
    for conflict in conflicts:
        nodes = (experiment.find((*group, *key.split("."))) for key in conflict.keys)
        place = next((node.key_place for node in nodes if node), experiment.key_place)
        yield Finding(place, f"{dotted(group)}.{conflict.message}".removeprefix("."), conflict.hint)


def unknown_keys(experiment: Node, run: str) -> tuple[tuple[KeyName, Finding], ...]:
    """Return the keys of an arranged variant that the agent does not have; findings have no hints."""
    made = _validated("any", experiment, run)
    details = [] if isinstance(made, Experiment) else made
    paths = (tuple(map(str, detail["loc"])) for detail in details if detail["type"] == "extra_forbidden")
    return tuple((path, finding) for path in paths for _, finding in _unknown_key(path, experiment, run))


def _unknown_key(path: KeyPath, experiment: Node, run: str) -> Iterator[tuple[KeyName, Finding]]:
    """Yield a key that the agent does not have, and what is said of it; of a mapping of RLlib, each of its keys."""
    node = _node(path, experiment)
    names = tuple(str(key) for key in path)
    if names in old_groups() and node.entries():
        for name in node.entries():
            yield from _unknown_key((*path, name), experiment, run)
        return
    agent = f" (agent {run})" if path[0] == "config" else ""
    yield names, Finding(node.key_place, f"unknown key {dotted(path)}{agent}")


def _unknown_metric(path: KeyPath, experiment: Node, run: str) -> Finding:
    name = str(path[-1])
    is_key = ("config", name) in key_table(run) or ("config", name) in old_keys(run)
    hint = f"{name} is a key of config: move it there" if is_key else hints.for_unknown_metric(name)
    return Finding(_node(path, experiment).key_place, f"{dotted(path)} is not a metric of the results", hint)


def _wrong_value(detail: ErrorDetails, experiment: Node, run: str) -> Finding:
    path, value, demand = detail["loc"], detail["input"], _demand(detail, run)
    item = detail.get("ctx", {}).get("item")
    if item is not None:
        path, value = (*path, item), value[item]
    node = experiment.find(path) or (_node(path[:-1], experiment) if isinstance(path[-1], int) else None)
    place = node.place if node else experiment.key_place
    got = shown(value) if item is None else written(value)
    if isinstance(value, list) and item is None:
        hint = _hint_for_list(path, value, demand, experiment, run)
    else:
        hint = _hint(path, value, demand)
    name = f"{NUM_SEEDS} (num_samples)" if path == ("num_samples",) else dotted(path)
    return Finding(place, f"{name} {demand}, got {got}", hint)


def _demand(detail: ErrorDetails, run: str) -> str:
    """Return what the key demands of its value: ``must be a number > 0``."""
    if detail["type"] == RULE:
        return detail["msg"]
    if detail["type"] == "finite_number":
        return "must be a finite number"
    if detail["type"] == "less_than_equal" and detail["ctx"]["le"] in UNSAID_LIMITS:
        return f"must be at most {detail['ctx']['le']}"
    path, table = detail["loc"], key_table(run)
    names = tuple(str(key) for key in path)
    return f"must be {table[names].expects if names in table else table[names[:-1]].items_expect}"


def _hint(path: KeyPath, value: Any, demand: str) -> str | None:
    """Return how to write what a value was probably meant to be."""
    if isinstance(value, str) and str(path[-1]).endswith("_s"):
        with suppress(UsageError):
            return f"write {_digits(seconds_of(value, ''))}, in seconds"
        return None
    if isinstance(value, str):
        return _hint_for_string(value, demand)
    if isinstance(value, dict) and len(value) == 1:
        return hints.for_misspelt_sampler(next(iter(value)))
    return None


def _hint_for_list(path: KeyPath, value: list[Any], demand: str, experiment: Node, run: str) -> str | None:
    """Return how to write the mapping whose keys have dashes, or the grid whose values could replace the list."""
    one = one_mapping(value) if "must be a mapping" in demand else None
    if one is not None:
        return f"write one mapping, without dashes: {one}"
    is_item = isinstance(path[-1], int)
    whole = experiment.find(path[:-1]) if is_item else experiment.find(path)
    values = whole.plain() if whole else value
    key = tuple(part for part in path if isinstance(part, str))
    if not (all if is_item else any)(_fits(key, each, experiment, run) for each in values[:_MOST_ITEMS]):
        return None
    grid = f"{{{GRID}: {written(values)}}}"
    if whole is not None and not whole.place.line:  # from the command line: quoted for its shell
        grid = f"-o '{'.'.join(key)}={grid}'"
    return f"to try each of them, write {grid}"


def _fits(path: KeyPath, value: Any, experiment: Node, run: str) -> bool:
    """Return whether the key at ``path`` may have a value."""
    node = experiment.find(path)
    made = _validated("any", experiment.put(path, node_of(value, node or experiment)), run)
    details = [] if isinstance(made, Experiment) else made
    return not any(detail["loc"][: len(path)] == path for detail in details)


def _hint_for_string(text: str, demand: str) -> str | None:
    if "metric" in demand:
        return hints.for_unknown_metric(text.removeprefix("min-"))
    if UserClass.EXPECTED in demand:
        return _hint_for_class(text)
    if "must be a mapping" in demand:
        spaced = with_space(text)
        return f"write a space after the colon: {spaced}" if spaced else None
    word = text.lower()
    booleans = BOOLEAN_WORDS | {"true": True, "false": False}
    if "true" in demand and word in booleans:
        return f"write {shown(booleans[word])}, without quotes"
    call = python_call(text)
    if call is not None:
        return f"write {written({call[0]: call[1]})}"
    bare = text.replace("_", "").strip()
    if "number" in demand and (FLOAT.fullmatch(bare) or INTEGER.fullmatch(bare)):
        return f"write {bare}, without quotes"
    meant = number_meant(text.strip()) if "number" in demand else None
    if meant is not None:
        return None if "." in meant and "whole" in demand else f"write {meant}"
    found = _ABBREVIATED.fullmatch(text.strip()) if "number" in demand else None
    if found is None:
        return None
    number = float(found["number"])
    unit = found["unit"].lower()
    value = number / 100 if unit == "%" else number * _MULTIPLES[unit]
    return f"write {_digits(value)}" if value.is_integer() or "whole" not in demand else None


def _hint_for_class(text: str) -> str | None:
    """Return how to write the name of a class that RLlib's files had as a registered name."""
    module, _, name = text.rpartition(".")
    if not name.isidentifier():
        return None
    return f"write {module}:{name}" if module else f"rlexp has no registry of names: write my_module:{name}"


def _digits(number: float) -> str:
    return str(int(number)) if number.is_integer() else f"{number:.12g}"


def _node(path: KeyPath, experiment: Node) -> Node:
    """Return the node at ``path``, or the nearest one above it."""
    while path and experiment.find(path) is None:
        path = path[:-1]
    return experiment.find(path) or experiment
