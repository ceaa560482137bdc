"""Text to nodes: YAML 1.2 words, places, and one clean finding for whatever is wrong.

What is written reads back as it was.
"""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.yaml.nodes import BOOLEAN_WORDS, UNDERSCORED, Finding, Place
from rlexp.config.yaml.reader import MAX_BYTES, YamlText, parse, read_file, to_yaml


def read(text: str) -> YamlText:
    return parse(text, lambda line, column: Place("f", line, column))


def value_of(text: str) -> Any:
    found = read(text)
    assert not found.problems
    return found.root.plain() if found.root else None


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("{a: 1,000,000, b: 2}", {"a": 1_000_000, "b": 2}, [("1,000,000", "1000000")]),
        ("{a: 0,001}", {"a": 0.001}, [("0,001", "0.001")]),
        ("{b: x, a: -1,5, c: 1,000}", {"b": "x", "a": -1.5, "c": 1000}, [("-1,5", "-1.5"), ("1,000", "1000")]),
        ("{a: 1, 000}", {"a": 1, "000": None}, []),
        ("{a: x,5}", {"a": "x", "5": None}, []),
        ("a: [1,000]", None, None),
    ],
)
def test_a_comma_in_a_number_ends_no_value_in_braces(text: str, value: Any, found: Any) -> None:
    result = read(text)
    if found is None:
        assert "starts with 0" in result.problems[0].message
        return
    assert result.root is not None
    assert result.root.plain() == value
    said = [(problem.message.partition(" is not one number")[0], problem.hint) for problem in result.problems]
    assert said == [(number, f"write {meant}") for number, meant in found]


def test_two_documents_have_a_remedy() -> None:
    (problem,) = read("a: 1\n---\nb: 2\n").problems
    assert problem.hint == "remove this line ---, or write a file for each of the two"


def only_finding(text: str) -> str:
    (problem,) = read(text).problems
    return f"{problem.place} {problem.message}"


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
def test_plain_words_follow_yaml_1_2(word: str, value: Any) -> None:
    read_value = value_of(f"key: {word}")["key"]
    assert read_value == value
    assert type(read_value) is type(value)


def test_empty_value_is_null_and_infinities_are_floats() -> None:
    values = value_of("a:\nb: .inf\nc: -.Inf\nd: 1e999\n")
    assert values == {"a": None, "b": float("inf"), "c": float("-inf"), "d": float("inf")}


def test_nodes_have_places() -> None:
    root = read("a:\n  b: [1, 22]\n  c: 3\n").root
    assert root is not None
    item = root.find(("a", "b", 1))
    assert item is not None
    assert str(item.place) == "f:2:10"
    last = root.find(("a", "c"))
    assert last is not None
    assert (str(last.key_place), str(last.place)) == ("f:3:3", "f:3:6")
    assert root.find(("a", "x", 0)) is None


def test_aliases_and_merges_are_expanded_own_keys_first() -> None:
    text = "base: &base {lr: 1, n: 2}\nmore: &more {z: 9, n: 3}\none:\n  <<: [*base, *more]\n  lr: 5\ntwo: *base\n"
    assert value_of(text)["one"] == {"lr": 5, "n": 2, "z": 9}
    assert value_of(text)["two"] == {"lr": 1, "n": 2}


def test_duplicate_key_with_different_values_is_a_problem_with_both_places() -> None:
    message = only_finding("a:\n  lr: 1\n  n: 2\n  lr: 3\n")
    assert message == "f:4:3 lr is given twice with different values: 1 at f:2:3, 3 here"


@pytest.mark.parametrize("value", ["1", "1.0", "[1, {a: x}]", "{b: 1, c: [2]}", "null", "yes"])
def test_duplicate_key_with_the_same_value_is_a_notice_with_both_places(value: str) -> None:
    found = read(f"a:\n  lr: {value}\n  lr: {value}\n")
    assert found.problems == ()
    assert [(str(notice.place), notice.message) for notice in found.notices] == [
        ("f:3:3", "lr is given twice with the same value: here and at f:2:3")
    ]


