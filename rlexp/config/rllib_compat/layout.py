"""Each key where it belongs: keys of ``optimizer`` may be flat, some flat ones in it, and mappings may be empty."""

from __future__ import annotations

from collections.abc import Mapping

from rlexp.config.keys.key_table import MAPPING, KeyName, flat_keys_of_optimizer, key_table, nested_keys_of_config
from rlexp.config.yaml.nodes import Finding, Node, shown

CONFIG = "config"
OPTIMIZER = "optimizer"


def arranged(experiment: Node, run: str) -> tuple[Node, tuple[Finding, ...]]:
    """Return the experiment with its keys in place, and those that are given twice with different values."""
    filled = _with_empty_groups(experiment, run, ())
    config = filled.child(CONFIG)
    if config is None:
        return filled, ()
    config, findings = _optimizer_keys_moved(config, run)
    return filled.with_value({**filled.entries(), CONFIG: config}), findings


def proper_path(path: KeyName, run: str) -> KeyName:
    """Return where the key at ``path`` belongs; ``config`` may be left out: ``lr`` is ``config.lr``."""
    if (path[0],) not in key_table(run):
        path = (CONFIG, *path)
    head, rest = path[:2], path[2:]
    if head[0] == CONFIG and len(head) == 2 and head[1] in flat_keys_of_optimizer(run):
        return (CONFIG, OPTIMIZER, head[1], *rest)
    if head == (CONFIG, OPTIMIZER) and rest and rest[0] in nested_keys_of_config(run):
        return (CONFIG, *rest)
    return path


def _with_empty_groups(node: Node, run: str, path: KeyName) -> Node:
    """Return the node with ``model:`` and the like, where nothing follows, read as an empty mapping."""
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
            message = (
                f"{name} is given twice with different values, in {CONFIG} and in {OPTIMIZER}: "
                f"{shown(first.plain())} at {first.key_place}, {shown(second.plain())} here"
            )
            findings.append(Finding(second.key_place, message, "keep one of them"))
    return findings
