"""The reference of keys, written from the models, and which keys of RLlib there are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlexp.config.keys.agents import AGENTS
from rlexp.config.reference.explain import KeyReference, key_references, shown_default
from rlexp.config.rllib.ages import changed_defaults, kept_defaults
from rlexp.config.rllib.names import absent_keys

_HEAD = """\
---
hide: [toc]
---

# Keys

`rlexp explain KEY` prints the same in a terminal, and `rlexp explain AGENT` the keys of an agent. Any value can be
`grid_search: [...]`. Keys under `optimizer` can stand directly under `config` too.
"""

_DEFAULTS = """\
## Defaults that depend on the age of a file

RLlib changed some of its defaults. A file whose spelling belongs to certain releases of RLlib gets the defaults of
these releases, for keys that it does not give. A notice names them, and `rlexp convert` writes them out. To choose a
value yourself, write the key.

- The id of an env counts as spelling too: `Pendulum-v1` belongs to RLlib 1.6 or later.
- A key that contradicts most others is not counted. A notice names it, with its line.
- Files in rlexp's spelling get the defaults above. So do files with a key that only rlexp has, and files in which more
  than a third of the keys contradict the others.
- The releases that a PPO file may belong to can differ in `gamma`, `horizon`, `batch_mode`, `observation_filter` or
  `normalize_actions`. One notice names these keys then.

"""


def keys_page() -> str:
    """Return the page."""
    keys = [key for key in key_references() if not key.is_group]
    parts = [_HEAD]
    for title, chosen in (
        ("Keys beside `config`", [key for key in keys if key.path[0] != "config"]),
        ("Keys under `config`", [key for key in keys if key.path[0] == "config"]),
    ):
        parts.append(f"## {title}\n\n" + "\n".join(_table(chosen)) + "\n")
    parts.append(_DEFAULTS + "\n".join(_default_table()) + "\n\n" + "\n".join(_kept_table()) + "\n")
    parts.append("## Keys of RLlib that rlexp does not have\n\n" + "\n".join(_absent_table()) + "\n")
    return "\n".join(parts)


def _table(keys: list[KeyReference]) -> Iterator[str]:
    yield "| key | values | default | meaning | other spellings |"
    yield "|---|---|---|---|---|"
    for key in keys:
        short = {spelling: _short(spelling) for spelling in key.spellings}
        spellings = ", ".join(f"`{spelling if text == key.dotted else text}`" for spelling, text in short.items())
        cells = [f"`{_short(key.dotted)}`", key.expects, _defaults(key), key.meaning.replace("``", "`"), spellings]
        yield "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _defaults(key: KeyReference) -> str:
    """Return the default, or each of the agents that have the key with its own; few keys have several."""
    if key.required:
        return "required"
    shown = {run: f"`{shown_default(value)}`" for run, value in key.defaults.items()}
    if len(set(shown.values())) == 1:
        only = "" if len(shown) == len(AGENTS) else f" ({', '.join(shown)} only)"
        return next(iter(shown.values())) + only
    return ", ".join(f"{run} {text}" for run, text in shown.items())


def _default_table() -> Iterator[str]:
    yield "| key | agents | default, by release of RLlib |"
    yield "|---|---|---|"
    for default in changed_defaults():
        values = []
        for number, (release, value) in enumerate(default.values):
            is_same = default.same_as is not None and number == len(default.values) - 1
            shown = f"that of `{_short('.'.join(default.same_as or ()))}`" if is_same else f"`{shown_default(value)}`"
            values.append(f"from {'.'.join(map(str, release))} on: {shown}")
        beside = f" (with `{_short('.'.join(default.beside))}`)" if default.beside else ""
        agents = ", ".join(default.agents)
        yield f"| `{_short('.'.join(default.path))}`{beside} | {agents} | {'; '.join(values)} |"


def _kept_table() -> Iterator[str]:
    yield "| key whose default is rlexp's in every file | why |"
    yield "|---|---|"
    for kept in kept_defaults():
        yield f"| {', '.join(f'`{_short(key)}`' for key in kept.keys)} | {kept.reason} |"


def _absent_table() -> Iterator[str]:
    reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for absent in (absent for run in AGENTS for absent in absent_keys(run)):
        start = "not supported: " if absent.is_feature else "no effect: "
        reasons[start + absent.reason][_short(".".join(absent.path))] = None
    yield "| what happens | keys |"
    yield "|---|---|"
    for reason, keys in sorted(reasons.items()):
        yield f"| {reason} | {', '.join(f'`{key}`' for key in keys)} |"


def _short(dotted: str) -> str:
    return dotted.removeprefix("config.")
