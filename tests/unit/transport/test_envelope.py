"""Messages: what is sealed can be read, and whatever else comes is refused before it is unpacked."""

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

from rlexp.board.messages.credentials import message_key
from rlexp.board.messages.envelope import (
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
from rlexp.board.messages.errors import InvalidMessageError
from rlexp.sample_batch import Column

KEY = message_key(b"secret", "t1")
LIMIT = 1 << 20
RAW = np.arange(1000, dtype=np.int64).tobytes()
HEADER = Header("t1", 3, 7, 12, 99, (Column("keys", "int64", (1000,)),), {"num_env_steps": 5, "returns": [1.5]})


def sealed(header: Header = HEADER, raw: bytes = RAW, key: bytes = KEY) -> bytes:
    (message,) = seal(header, raw, key, LIMIT)
    return message


def forged(content: Any, block: bytes = b"", length: int | None = None, magic: bytes = b"RLX1") -> bytes:
    """Return what someone with the key may send: any header and block, with the right signature."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    signed = magic + struct.pack("<I", len(text) if length is None else length) + text + block
    return signed + hmac.digest(KEY, signed, sha256)


def content(**changed: Any) -> dict[str, Any]:
    right = {"v": 1, "task": "t1", "seat": 0, "epoch": 1, "number": 0, "weights": 0, "part": 0, "parts": 1}
    return {**right, "columns": [], "info": {}, "raw_bytes": 0, **changed}


def test_message_comes_back() -> None:
    message = read_message(sealed(), KEY, LIMIT)
    assert message.header == HEADER
    assert unpack(message) == RAW
    assert unpack_arrays(message)["keys"].tolist() == list(range(1000))


def test_message_without_arrays_comes_back() -> None:
    header = replace(HEADER, columns=())
    assert unpack(read_message(sealed(header, b""), KEY, LIMIT)) == b""


def test_header_must_fit_its_arrays() -> None:
    with pytest.raises(ValueError, match="bytes for columns"):
        seal(HEADER, RAW[:-1], KEY, LIMIT)


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
        read_message(bytes(message), KEY, LIMIT)
    with pytest.raises(InvalidMessageError):
        read_message(sealed()[: -cut - 1], KEY, LIMIT)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.binary(max_size=200))
def test_anything_else_is_refused(garbage: bytes) -> None:
    for message in (garbage, b"RLX1" + garbage, forged(garbage), forged(garbage, length=2**32 - 1)):
        with pytest.raises(InvalidMessageError):
            read_message(message, KEY, LIMIT)


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
        read_message(forged(content(**{name: value})), KEY, LIMIT)


def test_other_versions_are_named() -> None:
    for message, found in ((forged(content(v=2)), "2"), (forged(content(), magic=b"RLX7"), "7")):
        with pytest.raises(WrongVersionError, match=f"'{found}'; this rlexp reads format 1"):
            read_message(message, KEY, LIMIT)


def test_array_sizes_are_bounded_before_unpacking() -> None:
    columns = [["a", "float64", [1 << 30, 1 << 30]]]
    with pytest.raises(InvalidMessageError, match="at most 1048576"):
        read_message(forged(content(columns=columns, raw_bytes=1 << 63)), KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="number of bytes"):
        read_message(forged(content(columns=[["a", "int8", [4]]], raw_bytes=5)), KEY, LIMIT)


def test_bomb_is_not_unpacked_beyond_what_its_header_names() -> None:
    bomb = lz4.block.compress(bytes(64 << 20), store_size=False)
    message = read_message(forged(content(columns=[["a", "int8", [1000]]], raw_bytes=1000), bomb), KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="unpacked"):
        unpack(message)


def test_block_with_too_few_bytes_is_refused() -> None:
    block = lz4.block.compress(bytes(999), store_size=False)
    message = read_message(forged(content(columns=[["a", "int8", [1000]]], raw_bytes=1000), block), KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="999"):
        unpack(message)


@pytest.mark.parametrize("dtype", ["object", "O", "complex64", "datetime64[ns]", "str", ">f4", 3, None, ["f4"]])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(InvalidMessageError):
        read_message(forged(content(columns=[["a", dtype, [0]]])), KEY, LIMIT)


@pytest.mark.parametrize(
    "changed",
    [
        {"seat": -2},
        {"epoch": -1},
        {"number": 1.0},
        {"number": True},
        {"number": 1 << 60},
        {"part": 1},
        {"parts": 0},
        {"parts": 10**6},
        {"columns": [["a", "int8", [-1]]]},
        {"columns": [["a", "int8", [0]], ["a", "int8", [0]]]},
        {"columns": [["a", "int8"]]},
        {"columns": {"a": "int8"}},
        {"info": []},
        {"task": None},
    ],
)
def test_wrong_header_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        read_message(forged(content(**changed)), KEY, LIMIT)


def test_missing_and_doubled_names_are_refused() -> None:
    for name in content():
        rest = {key: value for key, value in content().items() if key != name}
        with pytest.raises(InvalidMessageError):
            read_message(forged(rest), KEY, LIMIT)
    doubled = json.dumps(content()).replace('"seat": 0', '"seat": 0, "seat": 1').encode()
    with pytest.raises(InvalidMessageError, match="header"):
        read_message(forged(doubled), KEY, LIMIT)


def test_header_is_bounded() -> None:
    with pytest.raises(InvalidMessageError, match="too long"):
        read_message(forged(content(info={"a": "x" * MAX_HEADER_BYTES})), KEY, LIMIT)
    with pytest.raises(ValueError, match="header"):
        sealed(replace(HEADER, info={"a": "x" * MAX_HEADER_BYTES}))


def test_shape_of_too_many_dimensions_is_refused() -> None:
    message = read_message(forged(content(columns=[["a", "int8", [1] * 99]], raw_bytes=1), b"\x10\x00"), KEY, LIMIT)
    with pytest.raises(InvalidMessageError, match="shape"):
        unpack_arrays(message)


def noise(count: int) -> tuple[Header, bytes]:
    columns, raw = pack_arrays({"noise": np.random.default_rng(0).integers(0, 256, count, dtype=np.uint8)})
    return replace(HEADER, columns=columns), raw


def test_large_fragment_travels_in_parts_of_any_order() -> None:
    header, raw = noise(10_000)
    messages = seal(header, raw, KEY, 1000)
    assert len(messages) > 10
    assert max(map(len, messages)) <= 1000
    parts = Parts(1 << 20)
    read = [read_message(message, KEY, LIMIT) for message in messages]
    answers = [parts.add(message) for message in [read[3], *reversed(read)]]
    assert answers[:-1] == [None] * len(messages)
    whole = answers[-1]
    assert whole is not None
    assert whole.header == header
    assert unpack(whole) == raw


def test_parts_that_do_not_belong_together_are_refused() -> None:
    parts = Parts(1 << 20)
    header = replace(HEADER, num_parts=2)
    parts.add(Message(header, b"a"))
    with pytest.raises(InvalidMessageError, match="belong"):
        parts.add(Message(replace(header, part=1, num_parts=3), b"b"))
    with pytest.raises(InvalidMessageError, match="belong"):
        parts.add(Message(replace(header, part=1, info={}), b"b"))


def test_parts_beyond_the_bound_are_forgotten() -> None:
    parts = Parts(100)
    header = replace(HEADER, num_parts=2)
    for number in range(50):
        assert parts.add(Message(replace(header, number=number), b"x" * 10)) is None
    assert parts.add(Message(replace(header, number=0, part=1), b"y")) is None
    whole = parts.add(Message(replace(header, number=49, part=1), b"y"))
    assert whole is not None
    assert whole.block == b"x" * 10 + b"y"


def test_carrier_with_no_room_for_a_header_is_an_error() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        seal(HEADER, RAW, KEY, 100)
