"""RLlib's names to ours, for agents, keys and metrics, by ``table.toml``; and strings that mean other values there.

The steps of ``assembly``, in their order: ``read_yaml_1_1_words`` (``yes``, ``1_000_000``), ``use_current_names`` (keys
that rlexp lacks are dropped with a notice, or refused) and ``arrange`` (each key in its place).
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlexp.config.domains import EVAL, FREE_FORM, GRID, MAX_LENGTH, SAMPLERS
from rlexp.config.keys.agents import AGENTS, built_in_base
from rlexp.config.keys.key_table import (
    MAPPING,
    KeyName,
    flat_keys_of_optimizer,
    key_path,
    key_table,
    nested_keys_of_config,
)
from rlexp.config.keys.metrics import SHORT_NAMES, current_metric
from rlexp.config.translation import Translation, leaves
from rlexp.config.yaml.nodes import Finding, Node, dotted, given_twice, read_yaml_1_1, shown, shown_key

CONFIG = "config"
OPTIMIZER = "optimizer"

_TABLE = Path(__file__).with_name("table.toml")


@dataclass(frozen=True)
class Absent:
    """A key of older or newer RLlib that rlexp does not have."""

    path: KeyName
    reason: str
    """Why it has no effect; or, if ``is_feature``, the name of the feature that it asks for."""
    welcome: tuple[Any, ...]
    """Values accepted without a notice, beside those that ask for nothing (null, false, 0, empty)."""
    is_feature: bool
    """Whether it asks for something that rlexp cannot do, so that it must not be ignored."""
    hint: str | None = None
    has_names: bool = False
    """Whether its own keys are names of things, each of which asks for the feature whatever its value."""


@cache
def renamed_keys(run: str) -> Mapping[KeyName, KeyName]:
    """Return old paths and the agent's current ones; left out are names that it has, or whose current ones it lacks."""
    table = key_table(run)
    pairs = (
        (key_path(old), key_path(new))
        for old, names in _table()["renamed"].items()
        for new in ([names] if isinstance(names, str) else names)
    )
    return MappingProxyType({old: new for old, new in pairs if new in table and old not in table})


@cache
def absent_keys(run: str) -> tuple[Absent, ...]:
    """Return the keys that RLlib or Tune had and the agent does not have, keys in a mapping before the mapping."""
    found, agent, families = [], built_in_base(run), _table()["families"]
    for group in (*_table()["no_effect"], *_table()["unsupported"]):
        if any(agent in families.get(name, [name]) for name in group.get("agents", [agent])):
            is_feature = "feature" in group
            reason = group["feature"] if is_feature else group["reason"]
            welcome = tuple(group.get("off" if is_feature else "silent", ()))
            hint, has_names = group.get("hint"), group.get("names", False)
            found += [Absent(key_path(key), reason, welcome, is_feature, hint, has_names) for key in group["keys"]]
    found.sort(key=lambda absent: -len(absent.path))
    table = key_table(run)
    own = {*renamed_keys(run), *table, *(old for old, new in computed_keys().items() if table.keys() >= {*new})}
    return tuple(absent for absent in found if absent.path not in own)


@cache
def computed_keys() -> Mapping[KeyName, tuple[KeyName, ...]]:
    """Return old paths whose values are computed, and the current keys that they set."""
    return MappingProxyType({key_path(old): tuple(map(key_path, new)) for old, new in _table()["computed"].items()})


@cache
def old_groups() -> frozenset[KeyName]:
    """Return the mappings that only other spellings have, such as ``config.exploration_config``."""
    paths = [*map(key_path, _table()["renamed"]), *computed_keys()]
    paths += [
        key_path(key) for kind in ("no_effect", "unsupported") for group in _table()[kind] for key in group["keys"]
    ]
    current = {path for run in AGENTS for path in key_table(run)}
    return frozenset(path[:-1] for path in paths if len(path) > 1) - current


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_TABLE.read_text(encoding="utf-8"))


