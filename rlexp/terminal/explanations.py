"""Explanations of keys, agents, and of the names that stand for values, 80 columns wide."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from rlexp.config.keys.agents import AGENTS, agents_of_packages, experiment_class, find_agent
from rlexp.config.keys.env_ids import provided_names
from rlexp.config.keys.key_table import key_table
from rlexp.config.reference import explain
from rlexp.config.reference.hints import NOT_HERE
from rlexp.errors import UsageError
from rlexp.terminal.lines import BOLD, painted, visible

_WIDTH = 80
_LABEL_WIDTH = 11
_MOST_FOUND = 8
_MISSPELT = 0.9
"""How alike (difflib's ratio) a word is to the name that it misspells."""


def print_explanation(name: str | None) -> None:
    """Print the meaning of a name, or every key of an agent; raises UsageError for an unknown name."""
    if name is None or name.upper() in AGENTS:
        _print_agent(name.upper() if name else None)
        return
    value, keys = explain.find_named_value(name), explain.find_keys(name)
    if value is None and not keys:
        value = explain.find_metric_by_end(name)
    parts: list[Iterable[str]] = [*([_named(value)] if value else []), *(_explained(key) for key in keys)]
    old = None if parts else explain.find_old_key(name)
    if old is not None:
        parts = [_old(old)]
    packaged = None if parts else find_agent(name)
    if packaged is not None:
        parts = [_packaged(packaged)]
    if not parts:
        parts = [_found(name)]
    print("\n\n".join("\n".join(part) for part in parts))


def _found(text: str) -> Iterator[str]:
    """Yield what has the words of ``text`` in its meaning, a line each; raises UsageError if nothing has."""
    if text.lower() in NOT_HERE:
        raise UsageError(f"nothing is called {text}", NOT_HERE[text.lower()])
    found = explain.search_meanings(text)
    is_misspelt = get_close_matches(text[:100], [each.name for each in found], n=1, cutoff=_MISSPELT)
    if not found or is_misspelt:
        raise UsageError(f"unknown name {text}", _hint(text))
    yield f"nothing is called {visible(text)}; these are about it:"
    width = max(len(each.name) for each in found[:_MOST_FOUND])
    for each in found[:_MOST_FOUND]:
        yield _cut(f"  {each.name:{width}}  {each.sentence}")
    if len(found) > _MOST_FOUND:
        yield f"  and {len(found) - _MOST_FOUND} more"
    yield f"rlexp explain {found[0].name} explains the first"


def _hint(name: str) -> str:
    nearest = explain.nearest_name(name)
    return f"did you mean {nearest}?" if nearest else "rlexp explain, without a name, lists all keys"


def _named(value: explain.NamedValue) -> Iterator[str]:
    yield painted(f"{value.name} ({value.kind})", BOLD, sys.stdout)
    yield from _wrapped(value.meaning, "  ", "  ")
    if value.example:
        yield from _labelled("example", value.example)


def _explained(key: explain.KeyReference) -> Iterator[str]:
    yield painted(key.dotted, BOLD, sys.stdout)
    yield from _wrapped(" ".join(key.meaning.replace("``", "").split()), "  ", "  ")
    if key.is_group:
        yield from _labelled("keys", ", ".join(_keys_of(key)))
    else:
        yield from _labelled("value", key.expects)
        yield from _labelled("default", _defaults(key))
    installed = agents_of_packages() if key.path == ("run",) else ()
    if installed:
        yield from _labelled("others", ", ".join(installed))
    if key.path == ("env",) and provided_names():
        yield from _labelled("others", f"{', '.join(provided_names())}, of installed packages")
    if key.spellings:
        yield from _labelled("also", ", ".join(spelling for spelling in key.spellings))


def _packaged(run: str) -> Iterator[str]:
    """Yield a line for each key of an agent that a package brings, with its default."""
    experiment_class(run)  # raises UsageError if that cannot be used
    keys = [key for key in key_table(run).values() if not key.is_group]
    width = max(len(".".join(key.path)) for key in keys)
    for key in keys:
        name = f"{'.'.join(key.path):{width}} "
        yield from _wrapped("required" if key.required else explain.shown_default(key.default), name, " " * len(name))
    yield f"\nDefaults of {run}. rlexp explain KEY explains a key that {', '.join(AGENTS)} have as well."


def _keys_of(group: explain.KeyReference) -> Iterator[str]:
    start = len(group.path)
    inside = (key.path for key in explain.key_references() if key.path[:start] == group.path)
    yield from (path[-1] for path in inside if len(path) == start + 1)


def _defaults(key: explain.KeyReference) -> str:
    """Return the default; if agents differ, each value with its agents."""
    if key.required:
        return "none, it is required"
    shown = {run: explain.shown_default(default) for run, default in key.defaults.items()}
    if len(set(shown.values())) == 1 and len(shown) < len(AGENTS):
        return f"{next(iter(shown.values()))} ({', '.join(shown)})"
    return explain.by_agents(shown)


def _old(old: explain.OldKey) -> Iterator[str]:
    yield painted(old.dotted, BOLD, sys.stdout)
    yield from _wrapped(f"{old.says}.", "  ", "  ")


def _print_agent(run: str | None) -> None:
    """Print a line for each key, with the default of one agent or of all."""
    runs = [run] if run else list(AGENTS)
    keys = [key for key in explain.key_references() if not key.is_group and any(name in key.defaults for name in runs)]
    width = max(len(key.dotted) for key in keys)
    for key in keys:
        name, required = f"{key.dotted:{width}} ", "required" if key.required else None
        shown = required or (_defaults(key) if run is None else explain.shown_default(key.defaults[run]))
        print("\n".join(_wrapped(shown, name, " " * len(name))))
    end = f"Defaults of {', '.join(runs)}. rlexp explain KEY explains a key."
    print("\n".join(["", *_wrapped(end, "", "")]))


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1].rstrip()}…"


def _labelled(label: str, text: str) -> Sequence[str]:
    return _wrapped(text, f"  {label}:".ljust(_LABEL_WIDTH), " " * _LABEL_WIDTH)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
