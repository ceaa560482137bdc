"""RLlib's names to ours, of agents, keys and metrics; keys that rlexp lacks are dropped with a notice, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from rlexp.config.keys.key_table import KeyName, key_table
from rlexp.config.keys.metric_names import SHORT_NAMES, current_metric
from rlexp.config.rllib_compat.table import Absent, absent_keys, computed_keys, old_groups, renamed_keys
from rlexp.config.space.expressions import EVAL
from rlexp.config.space.samplers import GRID
from rlexp.config.translation import Translation, leaves
from rlexp.config.yaml.nodes import Node, dotted, shown, shown_key

_NAMES = {
    "APEX_DQN": "APEX",
    "APEXDQN": "APEX",
    "APEXTRAINER": "APEX",
    "APEXAGENT": "APEX",
    "DQNTRAINER": "DQN",
    "DQNAGENT": "DQN",
    "PPOTRAINER": "PPO",
    "PPOAGENT": "PPO",
}

_NOTHING = "None"
"""Null, as Python writes it."""

_EVALUATION: KeyName = ("config", "evaluation_config")
_FROM_TRAINING = "an evaluation uses the value of the training"
_VIDEOS = ("record_env", "monitor")


def agent_name(name: str) -> str:
    """Return the current name of an agent, in capital letters."""
    return _NAMES.get(name.upper(), name.upper())


def current_path(path: KeyName, run: str) -> KeyName:
    """Return the current path of a key of any age; the path as it is where no spelling is known."""
    renamed = renamed_keys(run)
    if path not in renamed and ("config", *path) in renamed:
        path = ("config", *path)
    if path[0] == "stop" and len(path) == 2:
        return ("stop", current_metric(path[1]))
    return renamed.get(path, path)


@cache
def old_keys_beside_config(run: str) -> frozenset[str]:
    """Return the keys in RLlib's spelling that are beside ``config``."""
    paths = (*renamed_keys(run), *computed_keys(), *(absent.path for absent in absent_keys(run)))
    return frozenset(path[0] for path in paths) - {"config"}


def use_current_names(translation: Translation) -> None:
    """Give every key its current name; drop keys without effect, and refuse those that ask for what rlexp cannot do."""
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
    """Write nested metrics as ``outer/inner``, and each metric by its current name, in the order of the file."""
    stop = translation.find("stop")
    if stop is None or not stop.entries() or GRID in stop.entries():
        return
    current: dict[str, Node] = {}
    for written, node in (pair for metric, child in stop.entries().items() for pair in _flattened(metric, child)):
        name = current_metric(written)
        if name != written and written not in SHORT_NAMES:
            translation.notice(node, f"stop.{shown_key(written)} is stop.{name} now")
        first = current.setdefault(name, node)
        if not first.is_same_as(node):
            both = f"{shown(first.plain())} at {first.key_place}, {shown(node.plain())} here"
            message = f"stop.{name} is given twice with different values: {both}"
            translation.problem(node, message, "keep one of them")
    translation.put("stop", stop.with_value(current), stop)


def _flattened(metric: str, node: Node) -> list[tuple[str, Node]]:
    if not node.entries() or GRID in node.entries() or EVAL in node.entries():
        return [(metric, node)]
    return [found for inner, child in node.entries().items() for found in _flattened(f"{metric}/{inner}", child)]


def leave_out(translation: Translation, absent: Absent) -> None:
    """Drop a key, and say why; refuse it where it asks for a feature that rlexp does not have."""
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
    """Return what a value may be: the choices of a ``grid_search``, else itself."""
    grid = node.entries().get(GRID)
    return grid.value if grid is not None and isinstance(grid.value, tuple) else (node,)


def _asks(node: Node, absent: Absent) -> bool:
    """Return whether a value asks for something: not null, false, 0, empty, or one that is known to be harmless."""
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
    """Bring the keys of the group into today's form; those that no evaluation of ours can have are dropped, or refused.

    Refused is what is refused for the training, and another env.
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
    _refuse_other_env(translation)
    for name in _names_of_training(translation):
        leave_out(translation, Absent((*_EVALUATION, name), _FROM_TRAINING, (), is_feature=False))


def _refuse_other_env(translation: Translation) -> None:
    node = translation.take("config.evaluation_config.env")
    if node is not None and node.value is not None and node.value != translation.value("env"):
        translation.problem(
            node, "config.evaluation_config.env: rlexp does not support evaluation in another environment"
        )


def _names_of_training(translation: Translation) -> list[str]:
    """Return the names in the group that are keys of ``config``, of any age, and not the group's own."""
    run, group = translation.run, translation.experiment.find(_EVALUATION)
    known = {*key_table(run), *renamed_keys(run), *computed_keys(), *old_groups()}
    names = group.entries() if group else ()
    return [name for name in names if (*_EVALUATION, name) not in known and (_EVALUATION[0], name) in known]
