"""Event files for tests, made with TensorBoard's own messages and records, and read back by its own readers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as PluginEventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.util.tensor_util import make_ndarray

from rlexp.compare.event_files.gathering import Series
from rlexp.compare.event_files.runs import RunContents, find_runs, read_run

Point = tuple[int, float, str]
"""Step, wall time, and the value as text, for NaN does not equal itself."""

VERSION = Event(wall_time=1.0, file_version="brain.Event:2")


def scalar(tag: str, step: int, value: float, wall_time: float = 1.0) -> Event:
    return Event(wall_time=wall_time, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))


def tensor(tag: str, step: int, proto: TensorProto, plugin: str = "scalars") -> Event:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    return Event(
        wall_time=1.0, step=step, summary=Summary(value=[Summary.Value(tag=tag, tensor=proto, metadata=metadata)])
    )


def histogram(tag: str, step: int) -> Event:
    histo = HistogramProto(min=0, max=1, num=2, sum=1, sum_squares=1, bucket_limit=[0.5, 1], bucket=[1, 1])
    return Event(wall_time=1.0, step=step, summary=Summary(value=[Summary.Value(tag=tag, histo=histo)]))


def start_of_run(step: int) -> Event:
    return Event(wall_time=1.0, step=step, session_log=SessionLog(status=SessionLog.START))


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def frames(events: Iterable[Event]) -> list[bytes]:
    return [frame(event.SerializeToString()) for event in events]


def write(directory: Path, events: Iterable[Event], name: str = "events.out.tfevents.1.host") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_bytes(b"".join(frames([VERSION, *events])))
    return path


def read(path: Path, keep: Callable[[], Any] = Series) -> RunContents[Any]:
    (run,) = find_runs([path])
    return read_run(run, keep, lambda tag: True)


def points(path: Path) -> dict[str, list[Point]]:
    """Return the points of the one run at ``path``, as we read them."""
    contents = read(path)
    return {tag: [_point(*point) for point in kept.points().tolist()] for tag, kept in contents.scalars.items()}


def accumulated(path: Path) -> dict[str, list[Point]]:
    """Return what TensorBoard's EventAccumulator reads where only ``simple_value`` is used."""
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    read = {tag: [_point(s.step, s.wall_time, s.value) for s in accumulator.Scalars(tag)] for tag in tags}
    return {tag: points for tag, points in read.items() if points}


def displayed(path: Path) -> dict[str, list[Point]]:
    """Return what TensorBoard itself would draw: old and new scalars alike, as tensors."""
    accumulator = PluginEventAccumulator(str(path), size_guidance={"tensors": 0})
    accumulator.Reload()
    read = {}
    for tag in accumulator.Tags()["tensors"]:
        arrays = [(event, make_ndarray(event.tensor_proto)) for event in accumulator.Tensors(tag)]
        if arrays and all(array.size == 1 and np.issubdtype(array.dtype, np.number) for _, array in arrays):
            read[tag] = [_point(event.step, event.wall_time, array.item()) for event, array in arrays]
    return read


def _point(step: int, wall_time: float, value: float) -> Point:
    return step, wall_time, repr(float(value))
