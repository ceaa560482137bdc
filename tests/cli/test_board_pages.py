"""What the pages about boards tell their readers to type: commands and options that exist, calls that can be made."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

import rlexp
from rlexp.cli import app

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("board*.md"))
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TYPED = re.compile(r"(?:^|; )(rlexp .*)$")
BEFORE_ITS_EXPLANATION = re.compile(r" {2,}")
INLINE = re.compile(r"`(rlexp [^`\n]+)`")
OPTION = re.compile(r"--[a-z][a-z-]*")


def blocks(language: str) -> Iterator[str]:
    for page in PAGES:
        yield from (text for name, text in FENCED.findall(page.read_text(encoding="utf-8")) if name == language)


def typed_commands() -> Iterator[list[str]]:
    for line in "".join(blocks("")).splitlines():
        if typed := TYPED.search(line):
            yield shlex.split(BEFORE_ITS_EXPLANATION.split(typed[1])[0], comments=True)
    for block in blocks("yaml"):
        yield from commands_in(list(yaml.safe_load_all(block)))


def commands_in(node: Any) -> Iterator[list[str]]:
    """Yield each ``command: [rlexp, …]`` of a manifest."""
    if isinstance(node, dict):
        command = node.get("command")
        if isinstance(command, list) and command[0] == "rlexp":
            yield command
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from commands_in(child)


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """Return the command that ``words`` begin with, and its arguments."""
    command: Any = get_command(app)
    context = typer.Context(command)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        command, rest = command.get_command(context, rest[0]), rest[1:]
        assert command is not None, words
    return command, rest


COMMANDS = sorted({tuple(words) for words in typed_commands()})


def test_pages_have_commands() -> None:
    names = {words[1] for words in COMMANDS}
    assert names >= {"run", "join", "submit", "tasks", "cancel", "board"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_of_pages_parse(words: tuple[str, ...]) -> None:
    command, arguments = command_of(list(words))
    command.make_context(words[1], arguments)  # raises what it would print


def test_options_in_sentences_exist() -> None:
    for page in PAGES:
        for text in INLINE.findall(page.read_text(encoding="utf-8")):
            command, _ = command_of(text.split())
            known = {option for parameter in command.params for option in parameter.opts}
            assert known.issuperset(OPTION.findall(text)), f"{page.name}: {text}"


def test_calls_of_pages_can_be_made() -> None:
    calls = [
        node
        for block in blocks("python")
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("rlexp.join", "rlexp.submit")
    ]
    assert calls
    for call in calls:
        function = getattr(rlexp, ast.unparse(call.func).removeprefix("rlexp."))
        inspect.signature(function).bind(*call.args, **{str(each.arg): each.value for each in call.keywords})


def test_links_lead_to_headings() -> None:
    for page in PAGES:
        for name, heading in re.findall(r"\]\(([\w-]+\.md)?#?([\w-]*)\)", page.read_text(encoding="utf-8")):
            target = (DOCS / name if name else page).read_text(encoding="utf-8")
            assert not heading or heading in headings(target), f"{page.name}: {name}#{heading}"


def headings(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
