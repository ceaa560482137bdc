"""Messages: what is sealed comes back bit by bit, and whatever else comes is refused before it is unpacked."""

import hmac
import json
import struct
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from typing import Any

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.board.messages.basics import InvalidMessageError
from rlexp.board.messages.credentials import TrainerKeys, message_key
from rlexp.board.messages.envelope import (
    DTYPES,
    MAX_HEADER_BYTES,
    Header,
    Message,
    Parts,
    WrongVersionError,
    pack_arrays,
    read_message,
    seal,
    unpack,
    unpack_arrays,
)
from rlexp.board.messages.envelope import (
    rows_of as rows_in,
)
from rlexp.board.messages.payloads import (
    Newer,
    WeightPrecision,
    open_fragment,
    open_weights,
    seal_fragment,
    seal_weights,
    widened,
)
from rlexp.policy import Weights
from rlexp.rollout.filters import Moments
from rlexp.sample_batch import FRAME_IDS, NEW_FRAME_IDS, Array, Column, FrameRows, SampleBatch
from tests.lab.board import KEYS, MAX_BYTES, TASK, info_of, rows_of

HEADER = Header(TASK, 0, 1, 0)


def test_frames_and_moments_arrive_as_they_were_sent() -> None:
    ids = np.array([[0, 1], [1, 2]], np.int32)
    rows = FrameRows(
        SampleBatch({"frame_ids": ids, "new_frame_ids": ids, "actions": np.array([1, 2])}),
        np.arange(3 * 4, dtype=np.uint8).reshape(3, 2, 2, 1),
        np.array([10, 11, 12]),
    )
    moments = Moments(5, np.array([0.5, 1.0]), np.array([2.0, 3.0]))
    info = replace(info_of(rows.rows), observed=moments)
    (message,) = seal_fragment(HEADER, rows, info, KEYS.key, MAX_BYTES)
    opened, report = open_fragment(read_message(message, KEYS.key, MAX_BYTES), 2)
    assert isinstance(opened, FrameRows)
    np.testing.assert_array_equal(opened.frames, rows.frames)
    np.testing.assert_array_equal(opened.numbers, rows.numbers)
    np.testing.assert_array_equal(opened.rows["frame_ids"], ids)
    assert report.observed is not None
    assert report.observed.count == 5
    np.testing.assert_array_equal(report.observed.squares, moments.squares)


def test_fragment_without_rows_still_counts_its_steps() -> None:
    rows = rows_of(0, count=0)
    (message,) = seal_fragment(HEADER, rows, info_of(rows, num_env_steps=9), KEYS.key, MAX_BYTES)
    opened, info = open_fragment(read_message(message, KEYS.key, MAX_BYTES), 0)
    assert (opened.count, info.num_env_steps) == (0, 9)


def test_weights_arrive_as_they_were_sent() -> None:
    moments = Moments(3, np.zeros(2), np.ones(2))
    newer = Newer(12, {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(0, np.float32)}, moments, 99)
    opened = open_weights(seal_weights(TASK, 5, newer, KEYS), TASK, 12, KEYS, MAX_BYTES)
    assert (opened.version, opened.num_steps_sampled) == (12, 99)
    np.testing.assert_array_equal(opened.weights["w"], newer.weights["w"])
    assert opened.moments is not None
    assert opened.moments.count == 3


def test_weights_of_another_version_size_or_key_are_refused() -> None:
    blob = seal_weights(TASK, 5, Newer(12, {"w": np.zeros(6, np.float32)}, None, 0), KEYS)
    for task, version, key, size in [
        ("other", 12, KEYS, 100),
        (TASK, 13, KEYS, 100),
        (TASK, 12, TrainerKeys(b"x" * 32, b"x" * 32), 100),
    ]:
        with pytest.raises(InvalidMessageError):
            open_weights(blob, task, version, key, size)
    with pytest.raises(InvalidMessageError):
        open_weights(blob, TASK, 12, KEYS, max_bytes=23)


def test_float32_weights_are_sent_as_they_are() -> None:
    weights = {"w": np.array([1e30, 1.0], np.float32)}
    assert WeightPrecision("float32").rounded(weights) is weights


