"""Buffers of the replay library in files: loaded ones go on as the saved ones, and damaged ones change nothing."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.errors import CheckpointError
from rlexp.replay import PrioritizedReplayBuffer, ReplayBuffer
from tests.unit.replay.numbered_rows import COLUMNS, rows

AnyBuffer = ReplayBuffer | PrioritizedReplayBuffer
MakeBuffer = Callable[..., AnyBuffer]

both = pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])


@both
@pytest.mark.parametrize("added", [0, 3, 23])
def test_buffer_saved_and_loaded_draws_the_same(make: MakeBuffer, added: int, tmp_path: Path) -> None:
    original, copy = make(10, COLUMNS, seed=3), make(10, COLUMNS, seed=4)
    original.add(**rows(0, added))
    path = tmp_path / "replay.npz"
    original.save(path)
    copy.add(**rows(90, 2))
    old_keys = copy.sample(20)["keys"]
    copy.load(path)
    if isinstance(copy, PrioritizedReplayBuffer):
        assert copy.update_priorities(old_keys, np.full(20, 1e6)) == 20
    for buffer in (original, copy):
        buffer.add(**rows(added, 4))
    batches = [buffer.sample(100) for buffer in (original, copy)]
    for name in ("number", "weights", "picture"):
        np.testing.assert_array_equal(batches[0][name], batches[1][name])
    assert copy.get_all_transitions()["number"].tolist() == original.get_all_transitions()["number"].tolist()
    assert [file.name for file in tmp_path.iterdir()] == ["replay.npz"]
    if added:
        with np.load(path, allow_pickle=False) as saved:
            assert sorted(saved["number"].tolist()) == list(range(max(added - 10, 0), added))


def test_prioritized_saves_priorities(tmp_path: Path) -> None:
    original, copy = (PrioritizedReplayBuffer(4, COLUMNS, alpha=1.0, eps=0.0, seed=seed) for seed in (0, 1))
    original.add(**rows(0, 6), priorities=[9, 9, 1, 2, 4, 8])
    original.save(tmp_path / "replay.npz")
    copy.load(tmp_path / "replay.npz")
    batch = copy.sample(200, beta=1.0)
    np.testing.assert_allclose(batch["weights"], 2.0 ** -(batch["number"] - 2.0))
    copy.add(**rows(6, 1))  # with the highest priority so far, 9
    batch = copy.sample(200, beta=1.0)
    assert batch["weights"].min() == pytest.approx(2 / 9)


@both
def test_columns_of_the_other_byte_order_are_held_in_this_machines(make: MakeBuffer, tmp_path: Path) -> None:
    columns = {"obs": ((2,), ">f4"), "number": ((), np.dtype(np.int64).newbyteorder(">"))}
    original, copy = make(4, columns), make(4, columns)
    original.add(obs=np.array([0.5, -1.5], ">f4"), number=7)
    original.save(tmp_path / "replay.npz")
    copy.load(tmp_path / "replay.npz")
    rows = copy.get_all_transitions()
    assert (rows["obs"].tolist(), rows["number"].tolist()) == ([[0.5, -1.5]], [7])
    assert [rows[name].dtype for name in ("obs", "number")] == [np.dtype(np.float32), np.dtype(np.int64)]


OTHERS: dict[str, Callable[[], AnyBuffer]] = {
    "capacity is 4 there and 5": lambda: PrioritizedReplayBuffer(5, COLUMNS),
    "alpha is 0.6 there and 0.5": lambda: PrioritizedReplayBuffer(4, COLUMNS, alpha=0.5),
    "alpha is 0.6 there and None": lambda: ReplayBuffer(4, COLUMNS),
    "it has the columns": lambda: PrioritizedReplayBuffer(4, {**COLUMNS, "more": ((), np.int8)}),
    r"column obs is float32\[2, 2\] instead of float64": lambda: PrioritizedReplayBuffer(
        4, {**COLUMNS, "obs": ((2,), np.float64)}
    ),
}


@pytest.mark.parametrize("message", OTHERS)
def test_buffer_refuses_a_saved_buffer_that_does_not_fit(message: str, tmp_path: Path) -> None:
    original, other = PrioritizedReplayBuffer(4, COLUMNS), OTHERS[message]()
    original.add(**rows(0, 2))
    original.save(tmp_path / "replay.npz")
    more: dict[str, Any] = {"more": [1]} if message == "it has the columns" else {}
    other.add(**rows(5, 1), **more)
    with pytest.raises(CheckpointError, match=message):
        other.load(tmp_path / "replay.npz")
    assert other.get_all_transitions()["number"].tolist() == [5]


def damaged(path: Path, how: str) -> None:
    """Change a saved buffer of two rows."""
    with np.load(path) as saved:
        parts = dict(saved.items())
    values = bytes(parts.pop("state.json"))
    match how:
        case "cut short":
            path.write_bytes(path.read_bytes()[:-300])
            return
        case "no zip":
            path.write_bytes(b"hello")
            return
        case "objects":
            parts["number"] = np.array([{}, {}], object)
        case "rows missing":
            parts["number"] = parts["number"][:1]
        case "NaN priority":
            parts["priorities_to_alpha"][0] = np.nan
        case "no generator":
            values = values.replace(b"PCG64", b"other")
        case "values missing":
            values = values.replace(b"num_added", b"num_other")
    np.savez(path, **parts)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("state.json", values)


@pytest.mark.parametrize(
    "how", ["cut short", "no zip", "objects", "rows missing", "NaN priority", "no generator", "values missing"]
)
def test_buffer_refuses_a_damaged_file(how: str, tmp_path: Path) -> None:
    path, buffer = tmp_path / "replay.npz", PrioritizedReplayBuffer(4, COLUMNS)
    buffer.add(**rows(0, 2))
    buffer.save(path)
    buffer.load(path)
    damaged(path, how)
    buffer.add(**rows(2, 1))
    with pytest.raises(CheckpointError, match=r"replay\.npz"):
        buffer.load(path)
    assert buffer.get_all_transitions()["number"].tolist() == [0, 1, 2]


def test_buffer_load_says_where_no_file_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReplayBuffer(4, COLUMNS).load(tmp_path / "none.npz")
