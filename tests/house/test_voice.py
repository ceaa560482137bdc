"""Pages, docstrings, comments and messages lose the words of ``tests/house/voice.py``, and get no new ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.house.voice import (
    CODE,
    DOCSTRINGS,
    Finding,
    all_files,
    code_texts,
    findings,
    page_texts,
    sentences,
    words_of,
)

MOST = {"coinage": 1}
"""The most findings of each rule, 0 unless listed: the page about own agents names the class ``Fold``."""
MOST_WORDS_OF_PAGES = 40_000
"""In README and docs together."""
MOST_WORDS_OF_A_SENTENCE = 13
"""In the mean of all pages."""


@pytest.fixture(scope="module")
def found() -> list[Finding]:
    return list(findings(all_files()))


def test_no_rule_has_more_findings(found: list[Finding]) -> None:
    today = Counter(finding.rule for finding in found)
    over = [f"{name}: {number}, of {MOST.get(name, 0)}" for name, number in today.items() if number > MOST.get(name, 0)]
    assert not over, f"python -m tests.house.voice prints what to rewrite: {over}"


def test_pages_are_short() -> None:
    pages = [path for path in all_files() if path.suffix == ".md"]
    words, number = words_of(pages)
    assert words / number <= MOST_WORDS_OF_A_SENTENCE
    read_by_users = [path for path in pages if path.parent.name == "docs" or path.name == "README.md"]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in read_by_users) <= MOST_WORDS_OF_PAGES


def rules_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> list[tuple[int, str]]:
    monkeypatch.setattr("tests.house.voice.ROOT", tmp_path)
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return [(finding.line, finding.rule) for finding in findings([path])]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("The value is None where it was\nnot set.", "where-for-if"),
        ("Raises ValueError where both are given.", "where-for-if"),
        ("It is left out, where there is none.", "where-for-if"),
        ("First.\n\n- Where two differ, the run ends.", "where-for-if"),
        ("| file | those of a run |", "of-what"),
        ("The text is no address.", "is-no"),
        ("A beat renews it.", "coinage"),
        ("A row never counts twice.", "riddle"),
    ],
)
def test_words_in_a_page(text: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for _, name in rules_in(tmp_path, monkeypatch, "page.md", text)] == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "Say where the file is, and where to look.",
        "There is no address in it.",
        "See [those of us](where.md).",
        "```text\nNone where it is not\n```",
        "<!-- None where it is not -->",
    ],
)
def test_words_that_may_stay(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [rule for _, rule in rules_in(tmp_path, monkeypatch, "page.md", text) if rule != "of-what"]


def test_words_in_code_have_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = '"""Names the file."""\n\na = 1\n"""Of the\nfile."""\n\n# None where\n# it is.\nb = f"{a} is no name"\n'
    assert rules_in(tmp_path, monkeypatch, "code.py", source) == [
        (4, "torn-docstring"),
        (7, "where-for-if"),
        (9, "is-no"),
    ]


def test_sentences_end_where_a_reader_ends_them() -> None:
    text = "It takes e.g. A and B. `c` is 1.5 (vs. D).\nSee (E.) F"
    assert [" ".join(sentence.split()) for sentence, _ in sentences(text)] == [
        "It takes e.g. A and B.",
        "`c` is 1.5 (vs. D).",
        "See (E.)",
        "F",
    ]


def test_long_sentences_are_found_in_their_paragraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = " ".join(["word"] * 36)
    assert rules_in(tmp_path, monkeypatch, "page.md", f"# Title\n\nShort.\nIt is.\n\n- {long}.\n") == [
        (6, "long-sentence")
    ]
    assert not rules_in(tmp_path, monkeypatch, "page.md", f"Short `{long}`.\n\n```text\n{long}\n```\n")


def test_every_text_of_code_is_read() -> None:
    source = '"""M."""\n\n\nclass A:\n    """C."""\n\n    x: int\n    """X."""\n\n\nprint("S")  # R\n'
    assert [(text.kind, text.words) for text in code_texts(source)] == [
        (DOCSTRINGS, "M."),
        (DOCSTRINGS, "C."),
        (DOCSTRINGS, "X."),
        (CODE, "S"),
        (CODE, "R"),
    ]


def test_cells_of_tables_are_read_alone() -> None:
    assert [text.words for text in page_texts("| a b | c |\n|---|---|\n| `d e` | f |\n\ng\n")] == [
        "a b",
        "c",
        "`d_e",
        "f",
        "g",
    ]
