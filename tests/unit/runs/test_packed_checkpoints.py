"""Checkpoints as one piece of bytes: what was packed comes back, and nothing else is written."""

import hashlib
import hmac
import json
from pathlib import Path

import numpy as np
import pytest

from rlexp.errors import CheckpointError
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.runs.checkpoints import (
    checkpoint_directory,
    iteration_of_packed,
    pack_checkpoint,
    unpack_checkpoint,
    write_checkpoint,
)

KEY = b"key of the task"
ROOM = 1 << 20


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    arrays: dict[str, dict[str, np.ndarray]] = {
        "learner": {"w": np.arange(6, dtype=np.float32)},
        "weights": {"w": np.ones((2, 3))},
    }
    path = write_checkpoint(checkpoint_directory(tmp_path, 12), arrays, {"a": 1.5}, {"name": "é"})
    (path / "notes.txt").write_text("no part of a checkpoint")
    return pack_checkpoint(path, KEY)


def signed(body: bytes) -> bytes:
    return body + hmac.new(KEY, body, hashlib.sha256).digest()


def container(files: list[list[object]], content: bytes) -> bytes:
    header = json.dumps({"files": files}).encode()
    return signed(b"RLXC1" + len(header).to_bytes(4, "big") + header + content)


def test_checkpoint_comes_back_whole(packed: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "trial"
    path = unpack_checkpoint(packed, folder, KEY, ROOM)
    assert path == folder / "checkpoint_000012"
    checkpoint = read_checkpoint(path)
    assert (checkpoint.sequence, checkpoint.state, checkpoint.metadata) == (12, {"a": 1.5}, {"name": "é"})
    assert checkpoint.arrays["learner"]["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert iteration_of_packed(packed, KEY) == 12
    assert not (path / "notes.txt").exists()
    assert [each.name for each in folder.iterdir()] == [path.name]


def test_checkpoint_of_the_same_iteration_is_replaced(packed: bytes, tmp_path: Path) -> None:
    write_checkpoint(checkpoint_directory(tmp_path, 12), {}, {"a": 2}, {})
    assert read_checkpoint(unpack_checkpoint(packed, tmp_path, KEY, ROOM)).state == {"a": 1.5}


@pytest.mark.parametrize("place", [0, 7, 200, -200, -1])
def test_changed_bytes_are_refused(packed: bytes, tmp_path: Path, place: int) -> None:
    changed = bytearray(packed)
    changed[place] ^= 1
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(bytes(changed), tmp_path / "new", KEY, ROOM)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 100])
def test_anything_else_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(content, tmp_path / "new", KEY, ROOM)


def test_other_keys_and_sizes_are_refused(packed: bytes, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not signed"):
        unpack_checkpoint(packed, tmp_path / "new", b"another key", ROOM)
    with pytest.raises(CheckpointError, match="more than 10"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, 10)


@pytest.mark.parametrize("name", ["../state.json", "/etc/state.json", "code.pkl", "a/b.safetensors", ".bashrc", 7])
def test_signed_container_writes_files_of_a_checkpoint_only(name: object, tmp_path: Path) -> None:
    content = container([[name, 2, hashlib.sha256(b"{}").hexdigest()]], b"{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack_checkpoint(content, tmp_path / "a" / "b", KEY, ROOM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "content"), [(2, b"{}x"), (3, b"{}"), (-1, b"{}"), ("2", b"{}"), (1 << 40, b"{}"), (0, b"{}")]
)
def test_sizes_that_do_not_fit_are_refused(size: object, content: bytes, tmp_path: Path) -> None:
    packed = container([["state.json", size, hashlib.sha256(b"{}").hexdigest()]], content)
    with pytest.raises(CheckpointError, match="cannot be read"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, ROOM)


def test_container_without_a_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    packed = container([["state.json", 2, hashlib.sha256(b"{}").hexdigest()]], b"{}")
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        unpack_checkpoint(packed, tmp_path / "new", KEY, ROOM)
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(CheckpointError, match="cannot be read"):
        iteration_of_packed(packed, KEY)