def test_float16_halves_float32_arrays_only() -> None:
    weights: Weights = {"w": np.array([1.0, 1 / 3], np.float32), "steps": np.array([7], np.int64)}
    rounded = WeightPrecision("float16").rounded(weights)
    assert {name: array.dtype.name for name, array in rounded.items()} == {"w": "float16", "steps": "int64"}
    received = widened(rounded)
    assert received["w"].dtype == np.float32
    np.testing.assert_allclose(received["w"], weights["w"], rtol=2**-11)


def test_array_beyond_float16_stays_float32_and_is_named_once() -> None:
    precision = WeightPrecision("float16")
    large, fine = np.array([65520.0, 1.0], np.float32), np.array([65504.0], np.float32)
    for _ in range(2):
        rounded = precision.rounded({"large": large, "fine": fine})
        assert rounded["large"] is large
        assert rounded["fine"].tolist() == [65504.0]
    (event,) = precision.drain_events()
    assert event.startswith("weights large are sent")
    assert precision.drain_events() == []


def test_weights_that_are_not_finite_stay_so() -> None:
    """The actors refuse them; rounding must not hide that."""
    rounded = WeightPrecision("float16").rounded({"w": np.array([np.nan, np.inf], np.float32)})
    assert not np.isfinite(rounded["w"]).any()


KEY = bytes(32)
COLUMNS_HEADER = Header("t1", 0, 1, 0)


def sent(arrays: dict[str, Array]) -> Message:
    columns, raw = pack_arrays(arrays)
    (message,) = seal(replace(COLUMNS_HEADER, columns=columns), raw, KEY, 1 << 22)
    return read_message(message, KEY, 1 << 22)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_arrays_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = unpack_arrays(sent({"a": array, "b": array}))
    for name in ("a", "b"):
        assert (found[name].dtype, found[name].shape) == (array.dtype, shape)
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable


