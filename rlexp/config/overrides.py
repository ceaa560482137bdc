"""Values from the command line, ``-o key.path=value``, that override those of every experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlexp.config.keys.key_table import KeyName
from rlexp.config.keys.load_options import Flag
from rlexp.config.rllib_compat.layout import proper_path
from rlexp.config.rllib_compat.names import current_path, old_keys_beside_config
from rlexp.config.space.grid import GRID
from rlexp.config.yaml import reader
from rlexp.config.yaml.nodes import Finding, Node, Place, dotted

_FORM = ("an override must be key.path=value", "for example -o lr=1e-3, or -o stop.timesteps_total=1e6")


@dataclass(frozen=True)
class Override:
    """One value from the command line."""

    path: KeyName
    """As given: ``config`` may be left out at its start."""
    value: Node


def parse_overrides(
    texts: Sequence[str], seed: int | None, flags: Sequence[Flag] = ()
) -> tuple[tuple[Override, ...], tuple[Finding, ...]]:
    """Return the overrides of flags, ``-o`` and ``--seed``, and what is wrong with them."""
    overrides: list[Override] = []
    findings: list[Finding] = []
    of_flags = (_parsed(flag.key, flag.text, Place(flag.shown)) for flag in flags)
    for parsed in (*of_flags, *map(_parse, texts)):
        if isinstance(parsed, Override):
            overrides.append(parsed)
        else:
            findings.extend(parsed)
    if seed is not None:
        place = Place(f"--seed {seed}")
        overrides.append(Override(("config", "seed"), Node(seed, place, place)))
    return tuple(overrides), tuple(findings)


def _parse(text: str) -> Override | tuple[Finding, ...]:
    place = Place(f"-o {text}")
    key, equals, value_text = text.partition("=")
    if not equals:
        return (Finding(place, *_FORM),)
    return _parsed(key, value_text, place)


def _parsed(key: str, value_text: str, place: Place) -> Override | tuple[Finding, ...]:
    path = tuple(part.strip() for part in key.split("."))
    if not all(path):
        return (Finding(place, *_FORM),)
    value = reader.parse(value_text, lambda line, column: place)
    if value.problems:
        return value.problems
    return Override(path, value.root or Node(None, place, place))


def of_agent(overrides: Sequence[Override]) -> Node | None:
    """Return the value that the overrides give to ``run``, None if they give none."""
    values = [override.value for override in overrides if override.path == ("run",)]
    return values[-1] if values else None


def overridden(experiment: Node, overrides: Sequence[Override], run: str) -> tuple[Node, tuple[Finding, ...]]:
    """Return an arranged experiment with the overrides applied, and those that cannot be applied."""
    findings: list[Finding] = []
    for override in overrides:
        path = current_path(override.path, run)
        if path[0] not in old_keys_beside_config(run):
            path = proper_path(path, run)
        try:
            experiment = _with_value_at(experiment, path, override.value)
        except LookupError:
            message = f"{dotted(path[:-1])} is not a mapping here, so {path[-1]} cannot be set in it"
            findings.append(Finding(override.value.place, message))
    return experiment, tuple(findings)


def _with_value_at(node: Node, path: KeyName, value: Node) -> Node:
    """Return ``node`` with ``value`` at ``path``, in new mappings where needed; raises LookupError at other values."""
    if not path:
        return value
    entries = dict(node.entries())
    if (node.value is not None and not isinstance(node.value, Mapping)) or GRID in entries:
        raise LookupError(path[0])
    below = entries.get(path[0], Node({}, value.place, value.place))
    entries[path[0]] = _with_value_at(below, path[1:], value)
    return node.with_value(entries)
