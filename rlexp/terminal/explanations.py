"""Explanations of keys and agents, 80 columns wide."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence

from rlexp.config.experiment import AGENTS, RUNNABLE
from rlexp.config.reference import KeyReference, OldKey, find_keys, find_old_key, key_references, nearest_key
from rlexp.config.reference_page import shown_default
from rlexp.errors import UsageError
from rlexp.terminal.paint import BOLD, painted

_WIDTH = 80
_LABEL_WIDTH = 11


def print_explanation(name: str | None) -> None:
    """Print the meaning of a key, or the keys of an agent; raises UsageError for an unknown name."""
    if name is None or name.upper() in AGENTS:
        _print_agent(name.upper() if name else None)
        return
    keys = find_keys(name)
    if keys:
        print("\n\n".join("\n".join(_explained(key)) for key in keys))
        return
    old = find_old_key(name)
    if old is None:
        nearest = nearest_key(name)
        raise UsageError(
            f"unknown key {name}", f"did you mean {nearest}?" if nearest else "rlexp explain lists all keys"
        )
    print("\n".join(_old(old)))


def _explained(key: KeyReference) -> Iterator[str]:
    yield painted(key.dotted, BOLD, sys.stdout)
    yield from _wrapped(" ".join(key.meaning.replace("``", "").split()), "  ", "  ")
    yield from _labelled("value", key.expects)
    if not key.is_group:
        yield from _labelled("default", _defaults(key))
    if key.spellings:
        yield from _labelled("also", ", ".join(spelling for spelling in key.spellings))


def _defaults(key: KeyReference) -> str:
    if key.required:
        return "none; required"
    shown = {run: shown_default(default) for run, default in key.defaults.items()}
    if len(shown) == len(AGENTS) and len(set(shown.values())) == 1:
        return next(iter(shown.values()))
    return ", ".join(f"{default} ({run})" for run, default in shown.items())


def _old(old: OldKey) -> Iterator[str]:
    yield painted(old.dotted, BOLD, sys.stdout)
    yield from _wrapped(f"{old.says}.", "  ", "  ")


def _print_agent(run: str | None) -> None:
    """Print a line for each key, with the default of one agent or of all."""
    runs = [run] if run else list(AGENTS)
    keys = [key for key in key_references() if not key.is_group and any(name in key.defaults for name in runs)]
    width = max(len(key.dotted) for key in keys)
    for key in keys:
        shown = [shown_default(key.defaults[name]) if name in key.defaults else "-" for name in runs]
        defaults = "required" if key.required else "  ".join(dict.fromkeys(shown) if len(set(shown)) == 1 else shown)
        print(
            textwrap.shorten(f"{key.dotted}{chr(0) * (width - len(key.dotted))} {defaults}", _WIDTH).replace(
                chr(0), " "
            )
        )
    if run and run not in RUNNABLE:
        print(f"\nrlexp cannot train {run} yet; it can check and convert its files.")
    print(f"\nDefaults of {', '.join(runs)}. rlexp explain KEY explains a key.")


def _labelled(label: str, text: str) -> Sequence[str]:
    return _wrapped(text, f"  {label}:".ljust(_LABEL_WIDTH), " " * _LABEL_WIDTH)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
