"""Runs: which files are one, in which order, and what is left of them after a restart."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from rlexp.errors import UsageError
from rlexp.results.event_files import Run, TagGlobs, find_runs
from tests.unit.results.event_writing import accumulated, points, read, scalar, start, write

FIRST, SECOND = "events.out.tfevents.1.host", "events.out.tfevents.2.host"


def steps(path: Path, tag: str = "loss") -> list[int]:
    return [step for step, _, _ in points(path)[tag]]


def losses(steps: range, wall_time: float = 1.0) -> list[object]:
    return [scalar("loss", step, 0.5, wall_time + index) for index, step in enumerate(steps)]


def test_every_directory_with_event_files_is_a_run(tmp_path: Path) -> None:
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


def test_a_file_is_a_run_whatever_its_name(tmp_path: Path) -> None:
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


def test_an_announced_restart_takes_back_what_tensorboard_takes_back(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10)), start(6), *losses(range(6, 9))], FIRST)
    write(tmp_path, [start(4), *losses(range(4, 7))], SECOND)
    assert points(tmp_path) == accumulated(tmp_path)
    assert steps(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    assert read(tmp_path).taken_back == 9


def test_torch_announces_a_restart_by_purge_step(tmp_path: Path) -> None:
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


def test_a_later_file_that_begins_earlier_takes_back(tmp_path: Path) -> None:
    write(tmp_path, [*losses(range(10), 0), *[scalar("other", step, 0.0, 5.0) for step in range(3)]], FIRST)
    write(tmp_path, losses(range(6, 12), 100), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == list(range(12))
    assert steps(tmp_path, "other") == [0, 1, 2]
    assert (contents.taken_back, contents.goes_back) == (4, 0)


def test_three_lives(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), "events.out.tfevents.1")
    write(tmp_path, losses(range(4, 8), 100), "events.out.tfevents.2")
    write(tmp_path, losses(range(6, 9), 200), "events.out.tfevents.3")
    assert steps(tmp_path) == list(range(9))
    assert [wall for _, wall, _ in points(tmp_path)["loss"]] == [0, 1, 2, 3, 100, 101, 200, 201, 202]


def test_files_written_side_by_side_take_nothing_back(tmp_path: Path) -> None:
    write(tmp_path, losses(range(10), 0), FIRST)
    write(tmp_path, losses(range(10), 0.5), SECOND)
    contents = read(tmp_path)
    assert steps(tmp_path) == [*range(10), *range(10)]
    assert (contents.taken_back, contents.goes_back) == (0, 1)


def test_steps_that_go_back_within_a_file_are_kept_and_counted(tmp_path: Path) -> None:
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
def test_globs_match_tags_and_their_ends(pattern: str, matches: list[str]) -> None:
    tags = ["loss", "ray/tune/loss", "ray/tune/info/a", "closs"]
    assert [tag for tag in tags if TagGlobs([pattern]).match(tag)] == matches


def test_a_glob_without_match() -> None:
    globs = TagGlobs(["los", "reward"])
    with pytest.raises(UsageError, match="no tag matches los") as error:
        globs.refuse_unmatched(["train/loss", "reward"])
    assert error.value.hint == "did you mean loss?"
    TagGlobs([]).refuse_unmatched([])
    TagGlobs(["reward"]).refuse_unmatched(["train/reward"])
