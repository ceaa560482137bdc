"""A checkpoint is whole, or it is not there; one that was changed is never read; arrays are never in memory twice."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
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
from rlexp.errors import CheckpointError, RlexpError
from rlexp.runs.checkpoint_contents import read_arrays, read_checkpoint, write_arrays
from rlexp.runs.checkpoints import (
    checkpoint_directory,
    list_checkpoints,
    newest_checkpoint,
    newest_with_damaged_aside,
    set_aside,
    write_checkpoint,
)
from rlexp.states import LazyArray
from tests.lab.checkpoints import Bomb, forge

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


ARRAYS = {
    "learner": {"head.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)},
    "optimizer": {"exp_avg": np.linspace(0, 1, 5)},
}
STATE = {"timesteps_total": 12_000, "rng": {"state": 2**127 + 1, "inc": 3}, "epsilon": 0.1}
METADATA = {"env": "CartPole-v1", "episode_reward_mean": float("nan")}


def write(trial: Path, iteration: int, state: dict[str, Any] = STATE) -> Path:
    return write_checkpoint(checkpoint_directory(trial, iteration), ARRAYS, state, METADATA)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def list_as(checkpoint: Path, name: str, content: bytes) -> None:
    """Let the manifest list a file as one with other contents."""
    files = json.loads((checkpoint / "manifest.json").read_bytes())["files"]
    forge(checkpoint, files={**files, name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}})


def test_read_checkpoint_returns_what_was_written(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(write(tmp_path, 10))
    assert checkpoint.sequence == 10
    assert checkpoint.state == STATE
    assert checkpoint.metadata == {"env": "CartPole-v1", "episode_reward_mean": None}
    assert checkpoint.arrays.keys() == ARRAYS.keys()
    for group, arrays in ARRAYS.items():
        for name, array in arrays.items():
            assert checkpoint.arrays[group][name].dtype == array.dtype
            np.testing.assert_array_equal(checkpoint.arrays[group][name], array, strict=True)


def test_write_checkpoint_refuses_unstorable_values_before_writing(tmp_path: Path) -> None:
    directory = tmp_path / "trial" / "checkpoint_000001"
    with pytest.raises(ValueError, match="dtype object"):
        write_checkpoint(directory, {"learner": {"evil": np.array([object()])}}, {}, {})
    with pytest.raises(ValueError, match="group"):
        write_checkpoint(directory, {"../learner": {}}, {}, {})
    with pytest.raises(ValueError, match="six digits"):
        write_checkpoint(tmp_path / "newest", {}, {}, {})
    with pytest.raises(TypeError, match="JSON"):
        write_checkpoint(directory, {}, {"rng": object()}, {})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_killed_write_leaves_newest_valid_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The process dies (nothing after the fault runs, no clean-up either) at the first, second, third ... call."""
    good = write(tmp_path, 1)
    real_call, real_rmtree = getattr(os, step), shutil.rmtree
    completed = False
    for survived in range(12):
        calls = 0

        def dies_after(*args: Any, allowed: int = survived, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > allowed:
                monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
                raise KeyboardInterrupt
            return real_call(*args, **kwargs)

        monkeypatch.setattr(os, step, dies_after)
        try:
            write(tmp_path, 2)
            completed = True
        except KeyboardInterrupt:
            pass
        monkeypatch.setattr(os, step, real_call)
        monkeypatch.setattr(shutil, "rmtree", real_rmtree)
        newest = newest_checkpoint(tmp_path)
        assert newest is not None
        read_checkpoint(newest)
        assert newest == good or newest.name.startswith("checkpoint_000002")
        if completed:
            break
    assert completed
    assert names(tmp_path) == {"checkpoint_000001", "checkpoint_000002"}


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RlexpError, match="checkpoint_000002: No space left on device"):
            write(tmp_path, 2)
    assert names(tmp_path) == {"checkpoint_000001"}


def test_writing_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, 5, {"attempt": 1})
    assert read_checkpoint(write(tmp_path, 5, {"attempt": 2})).state == {"attempt": 2}
    assert names(tmp_path) == {"checkpoint_000005"}


