"""The reference that is written from the code has everything that the code has, and links that lead somewhere.

The diagrams of the pages are drawn from their text, and nothing in them is wider than its box; films are small.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlexp
from rlexp.cli import COMMANDS
from rlexp.config.keys.metrics import METRICS
from rlexp.config.reference.explain import key_references
from rlexp.runs.rows import COLUMNS
from tests.house.source_tree import PACKAGE
from tests.pages.diagrams import DIAGRAMS, IMAGES, Box, Diagram
from tests.pages.page_folder import REPOSITORY
from tests.pages.reference import CLASSES, PAGES, cli_page, keys_page, main, metrics_page, python_page


def names_in_tables(page: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))


def test_every_command_has_a_part_with_its_options() -> None:
    page = cli_page()
    parts = {part.partition("\n")[0]: part for part in page.split("\n## ")[1:]}
    assert {f"rlexp {name}" for name in COMMANDS} < set(parts)
    assert "rlexp board serve" in parts
    assert "| `--out DIR` |" in parts["rlexp run"]
    assert "| `--searcher" in parts["rlexp sweep"]
    assert "| `FILE` |" in parts["rlexp run"]
    assert "| `--track wandb|mlflow|none` |" in parts["rlexp run"]
    assert not re.search(r"<(list\[|path|str)", page)
    assert all(f"{name} [OPTIONS]" in part for name, part in parts.items() if name.startswith("rlexp "))


def test_every_exit_code_is_explained() -> None:
    table = cli_page().partition("## Exit codes")[2]
    assert set(re.findall(r"^\| (\d+) \|", table, re.MULTILINE)) == {*"012345", "129", "130", "141", "143"}


def test_every_key_has_a_row() -> None:
    keys = {key.dotted.removeprefix("config.") for key in key_references() if not key.is_group}
    assert names_in_tables(keys_page()) >= keys


def test_default_of_a_key_is_said_once_where_agents_agree() -> None:
    cells = [line.split(" | ") for line in keys_page().splitlines() if line.startswith("| `")]
    rows = {row[0]: row for row in cells if len(row) == 5}
    assert rows["| `explore`"][2] == "`true`"
    assert rows["| `num_workers`"][2].startswith("DQN `0`, APEX `32`, PPO `2`, ")
    assert rows["| `vf_clip_param`"][2].endswith("(PPO, DDPPO only)")
    assert rows["| `run`"][2] == "required"


def test_every_metric_and_column_has_a_row() -> None:
    assert names_in_tables(metrics_page()) == set(METRICS)
    assert set(COLUMNS) <= set(METRICS)


def test_every_name_of_the_python_page_can_be_imported() -> None:
    page = python_page()
    named = re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)
    assert {f"rlexp.{name}" for name in rlexp.__all__ if name != "__version__"} <= set(named)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), name
    assert all(f"## {title}" in page for title in CLASSES)


@pytest.mark.parametrize("name", PAGES)
def test_pages_link_to_pages_and_headings(name: str) -> None:
    page = PAGES[name]()
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    }
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page)
    for target, heading in links:
        assert target or heading in headings
        assert not target or (REPOSITORY / "docs/reference" / target).resolve().is_file()


def test_main_writes_each_page(tmp_path: Path) -> None:
    main(tmp_path / "reference")
    assert {path.name for path in (tmp_path / "reference").iterdir()} == set(PAGES)


REFERENCE = (REPOSITORY / "docs/reference.md").read_text(encoding="utf-8")


def exit_codes(text: str) -> set[str]:
    cells = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    return {code for cell in cells for code in cell.split(", ")}


def test_page_in_the_repository_has_every_exit_code() -> None:
    assert exit_codes(REFERENCE) == exit_codes(cli_page().partition("## Exit codes")[2])


def test_files_of_a_run_are_named_in_the_code() -> None:
    rows = REFERENCE.partition("## Files of a run")[2].splitlines()[4:]
    names = {name.rpartition("/")[2] for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    fixed = {name.rstrip("*.") for name in names if name}
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert len(fixed) > 8
    assert not [name for name in fixed if name not in code]


LARGEST_FILM = 300_000
"""Bytes of a film."""
WIDEST_LETTER = {"title": 8.2, "small": 6.4}
"""Pixels of an average letter at the sizes of the style, in Chromium with DejaVu Sans, which is wide."""


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_is_that_of_its_text(name: str) -> None:
    assert (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == DIAGRAMS[name].svg(), (
        "python -m tests.pages.diagrams"
    )


@pytest.mark.parametrize("name", DIAGRAMS)
def test_a_picture_is_on_a_page(name: str) -> None:
    pages = (page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs").glob("*.md"))
    assert any(f"](images/{name}.svg)" in page for page in pages)


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=DIAGRAMS)
def test_texts_fit_their_boxes_and_boxes_the_picture(diagram: Diagram) -> None:
    for box in diagram.boxes:
        assert box.x + box.width <= diagram.width, box
        assert box.y + box.height <= diagram.height, box
        texts = [("title", box.title), *(("small", line) for line in box.lines)]
        for kind, text in texts:
            assert len(text) * WIDEST_LETTER[kind] <= box.width, text


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=DIAGRAMS)
def test_boxes_cover_no_other_box(diagram: Diagram) -> None:
    boxes = [box for box in diagram.boxes if box.kind != "group"]
    for number, one in enumerate(boxes):
        assert not any(_overlap(one, other) for other in boxes[number + 1 :]), one


def _overlap(one: Box, other: Box) -> bool:
    across = one.x < other.x + other.width and other.x < one.x + one.width
    return across and one.y < other.y + other.height and other.y < one.y + one.height


@pytest.mark.parametrize("diagram", DIAGRAMS.values(), ids=DIAGRAMS)
def test_a_picture_is_for_light_and_dark_and_for_a_screen_reader(diagram: Diagram) -> None:
    text = diagram.svg()
    assert "prefers-color-scheme: dark" in text
    assert re.search(r"<title>.{40,}</title>", text)


def test_films_are_small_and_on_a_page() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs").glob("*.md"))
    films = list(IMAGES.glob("*.gif"))
    assert films
    assert not [film for film in films if film.stat().st_size > LARGEST_FILM or f"images/{film.name}" not in pages]