_NAMES = {"APEXDQN": "APEX"} | {name.replace("_", ""): name for name in AGENTS}
"""Agents by RLlib's names, without the signs between the parts of a name: ``Apex-DQN``, ``DD_PPO``."""

_NOTHING = "None"
"""Null in Python's spelling."""

_EVALUATION: KeyName = ("config", "evaluation_config")
_FROM_TRAINING = "an evaluation uses the value of the training"
_VIDEOS = ("record_env", "monitor")


def agent_name(name: str) -> str:
    """Return the current name of an agent, in capital letters."""
    given = name.upper()
    bare = given.removesuffix("TRAINER").removesuffix("AGENT")  # RLlib's names of the classes
    return _NAMES.get(re.sub("[-_]", "", bare), given)


def current_path(path: KeyName, run: str) -> KeyName:
    """Return the current path of a key of any age; an unknown path is returned unchanged."""
    renamed = renamed_keys(run)
    if path not in renamed and ("config", *path) in renamed:
        path = ("config", *path)
    if path[0] == "stop" and len(path) == 2:
        return ("stop", current_metric(path[1]))
    return renamed.get(path, path)


@cache
def old_keys(run: str) -> frozenset[KeyName]:
    """Return the keys in RLlib's spelling, with those that rlexp lacks."""
    return frozenset((*renamed_keys(run), *computed_keys(), *(absent.path for absent in absent_keys(run))))


@cache
def old_keys_beside_config(run: str) -> frozenset[str]:
    """Return the ``old_keys`` that are beside ``config``."""
    return frozenset(path[0] for path in old_keys(run)) - {"config"}


def use_current_names(translation: Translation) -> None:
    """Give every key its current name; drop keys without effect, and refuse keys for what rlexp cannot do."""
    _flatten_stop(translation)
    given = translation.nodes()
    for old, new in renamed_keys(translation.run).items():
        if old in given:
            translation.move(old, new)
    for absent in absent_keys(translation.run):
        if absent.path in given:
            leave_out(translation, absent)
    use_evaluation_keys(translation)


def _flatten_stop(translation: Translation) -> None:
    """Write nested metrics as ``outer/inner``, each by its current name, in the order of the file."""
    stop = translation.find("stop")
    if stop is None or not stop.entries() or GRID in stop.entries():
        return
    current: dict[str, Node] = {}
    for written, node in (pair for metric, child in stop.entries().items() for pair in _flattened(metric, child)):
        name = current_metric(written)
        if name != written and written not in SHORT_NAMES:
            translation.notice(node, f"stop.{shown_key(written)} is stop.{name} now")
        first = current.setdefault(name, node)
        if first.place.line and not node.place.line:  # the command line's value precedes the file's
            current[name] = node
        elif not first.is_same_as(node):
            translation.problems.append(given_twice(f"stop.{name}", first, node))
    translation.put("stop", stop.with_value(current), stop)


def _flattened(metric: str, node: Node) -> list[tuple[str, Node]]:
    if not node.entries() or GRID in node.entries() or EVAL in node.entries():
        return [(metric, node)]
    return [found for inner, child in node.entries().items() for found in _flattened(f"{metric}/{inner}", child)]


def leave_out(translation: Translation, absent: Absent) -> None:
    """Drop a key, and say why; refuse it if it asks for a feature that rlexp does not have."""
    node = translation.take(".".join(absent.path))
    if node is None:
        return
    name, choices = dotted(absent.path), choices_of(node)
    asking = [choice for choice in choices if _asks(choice, absent)]
    if absent.is_feature and asking:
        translation.problem(node, f"{name}: rlexp does not support {absent.reason}", absent.hint)
    elif len(choices) > 1:
        grid = f"the {len(choices)} values of its {GRID} make one trial"
        translation.notice(node, f"{name} has no effect here: {absent.reason}; {grid}")
    elif asking:
        translation.notice(node, f"{name} has no effect here: {absent.reason}")
    elif node.place.line:
        reason = f"rlexp does not support {absent.reason}" if absent.is_feature else absent.reason
        translation.notice(node, f"{name} is left out: {reason}", is_minor=True)


