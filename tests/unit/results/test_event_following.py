"""Following event files: every point once, as soon as its record is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.results.event_files import Follower, Series
from tests.unit.results.event_writing import frames, read, scalar, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "trial", [scalar("loss", step, 1.0) for step in range(3)])


def follower(folder: Path) -> Follower:
    """A follower that goes on where reading the run left off."""
    return Follower([folder], read(folder, Series).files)


def news(follower: Follower) -> list[tuple[str, str, list[int]]]:
    return [
        (Path(run.name).name, tag, points["step"].tolist())
        for run, batch in follower.poll()
        for tag, points in batch.points.items()
    ]


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_what_is_there_is_no_news(path: Path) -> None:
    assert news(follower(path.parent)) == []


def test_every_point_is_news_once(path: Path) -> None:
    following = follower(path.parent)
    for step in (3, 4):
        append(path, b"".join(frames([scalar("loss", step, 1.0), scalar("reward", step, 1.0)])))
        assert sorted(news(following)) == [("trial", "loss", [step]), ("trial", "reward", [step])]
        assert news(following) == []


def test_a_record_is_news_when_it_is_complete(path: Path) -> None:
    following = follower(path.parent)
    (record,) = frames([scalar("loss", 3, 1.0)])
    for byte in range(len(record) - 1):
        append(path, record[byte : byte + 1])
        assert news(following) == []
    assert following.new_faults() == []
    append(path, record[-1:])
    assert news(following) == [("trial", "loss", [3])]


def test_a_cut_file_is_completed(path: Path) -> None:
    (record,) = frames([scalar("loss", 3, 1.0)])
    append(path, record[:10])
    following = follower(path.parent)
    append(path, record[10:])
    assert news(following) == [("trial", "loss", [3])]


def test_files_and_runs_that_appear(path: Path, tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(path.parent, [scalar("loss", 9, 1.0)], "events.out.tfevents.2.host")
    write(tmp_path / "another", [scalar("loss", 0, 1.0)])
    assert news(following) == [("another", "loss", [0]), ("trial", "loss", [9])]


def test_a_file_that_is_removed_or_replaced(path: Path) -> None:
    following = follower(path.parent)
    length = path.stat().st_size
    path.write_bytes(b"short")
    assert news(following) == []
    assert following.new_faults() == [f"{path} has become shorter than the {length:,} bytes that were read"]
    assert following.new_faults() == []
    path.unlink()
    assert news(following) == []


def test_damage_is_told_once(path: Path) -> None:
    following = follower(path.parent)
    append(path, b"no frame at all")
    assert news(following) == []
    assert len(following.new_faults()) == 1
    append(path, b"more")
    assert news(following) == []
    assert following.new_faults() == []
