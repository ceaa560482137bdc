"""What every page tells its reader to type, without running it: fences of a known kind, commands, options and links.

``make docs-test`` runs the blocks. What is skipped there, for want of a cluster or a server, is looked at here.

How a recording of a terminal becomes a picture: what its screen shows, and when the picture shows it.
"""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.main import get_command

import rlexp
from rlexp.cli import app
from rlexp.commands.command import HELP_OPTIONS
from tests.pages.__main__ import all_pages
from tests.pages.blocks import PARSED, RUN, SHOWN, Block, blocks_of
from tests.pages.page_folder import REPOSITORY
from tests.pages.peers_chart import PICTURE, drawn_chart, groups_of
from tests.pages.recording import Frame, Screen, moving_svg, record

PAGES = all_pages()
TYPED = re.compile(r"(?:^|; |&& |-- |\bthen |^else )(rlexp .*)$")
END_OF_COMMAND = re.compile(r" +(?:[|;]|&&|[12]?>|&$)")
INLINE = re.compile(r"`(rlexp [^`\n]+)`")
OPTION = re.compile(r"(?<!\S)--[a-z][a-z-]*")
MAKE = re.compile(r"(?:^|`)make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#?([^)\s]*)\)")
CALLS = ("rlexp.join", "rlexp.submit")


def blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        yield from (block for block in blocks_of(page) if block.language == language)


def typed_commands() -> Iterator[tuple[str, ...]]:
    for block in blocks("bash"):
        for line in block.text.replace("\\\n", "").splitlines():
            if typed := TYPED.search(line):
                yield tuple(shlex.split(END_OF_COMMAND.split(typed[1])[0], comments=True))
    for block in blocks("yaml"):
        yield from commands_in(list(yaml.safe_load_all(block.text)))


def commands_in(node: Any) -> Iterator[tuple[str, ...]]:
    """Yield each ``command: [rlexp, …]`` of a manifest."""
    if isinstance(node, dict):
        command = node.get("command")
        if isinstance(command, list) and command[0] == "rlexp":
            yield tuple(command)
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from commands_in(child)


@cache
def command_line() -> Any:
    return get_command(app)