def choices_of(node: Node) -> tuple[Node, ...]:
    """Return the possible values: the choices of a ``grid_search``, else the node itself."""
    grid = node.entries().get(GRID)
    return grid.value if grid is not None and isinstance(grid.value, tuple) else (node,)


def _asks(node: Node, absent: Absent) -> bool:
    """Return whether a value asks for something: not null, false, 0, empty, or a known harmless one."""
    if absent.has_names and any(name not in absent.welcome for name in _names(node)):
        return True
    values = [leaf.value for leaf in leaves(node)]
    return not all(not value or value == _NOTHING or value in absent.welcome for value in values)


def _names(node: Node) -> list[str]:
    """Return the names in a mapping from names, or in a list of them."""
    if isinstance(node.value, Mapping):
        return list(node.value)
    items = node.value if isinstance(node.value, tuple) else ()
    return [shown_key(str(item.value)) for item in items]


def use_evaluation_keys(translation: Translation) -> None:
    """Bring the keys of the group into current form; keys that our evaluations cannot have are dropped or refused.

    Keys that training refuses are refused, and another env.
    """
    group = translation.experiment.find(_EVALUATION)
    if group is None or not group.entries():
        return
    given = translation.nodes()
    for absent in absent_keys(translation.run):
        path = (*_EVALUATION, *absent.path[1:])
        if absent.path[0] == _EVALUATION[0] and absent.path[1:2] != _EVALUATION[1:] and path in given:
            leave_out(translation, replace(absent, path=path))
    for name in _VIDEOS:
        node = translation.take(f"config.evaluation_config.{name}")
        if node is not None and node.value:
            translation.put_instead(node, f"config.evaluation_config.{name}", "config.monitor", True)
    node = translation.take("config.evaluation_config.env")
    if node is not None and node.value is not None and node.value != translation.value("env"):
        message = "config.evaluation_config.env: rlexp does not support evaluation in another environment"
        translation.problem(node, message)
    for name in _names_of_training(translation):
        leave_out(translation, Absent((*_EVALUATION, name), _FROM_TRAINING, (), is_feature=False))


def _names_of_training(translation: Translation) -> list[str]:
    """Return the names in the group that are keys of ``config``, of any age, and not the group's own."""
    run, group = translation.run, translation.experiment.find(_EVALUATION)
    known = {*key_table(run), *renamed_keys(run), *computed_keys(), *old_groups()}
    names = group.entries() if group else ()
    return [name for name in names if (*_EVALUATION, name) not in known and (_EVALUATION[0], name) in known]


def arrange(translation: Translation) -> None:
    """Put the keys of an experiment in place; keys given twice with different values are problems."""
    translation.experiment = _with_empty_groups(translation.experiment, translation.run, ())
    config = translation.experiment.child(CONFIG)
    if config is not None:
        config, findings = _optimizer_keys_moved(config, translation.run)
        translation.experiment = translation.experiment.put((CONFIG,), config)
        translation.problems += findings


def proper_path(path: KeyName, run: str) -> KeyName:
    """Return the proper place of the key at ``path``; ``config`` may be left out: ``lr`` is ``config.lr``."""
    if (path[0],) not in key_table(run):
        path = (CONFIG, *path)
    head, rest = path[:2], path[2:]
    if head[0] == CONFIG and len(head) == 2 and head[1] in flat_keys_of_optimizer(run):
        return (CONFIG, OPTIMIZER, head[1], *rest)
    if head == (CONFIG, OPTIMIZER) and rest and rest[0] in nested_keys_of_config(run):
        return (CONFIG, *rest)
    return path


