"""The runs below a directory, with their status by lock and record; damaged runs raise no error."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rlexp.compare import run_listing
from rlexp.compare.run_listing import DAMAGED, KILLED, found_at
from rlexp.errors import UsageError
from rlexp.processes.locks import RunLock, is_in_use
from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run


def run(path: Path, started: str = "2026-01-02T03:04:05+00:00", status: Status = Status.TERMINATED) -> Path:
    return make_run(path, [MadeTrial([5.0, 9.0, 7.0], 1), MadeTrial([4.0], 2)], started=started, status=status)


def test_run_has_values_of_its_record(tmp_path: Path) -> None:
    path = run(tmp_path / "pong")
    [found] = found_at(tmp_path)
    assert (found.path, found.status, found.problem) == (path, Status.TERMINATED, None)
    assert (found.agents, found.envs, found.num_trials) == (("DQN",), ("CartPole-v1",), 2)
    assert (found.best, found.last, found.steps, found.iterations) == (9.0, 7.0, 400, 4)
    assert found.started is not None
    assert found.started.isoformat().startswith("2026-01-0")
    assert found.size_bytes == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_size_of_a_run_with_many_files_is_a_lower_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = run(tmp_path / "many") / "many"
    many.mkdir()
    for number in range(100):
        (many / str(number)).write_bytes(b"x" * 1000)
    run(tmp_path / "few")
    monkeypatch.setattr(run_listing, "_MOST_ENTRIES", 50)
    sizes = {found.path.name: (found.is_whole_size, found.size_bytes) for found in found_at(tmp_path)}
    assert sizes["few"][0]
    assert not sizes["many"][0]
    assert 0 < sizes["many"][1] < 100_000


def test_newest_run_is_first_in_any_time_zone(tmp_path: Path) -> None:
    run(tmp_path / "a", "2026-01-02T03:00:00+00:00")
    run(tmp_path / "b", "2026-01-02T04:30:00+02:00")
    run(tmp_path / "c", "2026-01-02T03:30:00+00:00")
    assert [found.path.name for found in found_at(tmp_path)] == ["c", "a", "b"]


def test_runs_are_found_in_folders_but_not_in_runs_links_or_hidden_folders(tmp_path: Path) -> None:
    outer = run(tmp_path / "sorted" / "atari" / "pong")
    run(outer / "inner")
    run(tmp_path / ".hidden")
    run(tmp_path / "too" / "far" / "down" / "here")
    (tmp_path / "link").symlink_to(outer)
    (tmp_path / "other").mkdir()
    (tmp_path / "notes.txt").touch()
    assert [found.path for found in found_at(tmp_path)] == [outer]


def test_run_lists_its_trials(tmp_path: Path) -> None:
    first, second = found_at(run(tmp_path / "pong"))
    assert (first.path.name, first.best, first.last, first.steps) == ("00000-DQN-CartPole-v1", 9.0, 7.0, 300)
    assert (second.path.name, second.num_trials, second.iterations) == ("00001-DQN-CartPole-v1", 1, 1)


def test_only_locked_run_is_running(tmp_path: Path) -> None:
    path = run(tmp_path / "pong", status=Status.RUNNING)
    lock = RunLock(path)
    assert is_in_use(path)
    assert found_at(tmp_path)[0].status == Status.RUNNING
    lock.release()
    assert not is_in_use(path)
    assert found_at(tmp_path)[0].status == KILLED


def test_listing_changes_no_files(tmp_path: Path) -> None:
    path = run(tmp_path / "pong", status=Status.RUNNING)
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")}
    found_at(tmp_path)
    assert {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")} == before


def test_run_that_has_just_begun_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    lock = RunLock(tmp_path / "new")
    assert [found.status for found in found_at(tmp_path)] == [Status.RUNNING]
    lock.release()
    assert [found.status for found in found_at(tmp_path)] == [DAMAGED]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 99}', "[" * 10**5, "\0"])
def test_damaged_runs_have_problem(tmp_path: Path, text: str) -> None:
    path = run(tmp_path / "pong")
    (path / "run.json").write_text(text)
    run(tmp_path / "good")
    by_name = {found.path.name: found for found in found_at(tmp_path)}
    assert by_name["good"].status == Status.TERMINATED
    assert by_name["pong"].status == DAMAGED
    assert "run.json" in str(by_name["pong"].problem)
    assert [found.status for found in found_at(path)] == [DAMAGED]


def test_record_with_wrong_types(tmp_path: Path) -> None:
    path = run(tmp_path / "pong")
    record = json.loads((path / "run.json").read_text())
    record |= {"started": 5, "versions": [], "command": None, "name": {}}
    record["trials"][0] |= {"best_episode_reward_mean": "high", "timesteps_total": None, "iterations": [1]}
    record["trials"][1] |= {"directory": "../../etc", "varied": 3}
    (path / "run.json").write_text(json.dumps(record))
    next(path.glob("00000*/params.json")).write_text("nonsense")
    [found] = found_at(tmp_path)
    assert (found.agents, found.best, found.steps, found.iterations) == ((), 4.0, 100, 1)
    assert [trial.path.name for trial in found_at(path)] == ["00000-DQN-CartPole-v1"]


def test_pipes_instead_of_files_do_not_block(tmp_path: Path) -> None:
    path = run(tmp_path / "pong")
    for file in (path / "run.json", next(path.glob("00000*/params.json"))):
        file.unlink()
        os.mkfifo(file)
    (path / "resolved.yaml").touch()
    assert [found.status for found in found_at(tmp_path)] == [DAMAGED]
    record = json.loads((run(tmp_path / "other") / "run.json").read_text())
    (path / "run.json").unlink()
    (path / "run.json").write_text(json.dumps(record))
    assert [found.agents for found in found_at(path)] == [(), ("DQN",)]


def test_listing_of_empty_and_missing_directories(tmp_path: Path) -> None:
    assert found_at(tmp_path) == []
    for wrong in ("nowhere", "a" * 5000):
        with pytest.raises(UsageError, match="does not exist") as caught:
            found_at(tmp_path / wrong)
        assert caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        found_at(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_directories_are_skipped(tmp_path: Path) -> None:
    run(tmp_path / "pong")
    (tmp_path / "closed").mkdir(mode=0)
    assert [found.path.name for found in found_at(tmp_path)] == ["pong"]
