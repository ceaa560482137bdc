"""What pages and docstrings say about the code is there: rooms, files, names, and what packages may rely on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.house.source_tree import MODULES, PACKAGE, ROOT
from tests.house.test_floors import FLOORS, FLOORS_WITHIN, OTHERS
from tests.pages.reference import PAGES as REFERENCE

PAGES = {path.relative_to(ROOT).as_posix(): path for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
ROOMS = "|".join(sorted({*FLOORS} - {"__init__"} | {"rlexp", "tests"}))
FILE = re.compile(rf"(?<![\w./-])((?:{ROOMS})(?:/[a-z_0-9]+)+(?:\.py)?|[a-z_]+(?:/[a-z_0-9]+)+\.py)(?![\w./-])")
"""A path as pages write it, from ``rlexp`` or the top of the repository on; of a room, the ending may be left out."""
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def missing(text: str) -> Iterator[str]:
    """Yield the paths of source files in a text that do not exist."""
    for path in FILE.findall(text):
        places = [place / path for place in (PACKAGE, ROOT)]
        if not any(place.exists() or place.with_suffix(".py").exists() for place in places):
            yield path


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name: str) -> None:
    assert not list(missing("\n".join(re.findall(r"`([^`\n]+)`", FENCE.sub("", TEXTS[name])))))


def test_no_two_files_of_tests_have_one_name() -> None:
    """Such a pair passes file by file, and ends a whole run with an error: pytest imports them by their name alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [name for name, number in names.items() if number > 1]


def test_files_in_drawings_of_the_architecture_exist() -> None:
    drawings = [block for block in FENCE.findall(TEXTS["docs/architecture.md"]) if "─▶" in block]
    assert len(drawings) == 3
    assert not list(missing("\n".join(drawings)))


def test_files_that_docstrings_name_exist() -> None:
    texts = {module: path.read_text(encoding="utf-8") for module, path in MODULES.items()}
    named = {module: re.findall(r"``([\w/]+\.py)``", text) for module, text in texts.items()}
    gone = {module: list(missing("\n".join(paths))) for module, paths in named.items()}
    assert not any(gone.values()), gone


def test_rooms_are_drawn_on_their_floors() -> None:
    (drawing,) = (block for block in FENCE.findall(TEXTS["docs/architecture.md"]) if block.startswith("```text\n14"))
    drawn: dict[str, int] = {}
    floor = 0
    for line in drawing.splitlines()[1:-1]:
        floor = int(line[:2].strip() or floor)
        words = line[4:].split("  ")[0].split(" · ")
        drawn |= dict.fromkeys((word.strip() for word in words), floor)
    assert drawn == FLOORS


@pytest.mark.parametrize("room", ["config", "board", "agents"])
def test_order_within_a_room_is_that_of_its_floors(room: str) -> None:
    page = " ".join(TEXTS["docs/architecture.md"].split())
    order = re.search(rf"[Ww]ithin `{room}`(?: the order is|:) (.+?)(?:;|\. )", page)
    assert order is not None
    drawn = [set(re.findall(r"`(\w+)`", part)) or {OTHERS} for part in order[1].split(" → ")]
    floors = FLOORS_WITHIN[room]
    assert drawn == [
        {name for name in floors if floors[name] == floor} for floor in sorted({*floors.values()}, reverse=True)
    ]


@pytest.mark.parametrize("name", ["docs/architecture.md", "docs/decisions.md"])
def test_names_on_pages_about_the_code_are_in_the_code(name: str) -> None:
    words = {word for path in MODULES.values() for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    drawings = "\n".join(block for block in FENCE.findall(TEXTS[name]) if "─▶" in block)
    named = re.findall(r"`([A-Za-z_][\w.]+)(?:\(.*?\))?`", FENCE.sub("", TEXTS[name]))
    named += re.findall(r"\b(?:[A-Z]+[a-z]+){2,}(?:\.\w+)?|\b_\w+", drawings)
    assert len(named) > 20
    assert not [each for each in named if not {*re.findall(r"\w{3,}", each)} <= words | {"NAME"}]


def test_every_page_is_in_the_nav() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    written = set(re.findall(r"(?<=reference/)[\w-]+\.md", nav))
    assert written == set(REFERENCE)
    assert set(re.findall(r"[\w-]+\.md", nav)) - written == {
        Path(name).name for name in PAGES if name.startswith("docs/")
    }


def test_what_a_package_may_rely_on_can_be_imported() -> None:
    section = TEXTS["docs/own-agents.md"].partition("## What a package may rely on")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 5
    for what, where in rows:
        modules = re.findall(r"`([\w.]+)`", where)
        names = [name for name in re.findall(r"`([A-Z]\w+)`", what) if not name.isupper()]
        found = [import_module(module) for module in modules]
        assert all(any(hasattr(module, name) for module in found) for name in names), what
