"""The runs below a directory, with their status by lock and record; damaged runs raise no error.

``rlexp.results``: the rows of runs as a table.

Errors before TensorBoard starts; tests/cli has its start and end.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import rlexp
from rlexp.compare import run_listing, tensorboard_server
from rlexp.compare.run_listing import DAMAGED, KILLED, found_at, trials_at
from rlexp.compare.tensorboard_server import _checked_port, _free_port, run_tensorboard
from rlexp.errors import Notice, ResumeError, UsageError
from rlexp.processes.locks import RunLock, is_in_use
from rlexp.runs.kept_checkpoints import find_checkpoint, superseded_in
from rlexp.runs.record import Status, read_run_record
from tests.lab.run_folders import MadeTrial, make_run, row


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


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"format": 1, "trials": "none"}', '{"format": 1}', '{"format": 99}', "[" * 10**5, "\0"],
)
def test_damaged_runs_have_problem(tmp_path: Path, text: str) -> None:
    path = run(tmp_path / "pong")
    (path / "run.json").write_text(text)
    run(tmp_path / "good")
    by_name = {found.path.name: found for found in found_at(tmp_path)}
    assert by_name["good"].status == Status.TERMINATED
    assert by_name["pong"].status == DAMAGED
    assert "run.json" in str(by_name["pong"].problem)
    remedies = ("rlexp logs and rlexp compare still read its trials", "use the version that it names", "rlexp ls DIR")
    assert any(remedy in str(by_name["pong"].problem) for remedy in remedies)
    assert [found.status for found in found_at(path)] == [DAMAGED]


def test_run_that_lost_its_record_gets_no_name_of_another_run(tmp_path: Path) -> None:
    path = run(tmp_path / "pong-1")
    run(tmp_path / "pong-2")
    (path / "resolved.yaml").touch()
    (path / "run.json").unlink()
    for command in (read_run_record, find_checkpoint, lambda path: superseded_in(path, 1)):
        with pytest.raises(ResumeError, match=r"pong-1 has lost its run\.json") as caught:
            command(path)
        assert "rlexp compare still read its trials" in str(caught.value.hint)
    [found] = found_at(path)
    assert (found.status, "did you mean" in str(found.problem)) == (DAMAGED, False)
    for file in path.glob("*/result.json"):
        file.unlink()
    with pytest.raises(UsageError, match=r"has lost its run\.json, and no result\.json is left"):
        trials_at(path)


def test_record_with_wrong_values(tmp_path: Path) -> None:
    path = run(tmp_path / "pong")
    record = json.loads((path / "run.json").read_text())
    record["trials"][1]["directory"] = "../../etc"
    (path / "run.json").write_text(json.dumps(record))
    next(path.glob("00000*/params.json")).write_text("nonsense")
    assert [trial.path.name for trial in found_at(path)] == ["00000-DQN-CartPole-v1"]
    assert [found.agents for found in found_at(tmp_path)] == [()]
    record["trials"][0]["timesteps_total"] = None
    (path / "run.json").write_text(json.dumps(record))
    [found] = found_at(tmp_path)
    assert (found.status, "trials.0.timesteps_total: " in str(found.problem)) == (DAMAGED, True)


def test_listing_of_empty_and_missing_directories(tmp_path: Path) -> None:
    assert found_at(tmp_path) == []
    for wrong in ("nowhere", "a" * 5000):
        with pytest.raises(UsageError, match="does not exist") as caught:
            found_at(tmp_path / wrong)
        assert caught.value.hint
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file"):
        found_at(tmp_path / "file")


@pytest.fixture
def tabled_run(tmp_path: Path) -> Path:
    trials = [MadeTrial([1.0, None, 3.0], seed=4), MadeTrial([2.0, 5.0], seed=5, varied={"lr": 0.1}), MadeTrial([])]
    return make_run(tmp_path / "run", trials)


def test_columns_have_the_values_of_all_trials_in_their_order(tabled_run: Path) -> None:
    results = rlexp.results(tabled_run)
    assert len(results) == 5
    np.testing.assert_array_equal(results["episode_reward_mean"], [1.0, np.nan, 3.0, 2.0, 5.0])
    assert results["training_iteration"].tolist() == [1, 2, 3, 1, 2]
    assert results["training_iteration"].dtype == np.int64
    np.testing.assert_allclose(results["info/learner/loss"], [1, 1 / 2, 1 / 3, 1, 1 / 2])
    assert [Path(directory).name for directory in results["directory"]] == ["00000-DQN-CartPole-v1"] * 3 + [
        "00001-DQN-CartPole-v1"
    ] * 2
    assert "info" not in results
    assert [each["episode_reward_mean"] for each in results] == [1.0, None, 3.0, 2.0, 5.0]


def test_trials_have_their_record_and_rows(tabled_run: Path) -> None:
    first, second, third = rlexp.results(tabled_run).trials
    assert (first.seed, second.varied, first.status) == (4, {"lr": 0.1}, Status.TERMINATED)
    assert ([len(trial.rows) for trial in (first, second, third)]) == [3, 2, 0]


def test_last_and_best(tabled_run: Path) -> None:
    results = rlexp.results(tabled_run)
    assert results.last()["episode_reward_mean"].tolist() == [3.0, 5.0]
    assert results.best()["episode_reward_mean"] == 5.0
    assert results.best("info/learner/loss", "min")["training_iteration"] == 3
    with pytest.raises(KeyError, match="no column 'episode_reward_mena'; did you mean 'episode_reward_mean'"):
        results.best("episode_reward_mena")
    with pytest.raises(UsageError, match="mode must be max or min, got highest"):
        results.best(mode="highest")  # type: ignore[arg-type]


def test_trials_and_several_runs(tabled_run: Path, tmp_path: Path) -> None:
    trial = tabled_run / "00001-DQN-CartPole-v1"
    other = make_run(tmp_path / "other", [MadeTrial([7.0])])
    assert len(rlexp.results(trial)) == 2
    assert len(rlexp.results(str(tabled_run), other)) == 6
    assert len(rlexp.results(tabled_run, trial)) == 5  # a trial counts once
    for wrong in ((), (tmp_path / "nothing",)):
        with pytest.raises(UsageError):
            rlexp.results(*wrong)


def test_rows_that_a_resumed_trial_repeats_and_damaged_lines(tabled_run: Path) -> None:
    file = tabled_run / "00000-DQN-CartPole-v1" / "result.json"
    with file.open("a") as lines:
        lines.write("[1, 2]\n" + json.dumps(row(2, 8.0)) + "\n" + '{"timesteps_total": 40')
    results = rlexp.results(tabled_run)
    np.testing.assert_array_equal(results.trials[0].rows[-1]["episode_reward_mean"], 8.0)
    assert results.notices == (Notice(str(file), "is damaged: 2 lines are left out"),)
    assert repr(results).endswith(f"notice: {file}  is damaged: 2 lines are left out")
    assert f"<p>notice: {file}  is damaged" in results._repr_html_()
    np.testing.assert_array_equal(rlexp.results(file.parent)["episode_reward_mean"], [1.0, 8.0])
    shutil.rmtree(file.parent)
    assert rlexp.results(tabled_run).notices[0].where == str(file.parent)


def test_pandas_frame_has_the_same_columns(tabled_run: Path) -> None:
    pytest.importorskip("pandas")
    results = rlexp.results(tabled_run)
    frame = results.to_pandas()
    assert tuple(frame.columns) == results.columns
    assert frame["episode_reward_mean"].max() == 5.0
    assert len(frame) == 5


def test_missing_pandas_is_an_error_with_the_remedy(tabled_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as caught:
        rlexp.results(tabled_run).to_pandas()
    assert (caught.value.message, caught.value.hint) == ("pandas is not installed", "pip install pandas")


def test_repr_is_a_summary(tabled_run: Path) -> None:
    lines = repr(rlexp.results(tabled_run)).splitlines()
    assert lines[0] == "Results: 3 trials, 5 rows, 7 columns"
    expected = "  00000-DQN-CartPole-v1: TERMINATED, iteration 3, 300 env steps, episode_reward_mean 3.0"
    assert lines[1] == expected
    assert lines[3] == "  00002-DQN-CartPole-v1: TERMINATED, no rows"


@pytest.fixture
def served_run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "trial").mkdir(parents=True)
    (tmp_path / "run" / "trial" / "events.out.tfevents.1.host.2.0").touch()
    return tmp_path / "run"


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield server.getsockname()[1]


def refused(path: Path, host: str = "127.0.0.1", port: int | None = 0) -> UsageError:
    with pytest.raises(UsageError) as caught:
        run_tensorboard(path, host, port, announce=lambda address: pytest.fail(f"it serves at {address}"))
    assert caught.value.hint
    return caught.value


def test_paths_without_event_files(served_run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert refused(tmp_path / "nowhere").message.endswith("nowhere does not exist")
    assert "has no TensorBoard event files" in refused(tmp_path / "empty").message
    assert "is a file" in refused(next(served_run.rglob("events*"))).message


def test_port_in_use(served_run: Path, taken: int) -> None:
    error = refused(served_run, port=taken)
    assert error.message == f"port {taken} of 127.0.0.1 is in use"
    assert "--port 0" in str(error.hint)


def test_address_of_another_machine(served_run: Path) -> None:
    assert refused(served_run, host="192.0.2.1").message.startswith("cannot listen at 192.0.2.1, port 0: ")


def test_default_port_is_next_free_one(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
    monkeypatch.setattr(tensorboard_server, "_USUAL_PORTS", (taken, free))
    assert _free_port("127.0.0.1") == free
    assert _checked_port("127.0.0.1", free) == free


def test_all_usual_ports_in_use(served_run: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_server, "_USUAL_PORTS", range(taken, taken + 1))
    assert refused(served_run, port=None).message == f"port {taken} of 127.0.0.1 is in use"


def test_missing_tensorboard(served_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert refused(served_run).message == "TensorBoard is not installed"
