"""Scalars in event files of several writers are exactly those that TensorBoard reads."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_BFLOAT16, DT_FLOAT, DT_HALF, DT_INT64, DT_STRING, DT_UINT8
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from rlexp.compare.event_files import event_file
from rlexp.runs.tensorboard import TensorBoardRecorder
from tests.lab.event_writing import (
    accumulated,
    displayed,
    frame,
    histogram,
    points,
    read,
    scalar,
    start_of_run,
    tensor,
    write,
)

TAGS = ["a", "b", "loss/a", "loss/b", "ray/tune/info/learner/default_policy/mean_q", "é", "loss/ü", "x" * 200, ""]
STEPS = st.sampled_from([0, 100, 126, 16_380, 2_097_150, (1 << 31) - 3, (1 << 62), -5])
VALUES = st.floats(width=32)
CHUNKS = st.sampled_from([100, 700, 1 << 22])


@st.composite
def histories(draw: st.DrawFn, tensors: bool) -> list[Event]:
    """Stretches in which some tags are written in turn, in one event or in several, with noise in between."""
    events: list[Event] = []
    for _ in range(draw(st.integers(1, 4))):
        tags = draw(st.lists(st.sampled_from(TAGS), min_size=1, max_size=5))
        first, stride, together = draw(STEPS), draw(st.sampled_from([0, 1, 3, -2])), draw(st.booleans())
        values = draw(st.lists(VALUES, min_size=1, max_size=8))
        make = draw(st.sampled_from([scalar, float_tensor, double_tensor] if tensors else [scalar]))
        for index in range(draw(st.integers(1, 40))):
            row = [
                make(tag, first + index * stride, values[(index + place) % len(values)], index / 3)
                for place, tag in enumerate(tags)
            ]
            events += [joined(row)] if together else row
        if draw(st.booleans()):
            noise = [histogram("h", 3), Event(log_message={})]
            # TensorBoard's accumulator of tensors takes the first announcement of a run for its beginning.
            events.append(draw(st.sampled_from(noise if tensors else [*noise, start_of_run(50), start_of_run(0)])))
    return events


def float_tensor(tag: str, step: int, value: float, wall_time: float) -> Event:
    return timed(tensor(tag, step, TensorProto(dtype=DT_FLOAT, float_val=[value])), wall_time)


def double_tensor(tag: str, step: int, value: float, wall_time: float) -> Event:
    return timed(tensor(tag, step, make_tensor_proto(np.float64(value), dtype=np.float64)), wall_time)


def timed(event: Event, wall_time: float) -> Event:
    event.wall_time = wall_time
    return event


def joined(events: list[Event]) -> Event:
    first = events[0]
    values = [value for event in events for value in event.summary.value]
    return Event(wall_time=first.wall_time, step=first.step, summary=Summary(value=values))


@settings(deadline=None)
@given(histories(tensors=False), CHUNKS)
def test_scalars_match_tensorboard(events: list[Event], chunk: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file, "CHUNK_BYTES", chunk)
        writer = EventFileWriter(folder)
        for event in events:
            writer.add_event(event)
        writer.close()
        assert points(Path(folder)) == accumulated(Path(folder))


@settings(deadline=None)
@given(histories(tensors=True), CHUNKS)
def test_tensors_match_tensorboard(events: list[Event], chunk: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_file, "CHUNK_BYTES", chunk)
        path = write(Path(folder), events)
        assert points(path) == displayed(path)


def packed(dtype: int, **fields: object) -> TensorProto:
    return TensorProto(dtype=dtype, tensor_shape=TensorShapeProto(), **fields)


@pytest.mark.parametrize(
    "proto",
    [
        make_tensor_proto(np.array([1.5], np.float32)),
        make_tensor_proto(np.float16(1.5)),
        make_tensor_proto(np.int32(-7)),
        make_tensor_proto(np.int64(-(1 << 53) - 1), dtype=np.int64),
        make_tensor_proto(np.uint8(200)),
        make_tensor_proto(np.int8(-3)),
        make_tensor_proto(np.int16(-300)),
        make_tensor_proto(np.uint16(60_000)),
        packed(DT_FLOAT, tensor_content=np.float32(0.1).tobytes()),
        packed(DT_HALF, tensor_content=np.float16(0.1).tobytes()),
        packed(DT_INT64, tensor_content=np.int64(-9).tobytes()),
        packed(DT_UINT8, tensor_content=b"\xfe"),
    ],
    ids=str,
)
def test_tensors_of_one_number(tmp_path: Path, proto: TensorProto) -> None:
    path = write(tmp_path, [tensor("x", step, proto) for step in range(6)])
    assert points(path) == displayed(path)
    assert len(points(path)["x"]) == 6


@pytest.mark.parametrize(
    ("proto", "value"),
    [
        (packed(DT_BFLOAT16, half_val=[0x3FC0]), 1.5),  # TensorBoard without TensorFlow has no bfloat16
        (packed(DT_BFLOAT16, tensor_content=b"\xc0\x3f"), 1.5),
        (packed(DT_FLOAT), 0.0),  # TensorFlow leaves zeros out, TensorBoard's make_ndarray then fails
    ],
)
def test_tensors_that_only_tensorboard_cannot_read(tmp_path: Path, proto: TensorProto, value: float) -> None:
    path = write(tmp_path, [tensor("x", step, proto) for step in range(6)])
    assert points(path)["x"] == [(step, 1.0, repr(value)) for step in range(6)]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (histogram("x", 0), "histogram"),
        (tensor("x", 0, make_tensor_proto(np.zeros(3)), plugin="histograms"), "histogram"),
        (tensor("x", 0, make_tensor_proto("hello"), plugin="text"), "text"),
        (tensor("x", 0, make_tensor_proto(np.zeros((2, 2))), plugin=""), "tensor"),
        (tensor("x", 0, make_tensor_proto(np.zeros(2)), plugin="scalars"), "tensor"),
        (tensor("x", 0, make_tensor_proto(1.0), plugin="my plugin"), "my plugin"),
        (tensor("x", 0, packed(DT_STRING, string_val=[b"a"]), plugin="pr_curves"), "pr curve"),
        (Event(summary=Summary(value=[Summary.Value(tag="x", image=Summary.Image(width=1))])), "image"),
        (Event(summary=Summary(value=[Summary.Value(tag="x", audio=Summary.Audio())])), "audio"),
        (Event(summary=Summary(value=[Summary.Value(tag="x")])), "empty"),
        (Event(tagged_run_metadata={"tag": "x", "run_metadata": b"abc"}), "run metadata"),
    ],
)
def test_values_other_than_scalars_have_kind(tmp_path: Path, event: Event, kind: str) -> None:
    contents = read(write(tmp_path, [scalar("loss", 0, 1.0)] + [event] * 5))
    assert list(contents.scalars) == ["loss"]
    assert dict(contents.others) == {("x", kind): 5}
    assert contents.tags == {"loss", "x"}


def test_hparams_and_graph_are_listed(tmp_path: Path) -> None:
    contents = read(write(tmp_path, [Event(summary=hparams_pb({"lr": 0.1})), Event(graph_def=b"graph")]))
    assert {kind for _, kind in contents.others} == {"hparams", "graph"}
    assert ("__run_graph__", "graph") in contents.others


def test_tensor_without_tag_has_node_name(tmp_path: Path) -> None:
    value = Summary.Value(node_name="node", tensor=make_tensor_proto(2.0))
    path = write(tmp_path, [Event(wall_time=1.0, step=step, summary=Summary(value=[value])) for step in range(9)])
    assert points(path) == {"node": [(step, 1.0, "2.0") for step in range(9)]}


def test_tags_that_are_not_utf_8_stay_different(tmp_path: Path) -> None:
    record = scalar("ab", 3, 1.0).SerializeToString()
    path = write(tmp_path, [])
    with path.open("ab") as file:
        for tag in (b"\xff\x01", b"\xfe\x01"):
            for _ in range(5):
                file.write(frame(record.replace(b"ab", tag)))
    assert {tag: len(found) for tag, found in points(path).items()} == {"\\xff\x01": 5, "\\xfe\x01": 5}


def test_records_of_same_length_with_different_structure(tmp_path: Path) -> None:
    """A step of three bytes, and one of a byte before an unknown field: the rest is the same."""
    long_step = scalar("loss", 1 << 14, 1.0).SerializeToString()
    short_step = long_step.replace(b"\x10\x80\x80\x01", b"\x10\x05\x78\x01")
    assert len(long_step) == len(short_step)
    assert long_step != short_step
    path = write(tmp_path, [])
    with path.open("ab") as file:
        for record in [long_step, short_step] * 5:
            file.write(frame(record))
    assert [step for step, _, _ in points(path)["loss"]] == [1 << 14, 5] * 5
    assert points(path) == accumulated(path)


def test_bit_patterns_of_nan(tmp_path: Path) -> None:
    quiet = scalar("loss", 3, math.nan).SerializeToString()
    path = write(tmp_path, [])
    with path.open("ab") as file:
        for pattern in (b"\x01\x00\x80\x7f", b"\xff\xff\xff\xff", b"\x00\x00\xc0\x7f") * 3:
            file.write(frame(quiet[: quiet.index(b"\x15") + 1] + pattern))
    assert points(path)["loss"] == [(3, 1.0, "nan")] * 9


def test_records_of_many_shapes(tmp_path: Path) -> None:
    """Each with other metadata, all of one length."""
    proto = make_tensor_proto(1.5)
    events = [tensor("x", step, proto, plugin="scalars") for step in range(300)]
    for index, event in enumerate(events):
        event.summary.value[0].metadata.display_name = f"name {index // 2:03}"
    path = write(tmp_path, events)
    assert points(path) == displayed(path)
    assert len(points(path)["x"]) == 300


def test_files_of_own_recorder(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path, {"lr": 0.1, "hiddens": [8, 8]})
    for step in range(0, 3000, 100):
        row = {"timesteps_total": step, "timesteps_this_iter": 100 if step else 0}
        recorder.record({**row, "episode_reward_mean": math.sqrt(step), "config": {"lr": 0.1}})
    recorder.close()
    assert points(tmp_path) == accumulated(tmp_path)
    assert len(points(tmp_path)["ray/tune/episode_reward_mean"]) == 30
    assert {kind for _, kind in read(tmp_path).others} == {"hparams", "layout"}


def fill(writer: object) -> None:
    for step in range(200):
        writer.add_scalar("train/loss", 1 / (step + 1), step)  # type: ignore[attr-defined]
        writer.add_scalar("train/reward", step**2, step)  # type: ignore[attr-defined]
        if step % 20 == 0:
            writer.add_histogram("weights", np.arange(10.0), step)  # type: ignore[attr-defined]
            writer.add_text("notes", "hello", step)  # type: ignore[attr-defined]
    writer.close()  # type: ignore[attr-defined]


def test_files_of_torch(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        fill(SummaryWriter(str(tmp_path)))
    assert points(tmp_path) == accumulated(tmp_path)
    assert dict(read(tmp_path).others) == {("weights", "histogram"): 10, ("notes/text_summary", "text"): 10}


def test_files_of_tensorboardx(tmp_path: Path) -> None:
    tensorboardx = pytest.importorskip("tensorboardX")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fill(tensorboardx.SummaryWriter(str(tmp_path)))
    assert points(tmp_path) == accumulated(tmp_path)
    assert dict(read(tmp_path).others) == {("weights", "histogram"): 10, ("notes/text_summary", "text"): 10}