@pytest.mark.parametrize(
    ("first", "second"), [("1", "true"), ("0", "false"), ("1", "'1'"), ("[1]", "[true]"), ("", "0")]
)
def test_duplicate_values_of_different_types_are_different(first: str, second: str) -> None:
    assert "with different values" in only_finding(f"a: {first}\na: {second}\n")


def test_number_with_a_leading_zero_is_one_problem_with_the_decimal_number() -> None:
    (problem,) = read("seed: -0100").problems
    assert (problem.message, problem.hint) == (
        "-0100 starts with 0, which YAML 1.1 reads as octal",
        "write -100, or quote it",
    )


@pytest.mark.parametrize(
    "text",
    [
        "a:\n  c:\n    lr:1e-3\n    gamma: 0.9\n",
        "a:\n  c:\n    gamma: 0.9\n    lr:1e-3\n",
        "a:\n  lr:1e-3\n  c: {gamma: 0.9}\n",
    ],
)
def test_missing_space_after_a_colon_is_shown_where_it_is_missing(text: str) -> None:
    (problem,) = read(text).problems
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "lr:" in line)
    assert str(problem.place).startswith(f"f:{line}:")
    assert (problem.message, problem.hint) == ("not valid YAML: no space after a colon", "write lr: 1e-3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n\tb: 1\n", "f:2:1 a tab is used for indentation"),
        ("a: 1\n  \tb: 2\n", "f:2:3 a tab is used for indentation"),
        ("a:\n\u00a0\u00a0b: 1\n", "f:2:1 U+00A0 looks like a space, but is another character"),
        ("a: 1\n---\nb: 2\n", "f:2:1 not valid YAML: a second document starts here; a file can have only one"),
        ("a: b: c\n", "f:1:5 not valid YAML: unexpected colon; check the indentation, or quote the string"),
        ("a: *b\n", "f:1:4 not valid YAML: an alias (*name) without an anchor (&name)"),
        ("a: 'b\n", "f:2:1 not valid YAML: a quote or a bracket is not closed"),
        ("a: x\0y\n", "f:1:5 character U+0000 is not allowed in YAML"),
        ("a: x\ufeffy\n", "f:1:5 character U+FEFF is not allowed in YAML"),
        ("a: !!python/object:os.system x\n", "f:1:4 tag python/object:os.system is not supported"),
        ("a: !mine {b: 1}\n", "f:1:4 tag !mine is not supported"),
        ("? [1, 2]\n: 3\n", "f:1:3 a key must be a string, not a list or a mapping"),
        ("a: &a [*a]\n", "f:1:4 contains itself, by an alias"),
        ("a: {<<: 3}\n", "f:1:9 << can merge mappings only"),
        ('a: "\\U99999999"\n', "f:1:7 not valid YAML: a number is too large"),
        ('a: "\\ud800"\n', "f:1:4 \\ud800 to \\udfff are not characters"),
        (f"a: {'1' * 309}\n", "f:1:4 a number of 309 digits is too long"),
        (f"a: 0x{'f' * 257}\n", "f:1:4 a number of 259 digits is too long"),
        (f"a: {'1' * 5000}\n", "f:1:4 a number of 5000 digits is too long"),
    ],
)
def test_syntax_errors_have_places_and_hints(text: str, message: str) -> None:
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
def test_yaml_bomb_is_one_finding(text: str) -> None:
    start = time.process_time()
    message = only_finding(text)
    assert time.process_time() - start < 5.0  # 0.4 here, four times as much beside other programs
    assert "nested deeper" in message or "over 20000 values" in message


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:- \n\t[]{}&*!|>'\"%#@,?<0128.eE~\\U\u00a0"), max_size=60) | st.text())
def test_parse_any_text_does_not_raise(text: str) -> None:
    found = read(text)
    assert isinstance(found.problems, tuple)
    assert found.root is None or isinstance(found.root.plain(), dict | list | str | int | float | None)


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_read_file_any_bytes_do_not_raise(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f.yaml"
    path.write_bytes(data)
    root, problems, _ = read_file(path, "f")
    assert (root is None) <= bool(problems)
    assert all(isinstance(problem, Finding) for problem in problems)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f is empty"),
        (b"# nothing\n", "f is empty"),
        (b"- a\n- b\n", "f:1:1 a file must be a mapping of names to experiments, got a list"),
        (b"hello\n", "f:1:1 a file must be a mapping of names to experiments, got a single value"),
        (b"a: 1\nname: caf\xe9\n", "f:2:10 byte 0xe9 is not valid UTF-8"),
        ("a: 1".encode("utf-16"), "f is UTF-16 text"),
        (b"#" * (MAX_BYTES + 1), "f is larger than 256 KiB, too large for an experiment file"),
    ],
)
def test_read_file_without_mapping_is_a_problem(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    root, problems, _ = read_file(path, "f")
    assert root is None
    assert [f"{problem.place} {problem.message}" for problem in problems] == [message]


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa:\r\n  b: 1\r\n")
    root, problems, _ = read_file(path, "f")
    assert not problems
    assert root is not None
    assert root.plain() == {"a": {"b": 1}}
    assert str(root.entries()["a"].key_place) == "f:1:1"


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    (problem,) = read_file(tmp_path / "none.yaml", "none.yaml").problems
    assert problem.message == "path does not exist"
    assert problem.hint == "rlexp init writes a file to begin with, rlexp examples lists others"
    (problem,) = read_file(tmp_path / "1e-3", "1e-3").problems
    assert problem.hint == "-o KEY=VALUE is one word, without spaces around ="


def test_folder_instead_of_a_file_names_a_file_in_it(tmp_path: Path) -> None:
    (problem,) = read_file(tmp_path, "folder").problems
    assert problem.message == "is a directory"
    assert (problem.hint or "").startswith("name a file, for example folder/experiment.yaml; rlexp resume DIR")
    (tmp_path / "pong.yaml").touch()
    (problem,) = read_file(tmp_path, "folder").problems
    assert (problem.hint or "").startswith("name a file, for example folder/pong.yaml;")


TRICKY = [
    "",
    "no",
    "1e3",
    "012",
    "1:30",
    "null",
    "~",
    " x",
    "x ",
    "0x1F",
    "1_000",
    "a: b",
    "#",
    "- a",
    "\u00a0",
    ".inf",
    "<<",
]
YAML_1_1 = [written for word in BOOLEAN_WORDS for written in (word, word.upper(), word.capitalize())]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(TRICKY)
    | st.text(st.characters(codec="utf-8"), max_size=12)
)
keys = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(TRICKY)
data = st.dictionaries(
    keys, st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=8)
)


@settings(deadline=None)
@given(data)
def test_to_yaml_round_trip(value: dict[str, Any]) -> None:
    root, problems, notices = parse(to_yaml(value), lambda line, column: Place("f", line, column))
    assert not (*problems, *notices)
    assert root is not None
    assert repr(root.plain()) == repr(value)  # repr tells 1 from 1.0 and from True


@settings(deadline=None)
@given(st.sampled_from(YAML_1_1) | st.from_regex(UNDERSCORED, fullmatch=True))
def test_string_that_yaml_1_1_reads_as_a_value_is_quoted(text: str) -> None:
    root, _, _ = parse(to_yaml({"key": text}), lambda line, column: Place("f", line, column))
    assert root is not None
    node = root.entries()["key"]
    assert (node.value, node.is_plain) == (text, False)


def test_to_yaml_keeps_order_and_one_line_lists() -> None:
    assert to_yaml({"b": {"d": [1, 2]}, "a": (3,)}) == "b:\n  d: [1, 2]\na: [3]\n"