def test_replaced_checkpoint_is_valid_until_rename(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    path.rename(tmp_path / "checkpoint_000005.replaced")
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert read_checkpoint(newest).sequence == 5
    write(tmp_path, 6)
    assert newest.exists()
    write(tmp_path, 5)
    assert not newest.exists()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_flipped_bits_are_detected(tmp_path: Path, data: st.DataObject) -> None:
    path = write(tmp_path, 1)
    file = path / data.draw(st.sampled_from(sorted(names(path))))
    content = bytearray(file.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(content)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


@pytest.mark.parametrize("file", ["learner.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "missing", "directory"])
def test_damage_names_the_file(tmp_path: Path, file: str, damage: str) -> None:
    path = write(tmp_path, 3)
    target = path / file
    content = target.read_bytes()
    target.unlink()
    if damage == "directory":
        target.mkdir()
    elif damage != "missing":
        target.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    with pytest.raises(CheckpointError, match=rf"checkpoint_000003 is damaged \(.*{file}") as caught:
        read_checkpoint(path)
    assert caught.value.hint
    assert caught.value.exit_code == 3


def test_flipped_bit_is_reported_as_sha256_mismatch(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    weights = path / "learner.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"is damaged \(sha256 mismatch in learner.safetensors\)"):
        read_checkpoint(path)


@pytest.mark.parametrize("name", ["learner.safetensors", "learner.pkl", "../evil.safetensors"])
def test_a_pickle_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    path, sentinel = write(tmp_path, 3), tmp_path / "sentinel"
    content = pickle.dumps(Bomb(sentinel))
    (path / name).write_bytes(content)
    list_as(path, name, content)
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not sentinel.exists()


NESTED = json.loads("[" * 900 + "]" * 900)
UNREADABLE = r"manifest\.json is unreadable"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99, this rlexp reads format 1"),
        ({"files": []}, UNREADABLE),
        ({"files": None}, UNREADABLE),
        ({"files": {"state.json": 3}}, UNREADABLE),
        ({"files": {"state.json": {}}}, UNREADABLE),
        ({"files": {"x": NESTED}}, UNREADABLE),
        ({"files": {}}, r"state\.json is missing"),
        ({"metadata": []}, UNREADABLE),
        ({"metadata": {"x": NESTED}}, UNREADABLE),
        ({"sequence": "3"}, UNREADABLE),
        ({"sequence": None}, UNREADABLE),
        *(
            ({"files": {"state.json": {"bytes": size, "sha256": ""}}}, r"state\.json has \d+ bytes instead of")
            for size in (2**62, -1, 10**300, 1.5, "3", None, True)
        ),
    ],
    ids=lambda part: str(part)[:40],
)
def test_a_forged_manifest_is_an_error_of_the_checkpoint(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path, 3)
    forge(path, **change)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(path)


def test_a_key_that_the_manifest_gives_twice_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    text = (path / "manifest.json").read_text(encoding="utf-8")
    (path / "manifest.json").write_text(text.replace('"sequence": 3', '"sequence": 4, "sequence": 3', 1))
    with pytest.raises(CheckpointError, match=UNREADABLE):
        read_checkpoint(path)


def test_pipe_instead_of_a_file_does_not_block(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    list_as(path, "learner.safetensors", b"")
    for name, said in (("learner.safetensors", "not a regular file"), ("manifest.json", "unreadable")):
        (path / name).unlink()
        os.mkfifo(path / name)
        with pytest.raises(CheckpointError, match=said):
            read_checkpoint(path)


def test_a_state_that_is_none_is_an_error_of_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path, 3)
    (path / "state.json").write_text("[]", encoding="utf-8")
    list_as(path, "state.json", b"[]")
    with pytest.raises(CheckpointError, match="holds no state"):
        read_checkpoint(path)


def test_missing_checkpoint_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        read_checkpoint(tmp_path / "checkpoint_000001")


def test_newest_checkpoint_has_highest_iteration(tmp_path: Path) -> None:
    for iteration in (9, 1_000_000, 10):
        os.utime(write(tmp_path, iteration), (1_000_000_000 - iteration, 1_000_000_000 - iteration))
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "checkpoint_1000000",
        "checkpoint_000010",
        "checkpoint_000009",
    ]
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint_1000000"


def test_damaged_newest_checkpoint_is_skipped(tmp_path: Path) -> None:
    good, bad = write(tmp_path, 1), write(tmp_path, 2)
    (bad / "learner.safetensors").write_bytes(b"")
    assert newest_checkpoint(tmp_path) == good
    assert set_aside(bad).name == "checkpoint_000002.damaged"
    assert set_aside(write(tmp_path, 2)).name == "checkpoint_000002.damaged-2"
    assert list_checkpoints(tmp_path) == [good]


def test_newer_damaged_checkpoints_are_renamed_and_reported(tmp_path: Path) -> None:
    good, worse, bad = (write(tmp_path, iteration) for iteration in (1, 2, 3))
    (bad / "learner.safetensors").write_bytes(b"")
    (worse / "state.json").unlink()
    newest, said = newest_with_damaged_aside(tmp_path)
    assert newest == good
    assert [sentence.split()[0] for sentence in said] == ["checkpoint_000003", "checkpoint_000002"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint_000001",
        "checkpoint_000002.damaged",
        "checkpoint_000003.damaged",
    ]
    assert newest_with_damaged_aside(tmp_path) == (good, [])


def test_newer_checkpoint_of_other_format_raises(tmp_path: Path) -> None:
    write(tmp_path, 1)
    forge(write(tmp_path, 2), format=99)
    for look in (newest_checkpoint, newest_with_damaged_aside):
        with pytest.raises(CheckpointError, match="has format 99"):
            look(tmp_path)
    assert (tmp_path / "checkpoint_000002").is_dir()


def test_only_damaged_checkpoints_raise_and_none_is_none(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "missing") is None
    for iteration in (1, 2):
        (write(tmp_path, iteration) / "state.json").unlink()
    with pytest.raises(CheckpointError, match="checkpoint_000002 is damaged"):
        newest_checkpoint(tmp_path)


def test_leftovers_of_killed_writes_are_removed_by_next_write(tmp_path: Path) -> None:
    shutil.copytree(write(tmp_path, 1), tmp_path / ".checkpoint_000002.4711.writing")
    (tmp_path / "videos").mkdir()
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint_000001"
    write(tmp_path, 3)
    assert names(tmp_path) == {"checkpoint_000001", "checkpoint_000003", "videos"}
