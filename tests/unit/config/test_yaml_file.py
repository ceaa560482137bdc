"""Text to nodes: YAML 1.2 words, places, and one clean finding for whatever is wrong."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.nodes import Finding, Node, Place
from rlexp.config.yaml_file import parse, read_file
from rlexp.config.yaml_text import MAX_BYTES


def read(text: str) -> tuple[Node | None, tuple[Finding, ...]]:
    return parse(text, lambda line, column: Place("f", line, column))


def value_of(text: str) -> Any:
    root, findings = read(text)
    assert not findings
    return root.plain() if root else None


def only_finding(text: str) -> str:
    _, findings = read(text)
    assert len(findings) == 1, findings
    return f"{findings[0].place} {findings[0].message}"


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-4", 1e-4),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5E+3", -2500.0),
        ("+7", 7),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("null", None),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("!!int '3'", 3),
        ("1e", "1e"),
        (".", "."),
    ],
)
def test_words_mean_what_yaml_1_2_says(word: str, value: Any) -> None:
    read_value = value_of(f"key: {word}")["key"]
    assert read_value == value
    assert type(read_value) is type(value)


def test_an_empty_value_is_null_and_infinities_are_floats() -> None:
    values = value_of("a:\nb: .inf\nc: -.Inf\nd: 1e999\n")
    assert values == {"a": None, "b": float("inf"), "c": float("-inf"), "d": float("inf")}


def test_every_key_and_value_knows_its_place() -> None:
    root, _ = read("a:\n  b: [1, 22]\n  c: 3\n")
    assert root is not None
    item = root.find(("a", "b", 1))
    assert item is not None
    assert str(item.place) == "f:2:10"
    last = root.find(("a", "c"))
    assert last is not None
    assert (str(last.key_place), str(last.place)) == ("f:3:3", "f:3:6")
    assert root.find(("a", "x", 0)) is None


def test_aliases_and_merges_are_expanded_and_own_keys_win() -> None:
    text = "base: &base {lr: 1, n: 2}\nmore: &more {z: 9, n: 3}\none:\n  <<: [*base, *more]\n  lr: 5\ntwo: *base\n"
    assert value_of(text)["one"] == {"lr": 5, "n": 2, "z": 9}
    assert value_of(text)["two"] == {"lr": 1, "n": 2}


def test_a_key_given_twice_names_the_first_line() -> None:
    assert only_finding("a:\n  lr: 1\n  n: 2\n  lr: 3\n") == "f:4:3 key lr given twice (first at line 2)"


def test_what_yaml_1_1_read_as_octal_is_explained() -> None:
    assert only_finding("seed: 012") == "f:1:7 012 starts with a 0, which some read as octal: write 12, or quote it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "f:2:1 line 2: tab used for indentation"),
        ("a: 1\n  \tb: 2\n", "f:2:3 line 2: tab used for indentation"),
        ("a:\n\u00a0\u00a0b: 1\n", "f:2:1 a space that is not one (U+00A0) stands here"),
        ("a: 1\n---\nb: 2\n", "f:2:1 not valid YAML: a second document starts here: a file holds one"),
        ("a: b: c\n", "f:1:5 not valid YAML: a colon where no key can end: check the indentation, or quote the text"),
        ("a: *b\n", "f:1:4 not valid YAML: an alias (*name) without its anchor (&name)"),
        ("a: 'b\n", "f:2:1 not valid YAML: a quote or a bracket is never closed"),
        ("a: x\0y\n", "f:1:5 character U+0000 cannot stand in YAML"),
        ("a: !!python/object:os.system x\n", "f:1:4 tag python/object:os.system is not supported"),
        ("a: !mine {b: 1}\n", "f:1:4 tag !mine is not supported"),
        ("? [1, 2]\n: 3\n", "f:1:3 a key must be a word, not a list or a group of keys"),
        ("a: &a [*a]\n", "f:1:4 contains itself, by an alias"),
        ("a: {<<: 3}\n", "f:1:9 << merges groups of keys, nothing else"),
        ('a: "\\U99999999"\n', "f:1:7 not valid YAML: a number too large for what it stands for"),
        ('a: "\\ud800"\n', "f:1:4 half a character: \\ud800 to \\udfff stand for nothing"),
        (f"a: {'1' * 5000}\n", "f:1:4 a number of 5000 digits"),
    ],
)
def test_what_cannot_be_read_is_said_where_it_stands(text: str, message: str) -> None:
    assert only_finding(text) == message


def aliases(open_with: str, close_with: str) -> str:
    lines = [
        "a0: &a0 {k: x}",
        *(f"a{i}: &a{i} {open_with}{', '.join([f'*a{i - 1}'] * 10)}{close_with}" for i in range(1, 12)),
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{a: " * 50_000,
        "- " * 100_000,
        "\n".join(" " * depth + "a:" for depth in range(600)),
        aliases("[", "]"),
        aliases("{<<: [", "]}"),
        "[" + "1," * 120_000 + "]",
        "\n".join([f"a{i}: &a{i} [[[[[[[[[[{f'*a{i - 1}' if i else 0}]]]]]]]]]]" for i in range(200)]),
    ],
    ids=["brackets", "braces", "dashes", "staircase", "alias bomb", "merge bomb", "long list", "alias staircase"],
)
def test_bombs_are_one_finding_at_once(text: str) -> None:
    start = time.process_time()
    message = only_finding(text)
    assert time.process_time() - start < 1.5
    assert "nested deeper" in message or "over 20000 values" in message


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:- \n\t[]{}&*!|>'\"%#@,?<0128.eE~\\U\u00a0"), max_size=60) | st.text())
def test_no_text_raises(text: str) -> None:
    root, findings = read(text)
    assert isinstance(findings, tuple)
    assert root is None or isinstance(root.plain(), dict | list | str | int | float | None)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.yaml"
    path.write_bytes(data)
    root, findings = read_file(path, "f")
    assert (root is None) <= bool(findings)
    assert all(isinstance(finding, Finding) for finding in findings)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f is empty"),
        (b"# nothing\n", "f is empty"),
        (b"- a\n- b\n", "f:1:1 a file maps names to experiments, this one is a list"),
        (b"hello\n", "f:1:1 a file maps names to experiments, this one is a single value"),
        (b"a: 1\nname: caf\xe9\n", "f:2:10 byte 0xe9 is not UTF-8"),
        ("a: 1".encode("utf-16"), "f is UTF-16 text"),
        (b"#" * (MAX_BYTES + 1), "f is larger than 256 KiB: no experiment file"),
    ],
)
def test_files_that_hold_no_experiments(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    root, findings = read_file(path, "f")
    assert root is None
    assert [f"{finding.place} {finding.message}" for finding in findings] == [message]


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa:\r\n  b: 1\r\n")
    root, findings = read_file(path, "f")
    assert not findings
    assert root is not None
    assert root.plain() == {"a": {"b": 1}}
    assert str(root.entries()["a"].key_place) == "f:1:1"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    _, findings = read_file(tmp_path / "none.yaml", "none.yaml")
    assert findings[0].message == "cannot be read: No such file or directory"
    _, findings = read_file(tmp_path, "folder")
    assert findings[0].message == "cannot be read: Is a directory"
