"""What is written reads back as it was."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.yaml.nodes import BOOLEAN_WORDS, UNDERSCORED, Place
from rlexp.config.yaml.reader import parse, to_yaml

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
