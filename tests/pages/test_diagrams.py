"""The diagrams of the pages are drawn from their text, and nothing in them is wider than its box; films are small."""

from __future__ import annotations

import re

import pytest

from tests.pages.diagrams import DIAGRAMS, IMAGES, Box, Diagram
from tests.pages.page_folder import REPOSITORY

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
