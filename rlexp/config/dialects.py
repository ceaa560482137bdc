"""Other spellings of RLlib's life to ours: names here, values that have to be computed in ``old_values``."""

from __future__ import annotations

from functools import cache

from rlexp.config.dialect_table import Absent, absent_keys, computed_keys, renamed_keys
from rlexp.config.key_table import KeyName
from rlexp.config.metric_names import current_metric
from rlexp.config.nodes import Node, dotted, shown, shown_key
from rlexp.config.search_space import GRID
from rlexp.config.translation import Translation, leaves

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
    """Return the current name of an agent, in capitals."""
    return _NAMES.get(name.upper(), name.upper())


def current_path(path: KeyName, run: str) -> KeyName:
    """Return where a key of any age stands now; the path as it is where no spelling is known."""
    renamed = renamed_keys(run)
    if path not in renamed and ("config", *path) in renamed:
        path = ("config", *path)
    if path[0] == "stop" and len(path) == 2:
        return ("stop", current_metric(path[1]))
    return renamed.get(path, path)


@cache
def old_keys_beside_config(run: str) -> frozenset[str]:
    """Return the keys of other ages that stand beside ``config``."""
    paths = (*renamed_keys(run), *computed_keys(), *(absent.path for absent in absent_keys(run)))
    return frozenset(path[0] for path in paths) - {"config"}


def use_current_names(translation: Translation) -> None:
    """Give every key its current name; drop keys without effect, and refuse those that ask for what is not there."""
    _flatten_stop(translation)
    for old, new in renamed_keys(translation.run).items():
        translation.move(old, new)
    for absent in absent_keys(translation.run):
        _leave_out(translation, absent)


def _leave_out(translation: Translation, absent: Absent) -> None:
    node = translation.find(".".join(absent.path))
    if node is None:
        return
    asking = [choice for choice in _choices(node) if _asks(choice, absent)]
    if absent.is_feature and asking:
        message = f"{dotted(absent.path)}: rlexp does not support {absent.reason}"
        translation.problem(node, message, absent.hint)
    elif asking:
        translation.notice(node, f"{dotted(absent.path)} has no effect here: {absent.reason}")
    translation.take(".".join(absent.path))


def _asks(node: Node, absent: Absent) -> bool:
    """Return whether a value asks for something: not null, false, 0, empty, or one that is known to be harmless."""
    values = [leaf.value for leaf in leaves(node)]
    return not all(not value or value in absent.welcome for value in values)


def _choices(node: Node) -> tuple[Node, ...]:
    """Return what a value may be: the choices of a ``grid_search``, else itself."""
    grid = node.entries().get(GRID)
    return grid.value if grid is not None and isinstance(grid.value, tuple) else (node,)


def _flatten_stop(translation: Translation) -> None:
    """Write nested metrics as ``outer/inner``, and every metric by its current name, in the order of the file."""
    stop = translation.find("stop")
    if stop is None or not stop.entries() or GRID in stop.entries():
        return
    current: dict[str, Node] = {}
    for written, node in (pair for metric, child in stop.entries().items() for pair in _flattened(metric, child)):
        name = current_metric(written)
        if name != written:
            translation.notice(node, f"stop.{shown_key(written)} is stop.{name} now")
        first = current.setdefault(name, node)
        if first.plain() != node.plain():
            message = (
                f"stop.{name} is given twice: {shown(node.plain())} here, {shown(first.plain())} at {first.key_place}"
            )
            translation.problem(node, message, "keep one of them")
    translation.put("stop", stop.with_value(current), stop)


def _flattened(metric: str, node: Node) -> list[tuple[str, Node]]:
    if not node.entries() or GRID in node.entries() or "eval" in node.entries():
        return [(metric, node)]
    return [found for inner, child in node.entries().items() for found in _flattened(f"{metric}/{inner}", child)]