def _with_empty_groups(node: Node, run: str, path: KeyName) -> Node:
    """Return the node with an empty ``model:`` and the like read as an empty mapping."""
    if node.value is None and path:
        return node.with_value({})
    if not node.entries():
        return node
    table = key_table(run)
    groups = {
        name: _with_empty_groups(child, run, (*path, name))
        for name, child in node.entries().items()
        if (key := table.get((*path, name))) and key.expects == MAPPING
    }
    return node.with_value({**node.entries(), **groups})


def _optimizer_keys_moved(config: Node, run: str) -> tuple[Node, tuple[Finding, ...]]:
    flat = dict(config.entries())
    optimizer = config.child(OPTIMIZER)
    if optimizer and not isinstance(optimizer.value, Mapping):
        return config, ()
    nested = dict(optimizer.entries()) if optimizer else {}
    upwards = {name: nested.pop(name) for name in nested_keys_of_config(run) & nested.keys()}
    downwards = {name: flat.pop(name) for name in flat_keys_of_optimizer(run) & flat.keys()}
    if not upwards and not downwards:
        return config, ()
    findings = [*_disagreements(flat, upwards), *_disagreements(nested, downwards)]
    group = (optimizer or config).with_value({**nested, **downwards})
    return config.with_value({**flat, **upwards, OPTIMIZER: group}), tuple(findings)


def _disagreements(ones: dict[str, Node], others: dict[str, Node]) -> list[Finding]:
    """Return a finding, at the later place, for each key that both have with different values."""
    findings = []
    for name in ones.keys() & others.keys():
        first, second = sorted((ones[name], others[name]), key=lambda node: (node.place.line, node.place.column))
        if not first.is_same_as(second):
            findings.append(given_twice(name, first, second, f", in {CONFIG} and in {OPTIMIZER}"))
    return findings


def read_yaml_1_1_words(translation: Translation) -> None:
    """Read such words as the booleans and numbers that they were, unless a key expects a string."""
    translation.experiment = _read(translation, translation.experiment, ())


def _read(translation: Translation, node: Node, path: KeyName) -> Node:
    if isinstance(node.value, Mapping):
        return node.with_value({key: _read(translation, child, _below(path, key)) for key, child in node.value.items()})
    if isinstance(node.value, tuple):
        return node.with_value(tuple(_read(translation, child, path) for child in node.value))
    if not node.is_plain or not isinstance(node.value, str) or _expects_string(path, translation.run):
        return node
    value = read_yaml_1_1(node.value)
    if value is node.value:
        return node
    otherwise = f", or {node.value!r} for a string" if FREE_FORM in path else ""
    translation.notice(node, f"{dotted(path)}: {node.value} is read as {shown(value)}; write {shown(value)}{otherwise}")
    return node.with_value(value)


def _below(path: KeyName, key: str) -> KeyName:
    """Return the path of an entry; the values of a grid or a sampler belong to its key."""
    return path if key in (GRID, *SAMPLERS) else (*path, key)


def _expects_string(path: KeyName, run: str) -> bool:
    key = key_table(run).get(current_path(path, run)) if path else None
    return key is not None and key.takes_strings


def read_literal(text: str) -> Any:
    """Return the Python value of a string; the same object for any other string."""
    stripped = text.strip()
    bare = stripped.removesuffix(",").rstrip()
    if bare.lower() in ("true", "false") and bare != text:
        return bare.lower() == "true"
    is_python = bare == "None" or bare != stripped or stripped.startswith(("(", "["))
    if not is_python or len(bare) > MAX_LENGTH:
        return text
    try:
        return _as_in_yaml(ast.literal_eval(bare))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return text


def _as_in_yaml(value: Any) -> Any:
    """Return a Python value in YAML's types, a tuple as a list; raises TypeError if YAML has none."""
    if isinstance(value, list | tuple):
        return [_as_in_yaml(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(type(value).__name__)
