"""The content of a record: a TensorBoard Event in protobuf's wire format, and the numbers in it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from rlexp.sample_batch import Array

SCALAR: Final = "scalar"
GRAPH_TAG: Final = "__run_graph__"
"""TensorBoard's name for the graph, which has no tag."""

Field = tuple[int, int, int, int, int]
"""Number, wire type, begin and end of the payload, and the value if it is a varint (else 0)."""
Span = tuple[int, int]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10

# Fields of Event, SessionLog, Summary, Summary.Value, SummaryMetadata, PluginData and TaggedRunMetadata.
_WALL_TIME, _STEP, _GRAPH, _SUMMARY, _SESSION_LOG, _RUN_METADATA, _META_GRAPH = 1, 2, 4, 5, 7, 8, 9
_STATUS, _START = 1, 1
_VALUE = 1
_TAG, _SIMPLE_VALUE, _NODE_NAME, _TENSOR, _METADATA = 1, 2, 7, 8, 9
_PLUGIN_DATA, _PLUGIN_NAME = 1, 1
_METADATA_TAG = 1
_OLD_KINDS: Final = {3: "histogram", 4: "image", 5: "histogram", 6: "audio"}
_PLUGIN_KINDS: Final = {
    "scalars": "tensor",  # one with several elements
    "histograms": "histogram",
    "images": "image",
    "pr_curves": "pr curve",
    "custom_scalars": "layout",
    "graphs": "graph",
    "graph_keras_model": "graph",
}

# The fields of a TensorProto, of its shape and of the shape's dimensions.
_DTYPE, _SHAPE, _CONTENT = 1, 2, 4
_DIMENSION, _SIZE = 2, 1

