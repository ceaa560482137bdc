"""The part of TensorBoard's Event message that matters: what it says of which step, and where its bytes lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from rlexp.results.event_files.numbers import FLOAT, Number, tensor_number
from rlexp.results.event_files.wire import BYTES, FIXED32, FIXED64, VARINT, fields, signed

SCALAR: Final = "scalar"
GRAPH_TAG: Final = "__run_graph__"
"""What TensorBoard calls the graph, which has no tag."""

Span = tuple[int, int]

# Fields of Event, SessionLog, Summary, Summary.Value, SummaryMetadata and PluginData.
_WALL_TIME, _STEP, _GRAPH, _SUMMARY, _SESSION_LOG, _RUN_METADATA, _META_GRAPH = 1, 2, 4, 5, 7, 8, 9
_STATUS, _START = 1, 1
_VALUE = 1
_TAG, _SIMPLE_VALUE, _NODE_NAME, _TENSOR, _METADATA = 1, 2, 7, 8, 9
_PLUGIN_DATA, _PLUGIN_NAME = 1, 1
_OLD_KINDS: Final = {3: "histogram", 4: "image", 5: "histogram", 6: "audio"}
_PLUGIN_KINDS: Final = {
    "scalars": "tensor",  # one that is no scalar
    "histograms": "histogram",
    "images": "image",
    "pr_curves": "pr curve",
    "custom_scalars": "layout",
    "graphs": "graph",
    "graph_keras_model": "graph",
}


@dataclass(slots=True)
class Value:
    """One tag's share of an event."""

    tag: bytes = b""
    tag_at: Span = (0, 0)
    kind: str = ""
    """``scalar``, or what else it is: ``histogram``, ``image``, ``text``, ``hparams`` …"""
    number: Number | None = None
    """The number of a scalar."""


@dataclass(slots=True)
class Event:
    """What a record says."""

    wall_time: float = 0.0
    wall_time_at: int | None = None
    step: int = 0
    step_at: Span = (0, 0)
    """Where its varint lies; empty where the step is left out, being 0."""
    starts_session: bool = False
    """Whether a writer announces here that it goes on from ``step``, and takes back what it wrote beyond."""
    values: list[Value] = field(default_factory=list)


def parse_event(data: bytes) -> Event:
    """Return what the record ``data`` says; raises WireError where it is no message."""
    event = Event()
    for number, wire, begin, end, value in fields(data, 0, len(data)):
        if number == _WALL_TIME and wire == FIXED64:
            event.wall_time, event.wall_time_at = struct.unpack_from("<d", data, begin)[0], begin
        elif number == _STEP and wire == VARINT:
            event.step, event.step_at = signed(value), (begin, end)
        elif number == _SUMMARY and wire == BYTES:
            event.values += _values(data, begin, end)
        elif number == _SESSION_LOG and wire == BYTES:
            event.starts_session = any(log[0] == _STATUS and log[4] == _START for log in fields(data, begin, end))
        elif number in (_GRAPH, _META_GRAPH):
            event.values.append(Value(GRAPH_TAG.encode(), kind="graph"))
        elif number == _RUN_METADATA and wire == BYTES:
            event.values.append(_run_metadata(data, begin, end))
    return event


def _values(data: bytes, begin: int, end: int) -> list[Value]:
    return [
        _value(data, payload, stop)
        for number, wire, payload, stop, _ in fields(data, begin, end)
        if number == _VALUE and wire == BYTES
    ]


def _value(data: bytes, begin: int, end: int) -> Value:
    value, node_name, plugin = Value(), b"", ""
    for number, wire, payload, stop, _ in fields(data, begin, end):
        if number == _TAG and wire == BYTES:
            value.tag, value.tag_at = data[payload:stop], (payload, stop)
        elif number == _SIMPLE_VALUE and wire == FIXED32:
            value.kind, value.number = SCALAR, Number(FLOAT, data[payload:stop], payload)
        elif number == _TENSOR and wire == BYTES:
            value.number = tensor_number(data, payload, stop)
            value.kind = "tensor"
        elif number in _OLD_KINDS:
            value.kind = _OLD_KINDS[number]
        elif number == _METADATA and wire == BYTES:
            plugin = _plugin(data, payload, stop)
        elif number == _NODE_NAME and wire == BYTES:
            node_name = data[payload:stop]
    if not value.tag:  # tensors were called by their node once
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


def _plugin(data: bytes, begin: int, end: int) -> str:
    """Return the plugin that a SummaryMetadata names."""
    names = [
        data[first:last].decode(errors="backslashreplace")
        for number, wire, payload, stop, _ in fields(data, begin, end)
        if number == _PLUGIN_DATA and wire == BYTES
        for inner, inner_wire, first, last, _ in fields(data, payload, stop)
        if inner == _PLUGIN_NAME and inner_wire == BYTES
    ]
    return names[-1] if names else ""


def _run_metadata(data: bytes, begin: int, end: int) -> Value:
    tags = [data[payload:stop] for number, _, payload, stop, _ in fields(data, begin, end) if number == 1]
    return Value(tags[-1] if tags else b"", kind="run metadata")