def command_of(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return the command that ``words`` begin with, and its arguments."""
    command: Any = command_line()
    context = typer.Context(command, **HELP_OPTIONS)
    rest = list(words[1:])
    while rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        command, rest = command.get_command(context, rest[0]), rest[1:]
        assert command is not None, words
    return command, rest


TYPED_COMMANDS = sorted(set(typed_commands()))
COMMANDS = [words for words in TYPED_COMMANDS if not words[1].startswith("-")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fences_are_of_a_known_kind(page: Path) -> None:
    unknown = [f"{block.place}: {block.language!r}" for block in blocks_of(page) if not known_kind(block)]
    assert not unknown, f"docs-test runs, parses or shows blocks of other kinds: {sorted(RUN | PARSED | SHOWN)}"


def known_kind(block: Block) -> bool:
    return bool(block.directions.file) or block.language in RUN | PARSED | SHOWN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_name_the_files_that_they_show(page: Path) -> None:
    """A reader does not see the comment that says under which name a block is saved."""
    lines, before, unnamed = page.read_text(encoding="utf-8").splitlines(), 0, []
    for block in blocks_of(page):
        text = "\n".join(line for line in lines[before : block.line - 1] if not line.lstrip().startswith("<!--"))
        if block.directions.file and f"`{block.directions.file}`" not in text:
            unnamed.append(f"{block.place}: {block.directions.file}")
        before = block.line + block.text.count("\n")
    assert not unnamed, "say in the sentence before the block what the file is called"


def test_chart_of_the_readme_is_that_of_its_page() -> None:
    """`make pictures PICTURES=peers` draws it again."""
    assert PICTURE.read_text(encoding="utf-8") == drawn_chart()


def test_figures_of_the_readme_are_those_of_a_page() -> None:
    readme = without_blocks(REPOSITORY / "README.md")
    described = re.search(r'peers.svg" alt="([^"]*)"', readme)
    measured = (REPOSITORY / "docs/ppo.md").read_text(encoding="utf-8")
    figures = re.findall(r"\d+\.\d+", described[1]) if described else []
    assert figures
    assert not [figure for figure in figures if f"| {figure} |" not in measured]


def test_readme_is_read_within_a_minute() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


def test_chart_needs_every_program() -> None:
    with pytest.raises(ValueError, match=r"CartPole.*the table has rlexp run"):
        groups_of("| CartPole-v1 to 475, medians of five seeds | seconds |\n|---|---|\n| `rlexp run FILE` | 4.4 |\n\n")


def test_files_taken_are_counted_once() -> None:
    """The README's claim about files for RLlib is that of the table in its page."""
    claim = re.search(r"of (\d+) published ones (\d+) ", (REPOSITORY / "README.md").read_text(encoding="utf-8"))
    page = (REPOSITORY / "docs/from-rllib.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?:DQN|APEX|PPO|several[^|]*|others[^|]*) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert claim
    taken, files = (sum(map(int, column)) for column in zip(*rows, strict=True))
    assert (files, taken) == (int(claim[1]), int(claim[2]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_output_is_no_place_for_commands(page: Path) -> None:
    shown = [block for block in blocks_of(page) if block.language == "text" and "─▶" not in block.text]
    hidden = [block.place for block in shown if block.text.startswith(("rlexp ", "pip ", "make ", "$ "))]
    assert not hidden, "commands in blocks of output are never run"


def test_commands_were_found() -> None:
    names = {words[1] for words in COMMANDS}
    assert names >= {"run", "sweep", "evaluate", "compare", "logs", "check", "join", "submit", "tasks", "board"}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_of_pages_parse(words: tuple[str, ...]) -> None:
    command, arguments = command_of(words)
    command.make_context(words[1], arguments)  # raises what it would print


def test_options_of_the_program_exist() -> None:
    """They are not parsed: ``--install-completion`` would then change the configuration of this user's shell."""
    known = {option for parameter in command_line().params for option in parameter.opts}
    typed = {option for words in TYPED_COMMANDS if words[1].startswith("-") for option in words[1:]}
    assert typed
    assert known >= typed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_options_in_sentences_exist(page: Path) -> None:
    for text in INLINE.findall(page.read_text(encoding="utf-8")):
        command, _ = command_of(tuple(text.split()))
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert known.issuperset(OPTION.findall(text)), f"{page.name}: {text}"


def test_torch_is_the_version_of_the_constraints() -> None:
    """With another one the next line of the page, which has the constraints, would install torch again, with CUDA."""
    tested = next(line for line in (REPOSITORY / "constraints.txt").read_text().split() if line.startswith("torch=="))
    named = {name for page in PAGES for name in re.findall(r"torch==[\w.]+", page.read_text(encoding="utf-8"))}
    assert named == {tested}


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {
        name for page in PAGES for names in MAKE.findall(page.read_text(encoding="utf-8")) for name in names.split()
    }
    assert "docs-test" in targets
    assert named <= targets


def test_calls_of_pages_can_be_made() -> None:
    calls = [
        node
        for block in blocks("python")
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS
    ]
    assert calls
    for call in calls:
        function = getattr(rlexp, ast.unparse(call.func).removeprefix("rlexp."))
        inspect.signature(function).bind(*call.args, **{str(each.arg): each.value for each in call.keywords})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for name, heading in LINK.findall(without_blocks(page)):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {name}"
        assert not heading or heading in headings(target), f"{page.name}: {name}#{heading}"


@cache
def headings(page: Path) -> set[str]:
    """Return the names that GitHub, and the site as it is set up, give to a page's headings."""
    titles = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def without_blocks(page: Path) -> str:
    return re.sub(r"^( *)(`{3,}).*?^\1\2$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_screen_erases_lines_as_the_live_display_does() -> None:
    screen = Screen(height=3)
    screen.write("title\r\n\x1b[1mbold\x1b[0m\r\n")
    screen.write("\x1b[?25l\r\x1b[2K\x1b[1A\r\x1b[2Knew")
    assert screen.shown == ("title", "new", "")


def test_screen_shows_its_last_rows() -> None:
    screen = Screen(height=2)
    screen.write("a\r\nb\r\nc")
    assert screen.shown == ("b", "c")


def test_screen_refuses_codes_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"ESC\[5C"):
        Screen(height=2).write("\x1b[5C")


def test_record_has_each_picture_with_its_time(tmp_path: Path) -> None:
    program = "import os, time; print(*os.get_terminal_size()); time.sleep(0.8); print('zwei ε')"
    frames = record([sys.executable, "-c", program], str(tmp_path), {}, 70, 9)
    texts = ["\n".join(frame.rows).rstrip() for frame in frames]
    assert "70 9" in texts
    assert texts[-1] == "70 9\nzwei ε"
    first = next(frame for frame, text in zip(frames, texts, strict=True) if text == "70 9")
    assert frames[-1].at_s - first.at_s >= 0.1


def test_record_of_a_command_that_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ended with 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"], str(tmp_path), {}, 70, 9)


def test_svg_is_well_formed_and_loads_nothing() -> None:
    svg = moving_svg([(Frame(0, ("\x1b[32mgo\x1b[0m",)), 1.0), (Frame(1, ("a & b", "c")), 3.0)], "title", 40)
    ET.fromstring(svg)
    assert not re.search(r"url\(\"?http", svg)
    assert "0% { visibility: hidden } 25.00% { visibility: visible } 100.00% { visibility: hidden }" in svg
    assert "#p0 { visibility: visible }" in svg  # without motion: the last but one