_FLOAT, _BFLOAT16 = "<f4", "bfloat16"
_FLOATS, _DOUBLES, _INTS, _LONGS, _BOOLS, _HALVES, _UINTS, _ULONGS = 5, 6, 7, 10, 11, 13, 16, 17
_TYPES: Final = {
    1: (_FLOAT, _FLOATS),
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
"""Format of the number, and the field that has it without ``tensor_content``, by DataType."""


class WireError(ValueError):
    """Bytes that are not a protobuf message."""


@dataclass(frozen=True)
class Number:
    """A number in a record."""

    format: str
    raw: bytes
    at: int | None
    """Where ``raw`` is in the record; None if it had to be unpacked."""

    @property
    def value(self) -> float:
        return float(decoded(np.frombuffer(self.raw, np.uint8)[None], self.format)[0])


@dataclass(slots=True)
class Value:
    """The value of one tag in an event."""

    tag: bytes = b""
    tag_at: Span = (0, 0)
    kind: str = ""
    """``scalar``, or another kind: ``histogram``, ``image``, ``text``, ``hparams`` …"""
    number: Number | None = None
    """The number of a scalar."""


@dataclass(slots=True)
class LogEvent:
    """The content of a record."""

    wall_time: float = 0.0
    wall_time_at: int | None = None
    step: int = 0
    step_at: Span = (0, 0)
    """Where its varint is; empty if the step is left out, being 0."""
    starts_session: bool = False
    """Whether a writer announces here that it continues from ``step`` and discards what it wrote beyond."""
    values: list[Value] = field(default_factory=list)


def parse_event(data: bytes) -> LogEvent:
    """Return the content of the record ``data``; raises WireError if it is not a message."""
    event = LogEvent()
    for number, wire, begin, end, value in _fields(data, 0, len(data)):
        if number == _WALL_TIME and wire == _FIXED64:
            event.wall_time, event.wall_time_at = struct.unpack_from("<d", data, begin)[0], begin
        elif number == _STEP and wire == _VARINT:
            event.step, event.step_at = _signed(value), (begin, end)
        elif number == _SUMMARY and wire == _BYTES:
            event.values += [_value(data, *span) for span in _spans(data, (begin, end), _VALUE)]
        elif number == _SESSION_LOG and wire == _BYTES:
            event.starts_session = any(log[0] == _STATUS and log[4] == _START for log in _fields(data, begin, end))
        elif number in (_GRAPH, _META_GRAPH):
            event.values.append(Value(GRAPH_TAG.encode(), kind="graph"))
        elif number == _RUN_METADATA and wire == _BYTES:
            tags = [data[slice(*span)] for span in _spans(data, (begin, end), _METADATA_TAG)]
            event.values.append(Value(tags[-1] if tags else b"", kind="run metadata"))
    return event


def _value(data: bytes, begin: int, end: int) -> Value:
    value, node_name, plugin = Value(), b"", ""
    for number, wire, payload, stop, _ in _fields(data, begin, end):
        if number == _TAG and wire == _BYTES:
            value.tag, value.tag_at = data[payload:stop], (payload, stop)
        elif number == _SIMPLE_VALUE and wire == _FIXED32:
            value.kind, value.number = SCALAR, Number(_FLOAT, data[payload:stop], payload)
        elif number == _TENSOR and wire == _BYTES:
            value.kind, value.number = "tensor", _tensor_number(data, payload, stop)
        elif number in _OLD_KINDS:
            value.kind = _OLD_KINDS[number]
        elif number == _METADATA and wire == _BYTES:
            plugin = _plugin(data, (payload, stop))
        elif number == _NODE_NAME and wire == _BYTES:
            node_name = data[payload:stop]
    if not value.tag:  # old tensors have a node name instead
        value.tag = node_name
    value.kind = _kind(value, plugin)
    if value.kind != SCALAR:
        value.number = None
    return value


def _kind(value: Value, plugin: str) -> str:
    if value.kind not in ("", "tensor"):
        return value.kind
    if value.number is not None and plugin in ("", "scalars"):
        return SCALAR
    return _PLUGIN_KINDS.get(plugin, plugin) or value.kind or "empty"


def _plugin(data: bytes, metadata: Span) -> str:
    """Return the plugin that a SummaryMetadata names."""
    names = [
        data[slice(*name)].decode(errors="backslashreplace")
        for plugin_data in _spans(data, metadata, _PLUGIN_DATA)
        for name in _spans(data, plugin_data, _PLUGIN_NAME)
    ]
    return names[-1] if names else ""


def _tensor_number(data: bytes, begin: int, end: int) -> Number | None:
    """Return the number in the TensorProto ``data[begin:end]``, None if it has more or less than one element.

    TensorFlow 2 writes scalars as such tensors.
    """
    dtype, elements, found = 0, 1, []
    for number, wire, payload, stop, value in _fields(data, begin, end):
        if number == _DTYPE:
            dtype = value
        elif number == _SHAPE and wire == _BYTES:
            elements = _elements(data, (payload, stop))
        else:
            found.append((number, payload, stop))
    if dtype not in _TYPES or elements != 1:
        return None
    number_format, values = _TYPES[dtype]
    places = [place for place in found if place[0] in (values, _CONTENT) and place[1] < place[2]]
    if not places:  # TensorFlow leaves zeros out
        return Number(number_format, bytes(_size_of(number_format)), None)
    if len(places) > 1:
        return None
    number, payload, stop = places[0]
    if number not in (_CONTENT, _FLOATS, _DOUBLES):
        return _unpacked(data, payload, stop, number_format)
    if stop - payload != _size_of(number_format):
        return None
    return Number(number_format, data[payload:stop], payload)


def _elements(data: bytes, shape: Span) -> int:
    """Return the number of elements of a TensorShapeProto."""
    elements = 1
    for dimension in _spans(data, shape, _DIMENSION):
        sizes = [_signed(size) for number, _, _, _, size in _fields(data, *dimension) if number == _SIZE]
        elements *= sizes[-1] if sizes else 0
    return elements


def _unpacked(data: bytes, begin: int, end: int, number_format: str) -> Number | None:
    value, after = _varint(data, begin, end)
    if after != end:
        return None
    size = _size_of(number_format)
    return Number(number_format, (value & (1 << 8 * size) - 1).to_bytes(size, "little"), None)


def _size_of(number_format: str) -> int:
    return 2 if number_format == _BFLOAT16 else np.dtype(number_format).itemsize


def decoded(raw: Array, number_format: str) -> Array:
    """Return the numbers, ``[N]`` float64, with the bytes ``raw [N, size]``, uint8."""
    raw = np.ascontiguousarray(raw)
    if number_format == _BFLOAT16:  # the upper half of a float
        raw = (raw.view("<u2").astype("<u4") << np.uint32(16)).view(np.uint8)
        number_format = _FLOAT
    with np.errstate(invalid="ignore"):  # a NaN may be a signalling one
        return raw.view(number_format)[:, 0].astype(float)


def _spans(data: bytes, message: Span, wanted: int) -> Iterator[Span]:
    """Yield the payloads of the fields ``wanted`` of a message that have a length: messages, strings and bytes."""
    for number, wire, payload, stop, _ in _fields(data, *message):
        if number == wanted and wire == _BYTES:
            yield payload, stop


def _fields(data: bytes, begin: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[begin:end]``; raises WireError if it is not one."""
    while begin < end:
        key, begin = _varint(data, begin, end)
        number, wire = key >> 3, key & 7
        value = 0
        payload = begin
        if wire == _VARINT:
            value, begin = _varint(data, begin, end)
        elif wire == _BYTES:
            length, payload = _varint(data, begin, end)
            begin = payload + length
        elif wire in (_FIXED32, _FIXED64):
            begin += 4 if wire == _FIXED32 else 8
        else:
            raise WireError(f"field {number} has wire type {wire}")
        if begin > end:
            raise WireError(f"field {number} is longer than its message")
        yield number, wire, payload, begin, value


def _varint(data: bytes, begin: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at ``begin`` and its end; raises WireError if it does not end before ``end``."""
    value = 0
    for index in range(begin, min(end, begin + _LONGEST_VARINT)):
        byte = data[index]
        value |= (byte & 0x7F) << 7 * (index - begin)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, index + 1
    raise WireError("a number does not end")


def _signed(value: int) -> int:
    """Return the int64 with the two's complement ``value``."""
    return value - (1 << 64) if value >> 63 else value