def test_order_of_memory_and_of_bytes_do_not_matter() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    found = unpack_arrays(sent({"view": array.transpose(2, 0, 1)[::-1], "big": array.astype(">f4")}))
    assert np.array_equal(found["view"], array.transpose(2, 0, 1)[::-1])
    assert np.array_equal(found["big"], array)
    assert found["big"].dtype == np.float32


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.zeros(1, "complex64")])
def test_other_dtypes_are_not_packed(array: Array) -> None:
    with pytest.raises(ValueError, match="no message can carry"):
        pack_arrays({"a": array})


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"a": np.zeros(())},
        {"a": np.zeros(2), "b": np.zeros(3)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2))},
        {"a": np.zeros(2), ":numbers": np.zeros(1, np.int64)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(2, np.int64)},
        {"a": np.zeros(2), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1)},
        {FRAME_IDS: np.full((2, 1), 1), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {FRAME_IDS: np.full((2, 1), -1), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {FRAME_IDS: np.zeros(2, np.int64), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
        {NEW_FRAME_IDS: np.zeros((2, 1)), ":frames": np.zeros((1, 2)), ":numbers": np.zeros(1, np.int64)},
    ],
)
def test_what_is_no_rows_is_refused(arrays: dict[str, Array]) -> None:
    with pytest.raises(InvalidMessageError):
        rows_in(unpack_arrays(sent(arrays)))


ENVELOPE_KEY = message_key(b"secret", "t1")
LIMIT = 1 << 20
RAW = np.arange(1000, dtype=np.int64).tobytes()
ENVELOPE_HEADER = Header(
    "t1", 3, 7, 12, 99, (Column("keys", "int64", (1000,)),), {"num_env_steps": 5, "returns": [1.5]}
)


def sealed(header: Header = ENVELOPE_HEADER, raw: bytes = RAW, key: bytes = ENVELOPE_KEY) -> bytes:
    (message,) = seal(header, raw, key, LIMIT)
    return message


def forged(content: Any, block: bytes = b"", length: int | None = None, magic: bytes = b"RLX1") -> bytes:
    """Return what someone with the key may send: any header and block, with the right signature."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    signed = magic + struct.pack("<I", len(text) if length is None else length) + text + block
    return signed + hmac.digest(ENVELOPE_KEY, signed, sha256)


def content(**changed: Any) -> dict[str, Any]:
    right = {"v": 1, "task": "t1", "seat": 0, "epoch": 1, "number": 0, "weights": 0, "part": 0, "parts": 1}
    return {**right, "columns": [], "info": {}, "raw_bytes": 0, **changed}


def test_message_comes_back() -> None:
    message = read_message(sealed(), ENVELOPE_KEY, LIMIT)
    assert message.header == ENVELOPE_HEADER
    assert unpack(message) == RAW
    assert unpack_arrays(message)["keys"].tolist() == list(range(1000))


def test_header_must_fit_its_arrays() -> None:
    with pytest.raises(ValueError, match="bytes for columns"):
        seal(ENVELOPE_HEADER, RAW[:-1], ENVELOPE_KEY, LIMIT)


@pytest.mark.parametrize("password", ["another", ""])
def test_other_key_is_refused(password: str) -> None:
    with pytest.raises(InvalidMessageError, match="signature"):
        read_message(sealed(), message_key(password.encode(), "t1"), LIMIT)
    with pytest.raises(InvalidMessageError, match="signature"):
        read_message(sealed(), message_key(b"secret", "t2"), LIMIT)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.integers(0, 60))
def test_damaged_message_is_refused(place: int, bit: int, cut: int) -> None:
    message = bytearray(sealed())
    message[place % len(message)] ^= 1 << bit
    with pytest.raises(InvalidMessageError):
        read_message(bytes(message), ENVELOPE_KEY, LIMIT)
    with pytest.raises(InvalidMessageError):
        read_message(sealed()[: -cut - 1], ENVELOPE_KEY, LIMIT)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.binary(max_size=200))
def test_anything_else_is_refused(garbage: bytes) -> None:
    for message in (garbage, b"RLX1" + garbage, forged(garbage), forged(garbage, length=2**32 - 1)):
        with pytest.raises(InvalidMessageError):
            read_message(message, ENVELOPE_KEY, LIMIT)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=6,
    ),
    st.sampled_from(sorted(content())),
)
def test_any_value_in_a_header_is_read_or_refused(value: Any, name: str) -> None:
    with suppress(InvalidMessageError):
        read_message(forged(content(**{name: value})), ENVELOPE_KEY, LIMIT)


def test_other_versions_are_named() -> None:
    for message, found in ((forged(content(v=2)), "2"), (forged(content(), magic=b"RLX7"), "7")):
        with pytest.raises(WrongVersionError, match=f"'{found}'; this rlexp reads format 1"):
            read_message(message, ENVELOPE_KEY, LIMIT)


def test_bomb_is_not_unpacked_beyond_what_its_header_names() -> None:
    bomb = lz4.block.compress(bytes(64 << 20), store_size=False)
    message = read_message(forged(content(columns=[["a", "int8", [1000]]], raw_bytes=1000), bomb), ENVELOPE_KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="unpacked"):
        unpack(message)


def test_block_with_too_few_bytes_is_refused() -> None:
    block = lz4.block.compress(bytes(999), store_size=False)
    message = read_message(forged(content(columns=[["a", "int8", [1000]]], raw_bytes=1000), block), ENVELOPE_KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="999"):
        unpack(message)


NOT_READ: list[tuple[str, Any]] = [
    *[("seat", -2), ("epoch", -1), ("info", []), ("task", None), ("parts", 0)],
    *[("number", 1.0), ("number", True), ("number", 1 << 60)],
    *[("columns", [["a", "int8", [-1]]]), ("columns", [["a", "int8"]]), ("columns", {"a": "int8"})],
]
HUGE = [["a", "float64", [1 << 30, 1 << 30]]]
WRONG: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, "the header is not one of rlexp") for name, value in NOT_READ),
    ({"columns": [["a", "int8", [0]], ["a", "int8", [0]]]}, "same name"),
    ({"part": 1}, "numbers of parts"),
    ({"parts": 10**6}, "numbers of parts"),
    ({"columns": [["a", "int8", [4]]], "raw_bytes": 5}, "number of bytes"),
    ({"columns": HUGE, "raw_bytes": 1 << 63}, "at most 1048576"),
    ({"info": {"a": "x" * MAX_HEADER_BYTES}}, "too long"),
    *(
        ({"columns": [["a", dtype, [0]]]}, "dtype that is not allowed|not one of rlexp")
        for dtype in ["object", "O", "complex64", "datetime64[ns]", "str", ">f4", 3, None, ["f4"]]
    ),
]
"""Headers that are rightly signed, and why each is refused before anything is unpacked."""


@pytest.mark.parametrize(("changed", "why"), WRONG)
def test_wrong_header_is_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidMessageError, match=why):
        read_message(forged(content(**changed)), ENVELOPE_KEY, LIMIT)


def test_missing_and_doubled_names_are_refused() -> None:
    for name in content():
        rest = {key: value for key, value in content().items() if key != name}
        with pytest.raises(InvalidMessageError):
            read_message(forged(rest), ENVELOPE_KEY, LIMIT)
    doubled = json.dumps(content()).replace('"seat": 0', '"seat": 0, "seat": 1').encode()
    with pytest.raises(InvalidMessageError, match="header"):
        read_message(forged(doubled), ENVELOPE_KEY, LIMIT)


def test_header_that_is_sent_is_bounded() -> None:
    with pytest.raises(ValueError, match="header"):
        sealed(replace(ENVELOPE_HEADER, info={"a": "x" * MAX_HEADER_BYTES}))


def test_shape_of_too_many_dimensions_is_refused() -> None:
    message = read_message(
        forged(content(columns=[["a", "int8", [1] * 99]], raw_bytes=1), b"\x10\x00"), ENVELOPE_KEY, LIMIT
    )
    with pytest.raises(InvalidMessageError, match="shape"):
        unpack_arrays(message)


def noise(count: int) -> tuple[Header, bytes]:
    columns, raw = pack_arrays({"noise": np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)})
    return replace(ENVELOPE_HEADER, columns=columns), raw


def test_large_fragment_travels_in_parts_of_any_order() -> None:
    header, raw = noise(10_000)
    messages = seal(header, raw, ENVELOPE_KEY, 1000)
    assert len(messages) > 10
    assert max(map(len, messages)) <= 1000
    parts = Parts(1 << 20, 4)
    read = [read_message(message, ENVELOPE_KEY, LIMIT) for message in messages]
    answers = [parts.add(message) for message in [read[3], *reversed(read)]]
    assert answers[:-1] == [None] * len(messages)
    whole = answers[-1]
    assert whole is not None
    assert whole.header == header
    assert unpack(whole) == raw


def test_parts_that_do_not_belong_together_are_refused() -> None:
    parts = Parts(1 << 20, 4)
    header = replace(ENVELOPE_HEADER, num_parts=2)
    parts.add(Message(header, b"a"))
    with pytest.raises(InvalidMessageError, match="belong"):
        parts.add(Message(replace(header, part=1, num_parts=3), b"b"))
    with pytest.raises(InvalidMessageError, match="belong"):
        parts.add(Message(replace(header, part=1, info={}), b"b"))
    with pytest.raises(InvalidMessageError, match="empty"):
        parts.add(Message(replace(header, part=1), b""))


@pytest.mark.parametrize(("max_bytes", "max_fragments"), [(100, 50), (1000, 5)], ids=["bytes", "fragments"])
def test_parts_beyond_the_bounds_are_forgotten(max_bytes: int, max_fragments: int) -> None:
    parts = Parts(max_bytes, max_fragments)
    header = replace(ENVELOPE_HEADER, num_parts=2)
    for number in range(50):
        assert parts.add(Message(replace(header, number=number), b"x" * 10)) is None
    assert parts.add(Message(replace(header, number=0, part=1), b"y")) is None
    whole = parts.add(Message(replace(header, number=49, part=1), b"y"))
    assert whole is not None
    assert whole.block == b"x" * 10 + b"y"


def test_carrier_with_no_room_for_a_header_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        seal(ENVELOPE_HEADER, RAW, ENVELOPE_KEY, 100)
