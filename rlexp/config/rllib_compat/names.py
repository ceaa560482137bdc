"""RLlib's other spellings to ours: names here, values that have to be computed in ``old_values``."""

from __future__ import annotations

from functools import cache

from rlexp.config.keys.key_table import KeyName
from rlexp.config.keys.metric_names import current_metric
from rlexp.config.rllib_compat.absent_keys import leave_out
from rlexp.config.rllib_compat.evaluation import use_evaluation_keys
from rlexp.config.rllib_compat.table import absent_keys, computed_keys, renamed_keys
from rlexp.config.space.samplers import GRID
from rlexp.config.translation import Translation
from rlexp.config.yaml.nodes import Node, shown, shown_key

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
        if name != written:
            translation.notice(node, f"stop.{shown_key(written)} is stop.{name} now")
        first = current.setdefault(name, node)
        if not first.is_same_as(node):
            both = f"{shown(first.plain())} at {first.key_place}, {shown(node.plain())} here"
            message = f"stop.{name} is given twice with different values: {both}"
            translation.problem(node, message, "keep one of them")
    translation.put("stop", stop.with_value(current), stop)


def _flattened(metric: str, node: Node) -> list[tuple[str, Node]]:
    if not node.entries() or GRID in node.entries() or "eval" in node.entries():
        return [(metric, node)]
    return [found for inner, child in node.entries().items() for found in _flattened(f"{metric}/{inner}", child)]
