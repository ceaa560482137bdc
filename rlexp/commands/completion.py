"""What shells complete: keys after ``-o`` and ``explain``, agents, envs, experiment files, and directories of runs.

A shell starts ``rlexp`` for each press of the tab key, so nothing here loads torch or Ray, or reads more than it shows;
most commands complete nothing, and do not load the keys for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from rlexp.commands.command import DEFAULT_OUT
from rlexp.errors import UsageError
from rlexp.files import open_regular

if TYPE_CHECKING:
    from rlexp.config.reference.candidates import Candidate

_AGENT_LINE: Final = re.compile(r"^\s*[\"']?(?:run|algo)[\"']?\s*:\s*[\"']?([\w.-]+)", re.MULTILINE)
_SUFFIXES: Final = (".yaml", ".yml")
_MOST_BYTES: Final = 1 << 20
"""Bytes of an experiment file that are read at most to find the names of its agents."""
_FILE_PARAMETERS: Final = ("files", "file")

Completions = Sequence[str | tuple[str, str]]
"""Words, or words and what each means."""


def complete_override(ctx: typer.Context, incomplete: str) -> Completions:
    """Complete the value of ``-o``: keys of the agents in the files that stand before it."""
    key = _key_before_value()
    if key is None:
        return _shown(_overrides(ctx, incomplete))
    values = _overrides(ctx, f"{key}{incomplete}")
    return _shown(replace(each, text=each.text.removeprefix(key)) for each in values if each.text != key)


def complete_name(incomplete: str) -> Completions:
    """Complete what ``explain`` explains."""
    from rlexp.config.reference.candidates import explained_from

    return _shown(explained_from(incomplete))


def complete_example(incomplete: str) -> Completions:
    """Complete the name of an example."""
    from rlexp.config.examples import examples

    return [(each.name, each.task.replace("[", "\\[")) for each in examples() if each.name.startswith(incomplete)]


def complete_run(ctx: typer.Context, incomplete: str) -> Completions:
    """Complete the directory of a run, and those in one: its trials and their checkpoints."""
    from rlexp.compare.run_listing import run_directories

    out = Path(ctx.params.get("out") or os.environ.get("RLEXP_OUT") or DEFAULT_OUT)
    runs = [str(run) for run in run_directories(out)]
    if any(incomplete.startswith(f"{run}/") for run in runs):
        return _paths(incomplete, suffixes=())
    return [run for run in runs if run.startswith(incomplete)]


def complete_agent(incomplete: str) -> Completions:
    """Complete the name of an agent, in the case in which it is typed."""
    from rlexp.config.keys.agents import AGENTS, agents_of_packages

    begun = incomplete.lower()
    names = [name for name in (*AGENTS, *agents_of_packages()) if name.lower().startswith(begun)]
    return [name.lower() if incomplete and incomplete.islower() else name for name in names]


def complete_env(incomplete: str) -> Completions:
    """Complete the id of an env: Gymnasium's ids, and the envs of examples."""
    from rlexp.config.examples import examples
    from rlexp.config.keys.env_ids import GYMNASIUM_IDS

    ids = GYMNASIUM_IDS.union(env for example in examples() for env in example.envs)
    return sorted(env for env in ids if env.startswith(incomplete))


def complete_file(ctx: typer.Context, incomplete: str) -> Completions:
    """Complete an experiment file; after the first one, an override as well."""
    if _key_before_value() is not None:
        return complete_override(ctx, incomplete)
    from rlexp.config.reference.candidates import Candidate

    files = [Candidate(path) for path in _paths(incomplete, _SUFFIXES)]
    is_behind_a_file = incomplete and _files_of(ctx)
    return _shown([*files, *_overrides(ctx, incomplete)] if is_behind_a_file else files)


def _overrides(ctx: typer.Context, incomplete: str) -> list[Candidate]:
    from rlexp.config.reference.candidates import overrides_from

    algo = ctx.params.get("algo")
    named = _usable_agent(algo) if algo else None  # an unknown name is looked for in all installed packages
    return overrides_from(incomplete, _agents_in(_files_of(ctx)) if named is None else {named})


def _key_before_value() -> str | None:
    """Return ``KEY=`` when bash completes its value, as ``KEY=VALUE`` is three words there; None elsewhere."""
    words = os.environ.get("COMP_WORDS", "").split()[: int(os.environ.get("COMP_CWORD", "0")) + 1]
    for equals in (-1, -2):
        if len(words) > -equals and words[equals] == "=":
            return f"{words[equals - 1]}="
    return None


def _shown(candidates: Iterable[Candidate]) -> Completions:
    # rich, which typer prints them with, takes words in brackets for its own.
    return [(each.text, each.meaning.replace("[", "\\[")) for each in candidates]


def _files_of(ctx: typer.Context) -> list[Path]:
    """Return the files that stand on the command line."""
    given = [ctx.params.get(name) for name in _FILE_PARAMETERS]
    paths = [path for each in given for path in (each if isinstance(each, list | tuple) else [each])]
    return [Path(path) for path in paths if path]


def _agents_in(files: Iterable[Path]) -> set[str]:
    """Return the agents that files name, also agents of packages; none if no name can be used."""
    names: set[str] = set()
    for file in files:
        try:
            with open_regular(file, None) as content:
                text = content.read(_MOST_BYTES).decode(errors="replace")
            names |= set(_AGENT_LINE.findall(text))
        except OSError:
            continue
    return {agent for agent in map(_usable_agent, names) if agent is not None}


def _usable_agent(name: str) -> str | None:
    """Return the agent of a name in any case; None if there is none, or the agent's package cannot be used."""
    from rlexp.config.keys.agents import experiment_class, find_agent

    agent = find_agent(name)
    try:
        if agent is not None:
            experiment_class(agent)
    except UsageError:
        return None
    return agent


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the directories, and files with ``suffixes``, that begin with ``incomplete``.

    A shell adds a space after a single result: so a single directory is replaced by its contents.
    """
    folder, _, begun = incomplete.rpartition("/")
    start = f"{folder}/" if "/" in incomplete else ""
    found = sorted(f"{start}{name}" for name in _entries(Path(start or "."), begun, suffixes))
    is_directory = len(found) == 1 and found[0].endswith("/")
    return (_paths(found[0], suffixes) or found) if is_directory else found


def _entries(folder: Path, begun: str, suffixes: tuple[str, ...]) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
            continue
        if entry.is_dir():
            yield f"{entry.name}/"
        elif entry.name.endswith(suffixes):
            yield entry.name
