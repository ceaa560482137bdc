"""Numbers as event files hold them: a float of its own, or a TensorProto of one element, as TensorFlow 2 writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.results.event_files.wire import BYTES, fields, signed, varint
from rlexp.sample_batch import Array

FLOAT: Final = "<f4"
_BFLOAT16: Final = "bfloat16"

# The fields of a TensorProto, of its shape and of the shape's dimensions.
_DTYPE, _SHAPE, _CONTENT = 1, 2, 4
_DIMENSION, _SIZE = 2, 1

# By DataType: what the number's bytes are, and the field that has it where tensor_content has not.
_FLOATS, _DOUBLES, _INTS, _LONGS, _BOOLS, _HALVES, _UINTS, _ULONGS = 5, 6, 7, 10, 11, 13, 16, 17
_TYPES: Final = {
    1: (FLOAT, _FLOATS),
    2: ("<f8", _DOUBLES),
    3: ("<i4", _INTS),
    4: ("<u1", _INTS),
    5: ("<i2", _INTS),
    6: ("<i1", _INTS),
    9: ("<i8", _LONGS),
    10: ("<u1", _BOOLS),
    14: (_BFLOAT16, _HALVES),
    17: ("<u2", _INTS),
    19: ("<f2", _HALVES),
    22: ("<u4", _UINTS),
    23: ("<u8", _ULONGS),
}


@dataclass(frozen=True)
class Number:
    """A number in a record."""

    format: str
    raw: bytes
    at: int | None
    """Where ``raw`` lies in the record; None where it had to be unpacked."""

    @property
    def value(self) -> float:
        """The number itself."""
        return float(decoded(np.frombuffer(self.raw, np.uint8)[None], self.format)[0])


def decoded(raw: Array, number_format: str) -> Array:
    """Return the numbers, ``[N]`` float64, whose bytes are ``raw [N, size]``, uint8."""
    raw = np.ascontiguousarray(raw)
    if number_format == _BFLOAT16:  # the upper half of a float
        raw = (raw.view("<u2").astype("<u4") << np.uint32(16)).view(np.uint8)
        number_format = FLOAT
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
        return raw.view(number_format)[:, 0].astype(float)


def tensor_number(data: bytes, begin: int, end: int) -> Number | None:
    """Return the number in the TensorProto ``data[begin:end]``, None where it has not just one; raises WireError."""
    dtype, elements, found = 0, 1, []
    for number, wire, payload, stop, value in fields(data, begin, end):
        if number == _DTYPE:
            dtype = value
        elif number == _SHAPE and wire == BYTES:
            elements = _elements(data, payload, stop)
        else:
            found.append((number, wire, payload, stop, value))
    if dtype not in _TYPES or elements != 1:
        return None
    number_format, values = _TYPES[dtype]
    places = [field for field in found if field[0] in (values, _CONTENT) and field[2] < field[3]]
    if not places:  # TensorFlow leaves zeros out
        return Number(number_format, bytes(_size_of(number_format)), None)
    if len(places) > 1:
        return None
    number, _, payload, stop, _ = places[0]
    if number not in (_CONTENT, _FLOATS, _DOUBLES):
        return _unpacked(data, payload, stop, number_format)
    if stop - payload != _size_of(number_format):
        return None
    return Number(number_format, data[payload:stop], payload)


def _unpacked(data: bytes, begin: int, end: int, number_format: str) -> Number | None:
    value, after = varint(data, begin, end)
    if after != end:
        return None
    size = _size_of(number_format)
    return Number(number_format, (value & (1 << 8 * size) - 1).to_bytes(size, "little"), None)


def _elements(data: bytes, begin: int, end: int) -> int:
    """Return how many elements a TensorShapeProto speaks of."""
    elements = 1
    for number, wire, payload, stop, _ in fields(data, begin, end):
        if number == _DIMENSION and wire == BYTES:
            sizes = [signed(size) for field, wire, _, _, size in fields(data, payload, stop) if field == _SIZE]
            elements *= sizes[-1] if sizes else 0
    return elements


def _size_of(number_format: str) -> int:
    return 2 if number_format == _BFLOAT16 else np.dtype(number_format).itemsize
