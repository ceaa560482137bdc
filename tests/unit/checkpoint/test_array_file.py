"""Files of arrays are those of the safetensors library, and neither writing nor reading needs a second array."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlexp import states
from rlexp.runs.checkpoints.contents import read_arrays, write_arrays
from rlexp.states import LazyArray

codes = st.sampled_from([np.dtype(code) for code in ("?", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8", ">f4")])
any_array = hnp.arrays(codes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype.newbyteorder("=")) == (array.shape, array.dtype.newbyteorder("="))
        np.testing.assert_array_equal(found[name], array)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(arrays=st.dictionaries(st.text(max_size=4), any_array, max_size=4), piece=st.sampled_from([1, 7, 64, 1 << 24]))
def test_written_arrays_are_read_by_safetensors_and_read_arrays(
    arrays: dict[str, Any], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(states, "PIECE_BYTES", piece)
        write_arrays(tmp_path / "ours", {name: array.T for name, array in arrays.items()})
    transposed = {name: array.T for name, array in arrays.items()}
    assert_equal(safetensors.numpy.load_file(tmp_path / "ours"), transposed)
    assert_equal(read_arrays(tmp_path / "ours"), transposed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(arrays=st.dictionaries(st.text(max_size=4), any_array, min_size=1, max_size=4))
def test_read_arrays_reads_files_of_safetensors(arrays: dict[str, Any], tmp_path: Path) -> None:
    dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(dense, tmp_path / "theirs", metadata={"format": "np"})
    assert_equal(read_arrays(tmp_path / "theirs"), arrays)


def test_arrays_are_read_in_place_and_aligned(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", {"bytes": np.ones(3, np.uint8), "numbers": np.arange(5.0), "flag": np.array(True)})
    for array in read_arrays(tmp_path / "file").values():
        assert array.flags.aligned
        assert not array.flags.writeable
        assert not array.flags.owndata


def test_write_arrays_reads_a_lazy_array_by_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PIECE_BYTES", 100)
    numbers = np.arange(103 * 3).reshape(103, 3)
    asked = []

    def read(start: int, stop: int) -> Any:
        asked.append((start, stop))
        return numbers[start:stop].astype(">i8")

    write_arrays(tmp_path / "file", {"numbers": LazyArray(numbers.shape, numbers.dtype, read)})
    np.testing.assert_array_equal(read_arrays(tmp_path / "file")["numbers"], numbers)
    assert asked == [(start, min(start + 4, 103)) for start in range(0, 103, 4)]


def test_write_arrays_detects_wrong_number_of_rows(tmp_path: Path) -> None:
    short = LazyArray((4,), np.dtype(np.float64), lambda start, stop: np.zeros(stop - start - 1))
    with pytest.raises(ValueError, match="changed while it was written"):
        write_arrays(tmp_path / "file", {"short": short})


def test_writing_and_reading_take_the_memory_of_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "PIECE_BYTES", 1 << 18)
    records = np.zeros(1 << 20, np.dtype([("a", np.float32, (4,)), ("b", np.int64)]))
    tracemalloc.start()
    write_arrays(tmp_path / "file", {"a": records["a"], "b": records["b"]})
    arrays = read_arrays(tmp_path / "file")
    total = sum(float(array.sum()) for array in arrays.values())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 0.0
    assert records.nbytes == 24 << 20
    assert peak < 2 << 20


def header_of(**forms: Any) -> bytes:
    text = json.dumps(forms).encode()
    return len(text).to_bytes(8, "little") + text + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x02\0\0",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        header_of(a=3),
        header_of(a={"dtype": "F32", "shape": [2]}),
        header_of(a={"dtype": "O", "shape": [2], "data_offsets": [0, 16]}),
        header_of(a={"dtype": "F32", "shape": [4], "data_offsets": [8, 24]}),
        header_of(a={"dtype": "F32", "shape": [4], "data_offsets": [-8, 8]}),
        header_of(a={"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}),
        header_of(a={"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 16]}),
        header_of(a={"dtype": "F32", "shape": [-1], "data_offsets": [0, 16]}),
        header_of(a={"dtype": "F32", "shape": ["x"], "data_offsets": [0, 16]}),
    ],
)
def test_read_arrays_refuses_other_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match=r".+"):
        read_arrays(tmp_path / "file")
