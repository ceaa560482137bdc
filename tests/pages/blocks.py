"""The fenced blocks of a page, and what its comments say about running them.

A comment on a line before a fence is about that block, several comments are on several lines::

    <!-- docs-test: with -o stop.timesteps_total=2000 -->   more words for each run, sweep and submit
    <!-- docs-test: exit=2 -->                              the status that the last command ends with
    <!-- docs-test: needs=optuna -->                        a package or program; without it the block is skipped
    <!-- docs-test: file=my_env.py -->                      the block is saved under this name and not run
    <!-- docs-test: skip REASON -->                         the block is not run
    <!-- docs-test: prints -->                              before a text: the last block printed this; … is anything
    <!-- docs-test: background -->                          started, and ended at the page's end
    <!-- docs-test: background until TEXT -->               the same; the page goes on when TEXT was printed
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

RUN = frozenset({"bash", "python"})
PARSED = frozenset({"yaml", "json", "toml"})
SHOWN = frozenset({"text", "diff", "dockerfile", "ini", "jsonc", "lua", "vim"})
"""Output, and files of other programs: nothing here can run or read them."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^`]*)$")
_COMMENT = re.compile(r"^ *<!-- docs-test: (?P<words>.*?) *-->$")
_OTHER_COMMENT = re.compile(r"^ *<!--.*-->$")


class PageError(Exception):
    """A page is written in a way that its blocks cannot be told apart, or a comment about one is unknown."""


@dataclass(frozen=True)
class Directions:
    """What the comments before a block say about it."""

    extra_words: tuple[str, ...] = ()
    exit_status: int = 0
    needs: tuple[str, ...] = ()
    file: str = ""
    skip: str = ""
    prints: bool = False
    background: bool = False
    until: str = ""


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is the page's line of the first line of ``text``, from 1."""

    page: Path
    line: int
    language: str
    text: str
    directions: Directions = field(default_factory=Directions)

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the page's blocks in order; raises PageError."""
    return list(_blocks(page, page.read_text(encoding="utf-8").splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    directions = Directions()
    numbered = iter(enumerate(lines, start=1))
    for number, line in numbered:
        if comment := _COMMENT.match(line):
            directions = _direct(directions, comment["words"], f"{page.name}:{number}")
        elif fence := _FENCE.match(line):
            text = _text(numbered, fence, f"{page.name}:{number}")
            yield Block(page, number + 1, fence["language"].strip(), text, directions)
            directions = Directions()
        elif directions != Directions() and not _OTHER_COMMENT.match(line):
            raise PageError(f"{page.name}:{number}: a docs-test comment must be on the lines before a fence")


def _text(numbered: Iterator[tuple[int, str]], fence: re.Match[str], place: str) -> str:
    """Read the lines up to the closing fence, without the indent of the fence."""
    inside: list[str] = []
    for _, line in numbered:
        if line.strip() == fence["ticks"]:
            return "".join(f"{text}\n" for text in inside)
        inside.append(line.removeprefix(fence["indent"]))
    raise PageError(f"{place}: the fence is never closed")


def _direct(directions: Directions, words: str, place: str) -> Directions:
    """Return the directions with one more comment."""
    name, _, rest = words.partition(" ")
    match name.partition("="):
        case "with", "", "" if rest:
            return replace(directions, extra_words=(*directions.extra_words, *shlex.split(rest)))
        case "exit", "=", status if status.isdecimal() and not rest:
            return replace(directions, exit_status=int(status))
        case "needs", "=", what if what and not rest:
            return replace(directions, needs=(*directions.needs, *what.split(",")))
        case "file", "=", file if file and not rest:
            return replace(directions, file=file)
        case "skip", "", "" if rest:
            return replace(directions, skip=rest)
        case "prints", "", "" if not rest:
            return replace(directions, prints=True)
        case "background", "", "" if not rest:
            return replace(directions, background=True)
        case "background", "", "" if rest.startswith("until "):
            return replace(directions, background=True, until=rest.removeprefix("until "))
    raise PageError(f"{place}: unknown docs-test comment: {words}")
