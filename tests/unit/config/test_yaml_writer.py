"""What is written reads back as it was."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.config.nodes import Place
from rlexp.config.yaml_file import parse
from rlexp.config.yaml_writer import to_yaml

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
def test_round_trip(value: dict[str, Any]) -> None:
    root, findings = parse(to_yaml(value), lambda line, column: Place("f", line, column))
    assert not findings
    assert root is not None
    assert repr(root.plain()) == repr(value)  # repr tells 1 from 1.0 and from True


def test_order_is_kept_and_lists_stand_on_one_line() -> None:
    assert to_yaml({"b": {"d": [1, 2]}, "a": (3,)}) == "b:\n  d: [1, 2]\na: [3]\n"
