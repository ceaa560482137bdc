"""The experiments that come with rlexp, and what the comment at the head of each file says about it.

A head is the comment lines before the first experiment. Its first line names the task. Lines of the form
``# score: …`` are its facts: ``score``, ``steps``, ``time``, ``seeds``, ``machine`` and ``date`` of a training that
somebody saw, or ``not seen to learn yet``. A fact goes on in lines that begin with ``#   ``. Completion reads all
files at each press of the tab key, so they are searched as text and not parsed as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Final

MEASURED: Final = ("score", "steps", "time", "seeds", "machine", "date")
"""Facts of a head about a training that somebody saw."""
UNSEEN: Final = "not seen to learn yet"
"""The fact of a head that says why there are no others."""
NOT_RECORDED: Final = "not recorded"
"""The fact of a head that nobody has written down while the others were measured."""
_COMPANIONS: Final = "with"
"""The fact of a head that names files beside it which the experiment needs."""

_FACT: Final = re.compile(rf"# ({'|'.join((*MEASURED, UNSEEN, _COMPANIONS))}): +(\S.*)")
_MORE: Final = re.compile(r"#  +(\S.*)")
_AGENT: Final = re.compile(r"^  run: *(\w+)", re.MULTILINE)
_ENV: Final = re.compile(r"^  env:(?: *\n    grid_search:)? *(\[.*?\]|[^\s#]+)", re.MULTILINE | re.DOTALL)
_SEARCH: Final = re.compile(r"^  search:", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """One experiment file that comes with rlexp."""

    path: Path
    task: str
    """The first line of its head."""
    agents: tuple[str, ...]
    """In the order of the file, each once; names as in ``run``."""
    envs: tuple[str, ...]
    """In the order of the file, each once."""
    is_sweep: bool
    facts: Mapping[str, str]
    """The facts of its head, by name, without ``MEASURED`` if nobody has seen it learn."""

    @property
    def name(self) -> str:
        """Its file without the ending: ``cartpole-ppo``."""
        return self.path.stem

    @property
    def agent(self) -> str:
        """Its agents, separated by commas."""
        return ", ".join(self.agents)

    @property
    def env(self) -> str:
        """Its envs, separated by commas."""
        return ", ".join(self.envs)

    @property
    def unseen(self) -> str | None:
        """Why nobody has seen it learn; None if somebody has."""
        return self.facts.get(UNSEEN)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, and those beside it that the experiment needs, such as a module with its env."""
        companions = self.facts.get(_COMPANIONS, "").replace(",", " ").split()
        return (self.path, *(self.path.with_name(name) for name in companions))


def examples_folder() -> Path:
    """Return the folder of the examples: inside an installed package, at the root of a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "experiments"
    return installed if installed.is_dir() else package.parent / "experiments"


@cache
def examples() -> tuple[Example, ...]:
    """Return all examples, by name; none if the folder is missing."""
    return tuple(example_of(path) for path in sorted(examples_folder().glob("*.yaml"), key=lambda path: path.stem))


def example_of(path: Path) -> Example:
    """Read one file."""
    text = path.read_text(encoding="utf-8")
    head = list(takewhile(lambda line: line.startswith("#"), text.splitlines()))
    envs = ",".join(_ENV.findall(text)).translate(str.maketrans("", "", "[]'\" \n")).split(",")
    return Example(
        path=path,
        task=head[0].strip("# .") if head else "",
        agents=tuple(dict.fromkeys(_AGENT.findall(text))),
        envs=tuple(dict.fromkeys(env for env in envs if env)),
        is_sweep=_SEARCH.search(text) is not None,
        facts=_facts(head),
    )


def _facts(head: list[str]) -> dict[str, str]:
    facts: dict[str, str] = {}
    latest = None
    for line in head:
        if fact := _FACT.fullmatch(line):
            latest = fact[1]
            facts[latest] = fact[2].strip()
        elif latest is not None and (more := _MORE.fullmatch(line)):
            facts[latest] += f" {more[1].strip()}"
        else:
            latest = None
    return facts
