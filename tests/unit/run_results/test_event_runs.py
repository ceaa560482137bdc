"""Runs: their files and the order of these, the points that a restart discards, globs for tags, and followers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from rlexp.compare.event_files import Follower, Run, Series, TagGlobs, find_runs
from rlexp.errors import UsageError
from tests.unit.run_results.event_writing import accumulated, frames, points, read, scalar, start, write

FIRST, SECOND = "events.out.tfevents.1.host", "events.out.tfevents.2.host"


def steps(path: Path, tag: str = "loss") -> list[int]:
    return [step for step, _, _ in points(path)[tag]]


def losses(steps: range, wall_time: float = 1.0) -> list[object]:
    return [scalar("loss", step, 0.5, wall_time + index) for index, step in enumerate(steps)]


def test_each_directory_with_event_files_is_a_run(tmp_path: Path) -> None:
    write(tmp_path / "b" / "trial", losses(range(3)), FIRST)
    write(tmp_path / "b" / "trial", losses(range(3, 5), 100), SECOND)
    write(tmp_path / "a", losses(range(1)))
    (tmp_path / "a" / "notes.txt").write_text("no events")
    (tmp_path / "a" / "events.out.tfevents.9.profile-empty").touch()
    runs = find_runs([tmp_path, tmp_path / "a"])
    trial = tmp_path / "b" / "trial"
    assert runs == [
        Run(str(tmp_path / "a"), (tmp_path / "a" / FIRST,)),
        Run(str(trial), (trial / FIRST, trial / SECOND)),
    ]
    assert steps(trial) == [0, 1, 2, 3, 4]


def test_named_file_of_any_name_is_a_run(tmp_path: Path) -> None:
    path = write(tmp_path, losses(range(3))).rename(tmp_path / "log")
    assert find_runs([path]) == [Run(str(path), (path,))]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "does not exist"),
        ("empty", "contains no event files"),
        ("text", "is not an event file"),
    ],
)
def test_paths_without_event_files(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "good", losses(range(3)))
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("cartpole:\n  run: APEX\n")
    with pytest.raises(UsageError, match=message) as error:
        find_runs([tmp_path / "good", tmp_path / name])
    assert error.value.hint


def test_announced_restart_discards_what_tensorboard_discards(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10)), start(6), *losses(range(6, 9))], FIRST)
    write(tmp_path, [start(4), *losses(range(4, 7))], SECOND)
    assert points(tmp_path) == accumulated(tmp_path)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    assert read(tmp_path).taken_back == 9


def test_restart_announced_by_purge_step(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.utils.tensorboard import SummaryWriter

        for suffix, purge_step, span in ((".a", None, range(10)), (".b", 7, range(7, 12))):
            writer = SummaryWriter(str(tmp_path), purge_step=purge_step, filename_suffix=suffix)
            for step in span:
                writer.add_scalar("loss", 1.0, step)
            writer.close()
    assert points(tmp_path) == accumulated(tmp_path)
    assert steps(tmp_path) == list(range(12))


def test_later_file_with_earlier_steps_discards_points(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10), 0), *[scalar("other", step, 0.0, 5.0) for step in range(3)]], FIRST)
    write(tmp_path, losses(range(6, 12), 100), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == list(range(12))
    assert steps(tmp_path, "other") == [0, 1, 2]
    assert (contents.taken_back, contents.goes_back) == (4, 0)


def test_two_restarts(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), "events.out.tfevents.1")
    write(tmp_path, losses(range(4, 8), 100), "events.out.tfevents.2")
    write(tmp_path, losses(range(6, 9), 200), "events.out.tfevents.3")
    assert steps(tmp_path) == list(range(9))
    assert [wall for _, wall, _ in points(tmp_path)["loss"]] == [0, 1, 2, 3, 100, 101, 200, 201, 202]


def test_files_written_at_the_same_time_discard_nothing(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), FIRST)
    write(tmp_path, losses(range(10), 0.5), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == [*range(10), *range(10)]
    assert (contents.taken_back, contents.goes_back) == (0, 1)


def test_decreasing_steps_within_file_are_kept_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path, [*losses(range(5)), *losses(range(5)), *losses(range(5))])
    assert points(path) == accumulated(path)
    assert read(path).goes_back == 2


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("loss", ["loss", "ray/tune/loss"]),
        ("ray/tune/*", ["ray/tune/loss", "ray/tune/info/a"]),
        ("*/loss", ["ray/tune/loss"]),
        ("tune/loss", ["ray/tune/loss"]),
        ("?oss", ["loss", "ray/tune/loss"]),
        ("LOSS", []),
    ],
)
def test_globs_match_tags_and_endings(pattern: str, matches: list[str]) -> None:
    tags = ["loss", "ray/tune/loss", "ray/tune/info/a", "closs"]
    assert [tag for tag in tags if TagGlobs([pattern]).match(tag)] == matches


def test_glob_without_match() -> None:
    globs = TagGlobs(["los", "reward"])
    with pytest.raises(UsageError, match="no tag matches los") as error:
        globs.refuse_unmatched(["train/loss", "reward"])
    assert error.value.hint == "did you mean loss?"
    TagGlobs([]).refuse_unmatched([])
    TagGlobs(["reward"]).refuse_unmatched(["train/reward"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "trial", [scalar("loss", step, 1.0) for step in range(3)])


def follower(folder: Path) -> Follower:
    """A follower that continues where reading the run ended."""
    return Follower([folder], read(folder, Series).files)


def polled(follower: Follower) -> list[tuple[str, str, list[int]]]:
    return [
        (Path(run.name).name, tag, points["step"].tolist())
        for run, batch in follower.poll()
        for tag, points in batch.points.items()
    ]


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_poll_skips_points_that_were_read(path: Path) -> None:
    assert polled(follower(path.parent)) == []


def test_poll_returns_each_point_once(path: Path) -> None:
    following = follower(path.parent)
    for step in (3, 4):
        append(path, b"".join(frames([scalar("loss", step, 1.0), scalar("reward", step, 1.0)])))
        assert sorted(polled(following)) == [("trial", "loss", [step]), ("trial", "reward", [step])]
        assert polled(following) == []


def test_poll_returns_record_when_complete(path: Path) -> None:
    following = follower(path.parent)
    (record,) = frames([scalar("loss", 3, 1.0)])
    for byte in range(len(record) - 1):
        append(path, record[byte : byte + 1])
        assert polled(following) == []
    assert following.new_faults() == []
    append(path, record[-1:])
    assert polled(following) == [("trial", "loss", [3])]


def test_poll_continues_cut_file(path: Path) -> None:
    (record,) = frames([scalar("loss", 3, 1.0)])
    append(path, record[:10])
    following = follower(path.parent)
    append(path, record[10:])
    assert polled(following) == [("trial", "loss", [3])]


def test_poll_finds_new_files_and_runs(path: Path, tmp_path: Path) -> None:
    following = follower(tmp_path)
    write(path.parent, [scalar("loss", 9, 1.0)], "events.out.tfevents.2.host")
    write(tmp_path / "another", [scalar("loss", 0, 1.0)])
    assert polled(following) == [("another", "loss", [0]), ("trial", "loss", [9])]


def test_removed_and_replaced_files(path: Path) -> None:
    following = follower(path.parent)
    length = path.stat().st_size
    path.write_bytes(b"short")
    assert polled(following) == []
    assert following.new_faults() == [f"{path} has become shorter than the {length:,} bytes that were read"]
    assert following.new_faults() == []
    path.unlink()
    assert polled(following) == []


def test_damage_is_reported_once(path: Path) -> None:
    following = follower(path.parent)
    append(path, b"no frame at all")
    assert polled(following) == []
    assert len(following.new_faults()) == 1
    append(path, b"more")
    assert polled(following) == []
    assert following.new_faults() == []
