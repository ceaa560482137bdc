"""How a page is read: its fences, and the comments about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.blocks import Block, Directions, PageError, blocks_of


def read(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return blocks_of(page)


def test_block_has_language_text_and_line_of_its_text(tmp_path: Path) -> None:
    (block,) = read(tmp_path, "# Title\n\n```bash\nrlexp ls\n\nrlexp doctor\n```\nmore\n")
    assert (block.language, block.text, block.place) == ("bash", "rlexp ls\n\nrlexp doctor\n", "page.md:4")
    assert block.directions == Directions()


def test_comments_are_about_the_next_block_only(tmp_path: Path) -> None:
    first, second = read(tmp_path, "<!-- docs-test: exit=2 -->\n```bash\nfalse\n```\n```bash\ntrue\n```\n")
    assert (first.directions.exit_status, second.directions.exit_status) == (2, 0)


def test_several_comments_and_those_of_others(tmp_path: Path) -> None:
    text = (
        "<!-- docs-test: with -o stop.timesteps_total=2000 --seed 3 -->\n<!-- recipe: head -->\n"
        "<!-- docs-test: needs=optuna,openssl -->\n```bash\n```\n"
    )
    (block,) = read(tmp_path, text)
    assert block.directions.extra_words == ("-o", "stop.timesteps_total=2000", "--seed", "3")
    assert block.directions.needs == ("optuna", "openssl")


@pytest.mark.parametrize(
    ("words", "directions"),
    [
        ("file=envs/my_env.py", Directions(file="envs/my_env.py")),
        ("skip needs a cluster", Directions(skip="needs a cluster")),
        ("background", Directions(background=True)),
        ("background until is ready", Directions(background=True, until="is ready")),
    ],
)
def test_directions(tmp_path: Path, words: str, directions: Directions) -> None:
    (block,) = read(tmp_path, f"<!-- docs-test: {words} -->\n```bash\n```\n")
    assert block.directions == directions


@pytest.mark.parametrize(
    "words", ["exit=two", "exit=", "skip", "with", "timeout=3", "file=", "background later", "needs"]
)
def test_unknown_comments_are_errors(tmp_path: Path, words: str) -> None:
    with pytest.raises(PageError, match=r"page\.md:2: unknown docs-test comment"):
        read(tmp_path, f"\n<!-- docs-test: {words} -->\n```bash\n```\n")


def test_comment_without_a_fence_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:2: .* before a fence"):
        read(tmp_path, "<!-- docs-test: skip later -->\nSome words.\n```bash\n```\n")


def test_open_fence_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:1: the fence is never closed"):
        read(tmp_path, "```bash\nrlexp ls\n")


def test_fences_in_lists_and_inside_longer_fences(tmp_path: Path) -> None:
    listed, outer = read(
        tmp_path, "- a step:\n\n  ```python\n  if a:\n      b\n  ```\n\n````text\n```bash\nls\n```\n````\n"
    )
    assert listed.text == "if a:\n    b\n"
    assert (outer.language, outer.text) == ("text", "```bash\nls\n```\n")
