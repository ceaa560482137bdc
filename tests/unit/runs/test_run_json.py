"""When ``run.json`` is written, and what a kill in between leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.run_directory import RunDirectory

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


def created(out: Path) -> RunDirectory:
    return RunDirectory.create(out, "run", None, [], overwrite=False)


def content(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "run.json").read_text()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that ``time.monotonic`` returns; each call of it takes a thousandth."""
    now = [1_000.0]

    def read() -> float:
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr("time.monotonic", read)
    return now


def test_status_reaches_run_json_within_a_second_though_nothing_else_happens(
    tmp_path: Path, make_trial: MakeTrial, clock: list[float]
) -> None:
    trial = make_trial()
    with created(tmp_path) as run:
        run.start([trial])
        run.trial_status(trial, Status.RUNNING)
        assert content(run.path)["trials"][0]["status"] == "PENDING"
        clock[0] += 1.0
        run.write_when_due()
        assert content(run.path)["trials"][0]["status"] == "RUNNING"


def test_writing_run_json_takes_a_twentieth_of_the_time_at_most(
    tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []

    def write(record: RunRecord, path: Path) -> None:
        clock[0] += 0.5
        written.append(clock[0])

    trial = make_trial()
    with created(tmp_path) as run:
        monkeypatch.setattr(RunRecord, "write", write)
        run.start([trial])
        for iteration in range(1, 1_000):
            clock[0] += 0.1
            run.trial_status(trial, Status.RUNNING)
            run.trial_result(trial, make_row(iteration))
    assert 0.04 < 0.5 * len(written) / (written[-1] - written[0]) < 0.06


def test_open_reads_what_run_json_lacked_when_the_run_was_killed(
    tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow
) -> None:
    trial = make_trial()
    with created(tmp_path) as run:
        run.start([trial])
        run.trial_status(trial, Status.RUNNING)
        run.write()
        folder = run.trial_directory(trial)
        rows = [make_row(n, reward) for n, reward in [(1, 4.0), (2, 9.0), (3, 5.0)]]
        (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for iteration in (2, 3):
            (folder / f"checkpoint_{iteration:06d}").mkdir()
    with RunDirectory.open(run.path) as opened:
        record = opened.record.trial(trial.name)
    assert (record.iterations, record.episode_reward_mean, record.best_episode_reward_mean) == (3, 5.0, 9.0)
    assert (record.best_checkpoint, record.best_checkpoint_reward) == (f"{trial.name}/checkpoint_000002", 9.0)
