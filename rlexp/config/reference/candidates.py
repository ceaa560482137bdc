"""What a word on the command line can become, or means: the keys below a group, and values that have names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.key_table import Key, KeyName, key_table
from rlexp.config.keys.metrics import METRICS, STOP_METRICS
from rlexp.config.reference.explain import (
    KeyReference,
    NamedValue,
    find_keys,
    first_sentence,
    key_paths,
    key_reference,
    named_values,
)
from rlexp.config.reference.hints import REPEATS, metric_meant, words_meant

_CHOICES: Final = re.compile(r"one of (.+)")
_SEPARATORS: Final = re.compile(r", | or ")
_CONFIG: Final = "config."
_STOP: Final = "stop."
_LONGEST_MEANING: Final = 60
"""Most characters: typer breaks lines of 80."""
_EXAMPLE: Final = "100000"
_AN_AGENT: Final = "An agent: all its keys."


@dataclass(frozen=True)
class Candidate:
    """A possible completion of a word."""

    text: str
    meaning: str = ""
    """One sentence, or its beginning."""


def overrides_from(typed: str, agents: Iterable[str] = ()) -> list[Candidate]:
    """Return the completions of an override that begins with ``typed``: ``config.`` or ``lr=`` and so on.

    ``agents``: names that ``find_agent`` returned; if empty, the keys of all our agents. There is a single candidate
        only if it completes the word, as a shell then adds a space. So one group alone becomes its keys, and one key
        alone becomes two candidates, with a value.
    """
    keys = _keys(agents)
    dotted, equals, _ = typed.partition("=")
    if equals:
        return [each for each in _with_values(keys, dotted) if each.text.startswith(typed)]
    while True:
        found = _next_level(keys, typed)
        if len(found) != 1:
            return found
        if not found[0].text.endswith("."):
            return _with_values(keys, found[0].text.removesuffix("="))
        typed = found[0].text


def explained_from(typed: str) -> list[Candidate]:
    """Return words of ``rlexp explain`` that begin with ``typed``: agents, keys by name or path, metrics, values."""
    named: dict[str, KeyName | NamedValue | None] = dict.fromkeys(AGENTS)
    for path in key_paths():
        named.setdefault(path[-1], path)
        named.setdefault(".".join(path), path)
    for value in named_values():
        named.setdefault(value.name, value)
    return [Candidate(name, _explained(each)) for name, each in named.items() if name.startswith(typed)]


def _explained(named: KeyName | NamedValue | None) -> str:
    if named is None:
        return _AN_AGENT
    return _sentence(named.meaning if isinstance(named, NamedValue) else key_reference(named).meaning)


def _keys(agents: Iterable[str]) -> dict[str, Key | None]:
    """Return settable keys by dotted path; keys of ``config`` also without it. None: a metric of ``stop``."""
    wanted = set(agents)
    runs = [*(run for run in AGENTS if run in wanted), *sorted(wanted - AGENTS.keys())] or list(AGENTS)
    keys: dict[str, Key | None] = {}
    for run in runs:
        groups = {path[:-1] for path in key_table(run)} | {("stop",)}
        leaves = {path: key for path, key in key_table(run).items() if path not in groups}
        keys = {**{".".join(path): key for path, key in leaves.items()}, **keys}
    keys |= dict.fromkeys((f"{_STOP}{metric}" for metric in STOP_METRICS), None)
    return keys | {dotted.removeprefix(_CONFIG): key for dotted, key in keys.items() if dotted.startswith(_CONFIG)}


def _next_level(keys: Mapping[str, Key | None], typed: str) -> list[Candidate]:
    """Return the keys that begin with ``typed``, to the next dot; short keys of ``config`` only if it is not empty."""
    found: dict[str, Candidate] = {}
    for dotted, key in keys.items():
        is_short = key is not None and dotted != ".".join(key.path)
        if not dotted.startswith(typed) or (is_short and not typed):
            continue
        level, dot, _ = dotted[len(typed) :].partition(".")
        text = f"{typed}{level}{dot or '='}"
        found.setdefault(text, Candidate(text, "" if dot else _meaning(dotted, key)))
    return list(found.values())


def _with_values(keys: Mapping[str, Key | None], dotted: str) -> list[Candidate]:
    """Return a key with its default, and with each value that has a name; a metric with an example."""
    if dotted not in keys:
        return []
    key = keys[dotted]
    values = {"": _meaning(dotted, key)} | ({_EXAMPLE: "for example"} if key is None else _values(key))
    return [Candidate(f"{dotted}={value}", meaning) for value, meaning in values.items()]


def _values(key: Key) -> dict[str, str]:
    default = _as_typed(key.default)
    return dict.fromkeys(_named(key), "") | ({} if key.required else {default: "default"})


def _meaning(dotted: str, key: Key | None) -> str:
    if key is not None:
        return _sentence(key.meaning)
    metric = METRICS.get(dotted.removeprefix(_STOP))
    return _sentence(metric.meaning) if metric else ""


def _as_typed(default: object) -> str:
    text = json.dumps(default, default=str, separators=(",", ":"))
    return text.strip('"')


def _named(key: Key) -> Iterator[str]:
    choices = _CHOICES.search(key.expects)
    if choices:
        yield from _SEPARATORS.split(choices[1])
    elif "true or false" in key.expects:
        yield from ("true", "false")


def _sentence(text: str) -> str:
    """Return the beginning of a text as one line, as some shells take a second line for a word to complete."""
    first = first_sentence(text)
    return first if len(first) <= _LONGEST_MEANING else f"{first[: _LONGEST_MEANING - 1].rstrip()}…"


def override_meant(name: str, value: str | None = None) -> str | None:
    """Return an override for a key by any of its names, or by what other libraries call it: ``lr=0.001``.

    Without a value it has an example of one. None: there is no such key.
    """
    if name in REPEATS:
        return f"num_seeds={value or 3}"
    if name == "stop" and value is not None and "=" in value:
        metric, _, number = value.partition("=")
        return f"stop.{metric_meant(metric) or metric}={number}"
    if name == "device":
        return f"num_gpus={0 if value == 'cpu' else 1}"
    key = _key_meant(name)
    if key is None:
        stop = metric_meant(name)
        return f"stop.{stop}={value or _EXAMPLE}" if stop else None
    part = "." if value is not None and re.match(r"\w+=", value) else "="  # --env-config length=5
    return f"{key.dotted.removeprefix(_CONFIG)}{part}{_example_value(key) if value is None else value}"


def _key_meant(name: str) -> KeyReference | None:
    own, *meant = ([key for key in find_keys(word) if not key.is_group] for word in (name, *words_meant(name)))
    found = [keys[0] for keys in meant if keys]
    if own and (
        not found or any(key.dotted.endswith(f".{name}") for key in own)
    ):  # an old spelling of one agent is rarely meant
        return own[0]
    return max(found, key=lambda key: len(key.keys), default=None)  # the agent is not known here


def _example_value(key: KeyReference) -> str:
    """Return a value that changes something: the default, unless that is nothing, false or 0."""
    default = next(iter(key.defaults.values()), None)
    if isinstance(default, bool):
        return "false" if default else "true"
    if isinstance(default, int | float):
        return f"{default or 1:g}"
    return default if isinstance(default, str) and default else "VALUE"
