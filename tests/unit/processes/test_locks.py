"""Memory without a name: who may open it, and what stays of it when processes die.

A locked directory stays locked, whatever becomes of its lock file and its path.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.errors import ResourceError, ResumeError
from rlexp.processes.locks import OpenFolder, RunLock, is_in_use
from rlexp.processes.shared_memory import Segment
from tests.lab.trials import LOSSES, Lose, moved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


@LOSSES
def test_open_folder_notices_that_its_path_leads_elsewhere(lose: Lose, folder: Path) -> None:
    opened = OpenFolder(folder)
    assert opened.is_in_place
    lose(folder)
    assert not opened.is_in_place
    assert opened.new_place == (folder.with_name("moved") if lose is moved else None)
    opened.close()
    opened.close()
    assert not opened.is_in_place


def test_directory_stays_locked_without_its_lock_file(folder: Path) -> None:
    lock = RunLock(folder)
    (folder / "rlexp.lock").unlink()
    assert is_in_use(folder)
    for _ in range(2):  # the first attempt makes the file anew
        with pytest.raises(ResumeError, match="is in use by another process"):
            RunLock(folder)
    assert is_in_use(folder)
    lock.release()
    assert not is_in_use(folder)
    RunLock(folder).release()


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 900 + "]" * 900, "[" * 10**5], ids=["empty", "list", "900", "10^5"]
)
def test_lock_file_with_other_content_names_nobody(content: str, folder: Path) -> None:
    lock = RunLock(folder)
    (folder / "rlexp.lock").write_text(content, encoding="utf-8")
    with pytest.raises(ResumeError, match="is in use by another process"):
        RunLock(folder)
    lock.release()


def test_moved_directory_stays_locked(folder: Path) -> None:
    lock = RunLock(folder)
    moved(folder)
    with pytest.raises(ResumeError, match="is in use by pid"):
        RunLock(folder.with_name("moved"))
    lock.release()


def test_segment_arrays_share_memory_by_order() -> None:
    mine = Segment.create()
    yours = mine.handle.open()
    shapes = [((3,), np.int64), ((5000, 2), np.float32), ((0,), np.uint8), ((7,), np.uint8)]
    ours = [[segment.array(shape, dtype) for shape, dtype in shapes] for segment in (mine, yours)]
    for number, (a, b) in enumerate(zip(*ours, strict=True)):
        assert not b.any()
        a[...] = number + 1
        np.testing.assert_array_equal(b, a)
    assert all((array == number + 1).all() for number, array in enumerate(ours[1]))  # and none overlaps another


def test_segment_never_shrinks() -> None:
    mine = Segment.create()
    yours = mine.handle.open()
    mine.array((10,), np.uint8)
    far = mine.array((100_000,), np.uint8)
    yours.array((10,), np.uint8)
    far[-1] = 7
    assert yours.array((100_000,), np.uint8)[-1] == 7


def test_segment_pages_take_memory_when_written() -> None:
    segment = Segment.create()
    array = segment.array((1 << 28,), np.uint8)
    assert os.stat(f"/proc/{os.getpid()}/fd/{segment.handle.fd}").st_blocks * 512 < 1 << 20
    array[1 << 27] = 1
    assert 0 < os.stat(f"/proc/{os.getpid()}/fd/{segment.handle.fd}").st_blocks * 512 < 1 << 22


@pytest.mark.parametrize("wrong", [{"name": "rlexp-other"}, {"pid": 2**22 + 1}, {"fd": 0}])
def test_segment_handle_refuses_other_descriptors(wrong: dict[str, Any]) -> None:
    segment = Segment.create()
    with pytest.raises(ResourceError, match="learner's machine") as error:
        replace(segment.handle, **wrong).open()
    assert error.value.hint == "-o config.replay_storage=actors"


def test_segment_close_refuses_opening_and_keeps_arrays() -> None:
    segment = Segment.create()
    handle, array = segment.handle, segment.array((4,), np.int64)
    segment.close()
    segment.close()
    array[...] = 5
    assert array.tolist() == [5] * 4
    with pytest.raises(ResourceError):
        handle.open()
    with pytest.raises(ValueError, match="closed"):
        segment.array((4,), np.int64)


def test_segment_closes_when_collected() -> None:
    segment = Segment.create()
    path = f"/proc/{os.getpid()}/fd/{segment.handle.fd}"
    name = segment.handle.name
    del segment
    assert not os.path.exists(path) or name not in os.readlink(path)


def test_segment_error_without_memfd_has_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ResourceError, match="Linux") as error:
        Segment.create()
    assert error.value.hint == "-o config.replay_storage=actors"


def test_segment_is_refused_where_a_sandbox_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(name: str, flags: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    with pytest.raises(ResourceError, match="not permitted") as error:
        Segment.create()
    assert error.value.hint == "-o config.replay_storage=actors"
