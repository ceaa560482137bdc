"""docs/keys.md, written from the models: ``python -m rlexp.config.reference.page > docs/keys.md``."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlexp.config.keys.agents import AGENTS
from rlexp.config.reference.explain import KeyReference, key_references, shown_default
from rlexp.config.rllib.ages import changed_defaults, kept_defaults
from rlexp.config.rllib.names import absent_keys

BEHAVIOUR_TESTS = Path("tests/behaviour")
"""Where each key has a test that fails if the key is ignored, marked ``@pytest.mark.key("name", ...)``."""

_HEAD = """\
# Keys

Generated from the models by `python -m rlexp.config.reference.page > docs/keys.md`; `rlexp explain KEY` prints the same
in a terminal. Keys under `optimizer` may also be written directly under `config`, and any value may be
`grid_search: [...]`. The last column names a test that fails if the key is ignored.
"""

_DEFAULTS = """\
## Defaults that depend on the age of a file

RLlib changed some of its defaults. If the keys of a file prove that it is of certain releases of RLlib, the keys below
have the default of these releases where the file does not give them; a notice names them, and `rlexp convert` writes
them out. Keys that contradict most others do not count: a notice names each, with its line; `gpu` and the like are left
out, others mean what they meant. The id of an env narrows what keys prove: `Pendulum-v1` is of RLlib 1.6 or later.
Files in rlexp's spelling, files in which more than a third of such keys contradict the others, and files with a key
that only rlexp has use the defaults above. If the releases that a file of RLlib for PPO may be of differ in `gamma`,
`horizon`, `batch_mode`, `observation_filter` or `normalize_actions`, one notice names them. To choose a value yourself,
write the key.

"""


def page(tests: Mapping[str, str]) -> str:
    """Return the page; ``tests`` has the name of a test for each key that has one."""
    keys = [key for key in key_references() if not key.is_group]
    parts = [_HEAD]
    for title, chosen in (
        ("Keys beside `config`", [key for key in keys if key.path[0] != "config"]),
        ("Keys under `config`", [key for key in keys if key.path[0] == "config"]),
    ):
        parts.append(f"## {title}\n\n" + "\n".join(_table(chosen, tests)) + "\n")
    parts.append(_DEFAULTS + "\n".join(_default_table()) + "\n\n" + "\n".join(_kept_table()) + "\n")
    parts.append("## Keys of RLlib that rlexp does not have\n\n" + "\n".join(_absent_table()) + "\n")
    return "\n".join(parts)


def behaviour_tests(directory: Path = BEHAVIOUR_TESTS) -> dict[str, str]:
    """Return the first test of each key, read off the marks in the files below a folder without importing them."""
    tests: dict[str, str] = {}
    for path in sorted(directory.rglob("test_*.py"), key=_depth_and_name):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for key in _marked_keys(node):
                    tests.setdefault(key, f"{path.stem}::{node.name}")
    return tests


def _depth_and_name(path: Path) -> tuple[int, Path]:
    """Sort the files of a folder before those of its folders."""
    return len(path.parts), path


def _marked_keys(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.key":
            yield from (
                word.value for word in mark.args if isinstance(word, ast.Constant) and isinstance(word.value, str)
            )


def _table(keys: list[KeyReference], tests: Mapping[str, str]) -> Iterator[str]:
    yield f"| key | values | {' | '.join(AGENTS)} | meaning | other spellings | test |"
    yield "|" + "---|" * (len(AGENTS) + 5)
    for key in keys:
        name = key.dotted.removeprefix("config.")
        test = tests.get(name) or tests.get(key.path[-1]) or tests.get(key.dotted) or ""
        cells = [f"`{name}`", key.expects, *(_default(key, run) for run in AGENTS), key.meaning]
        cells += [", ".join(f"`{_short(spelling)}`" for spelling in key.spellings), f"`{test}`" if test else ""]
        yield "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _default(key: KeyReference, run: str) -> str:
    if key.required:
        return "required"
    return f"`{shown_default(key.defaults[run])}`" if run in key.defaults else ""


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


if __name__ == "__main__":
    sys.stdout.write(page(behaviour_tests()))
