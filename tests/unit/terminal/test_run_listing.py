"""What ``rlexp ls`` prints, on wide and on narrow terminals."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rlexp.compare.run_listing import DAMAGED, Found
from rlexp.runs.record import Status
from rlexp.terminal.results import print_address, print_found

OUT = Path("results")


def found(name: str = "pong", **changes: object) -> Found:
    known = {
        "path": OUT / name,
        "status": Status.TERMINATED,
        "agents": ("APEX",),
        "envs": ("PongNoFrameskip-v4",),
        "num_trials": 1,
        "best": 20.94,
        "last": 19.0,
        "steps": 12_345_678,
        "iterations": 321,
        "started": datetime.now().astimezone() - timedelta(hours=5, minutes=30),
        "size_bytes": 3_200_000,
    }
    return Found(**(known | changes))  # type: ignore[arg-type]


def printed(capsys: pytest.CaptureFixture[str], runs: list[Found], columns: int | None = 120) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        if columns is not None:
            patch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
            patch.setenv("COLUMNS", str(columns))
            patch.setenv("NO_COLOR", "1")
        print_found(runs, OUT, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_listing_has_a_line_per_run(capsys: pytest.CaptureFixture[str]) -> None:
    header, line, grid = printed(capsys, [found(), found("sorted/grid", num_trials=6, agents=("DQN", "APEX"))])
    assert header.split() == ["run", "status", "agent", "env", "best", "last", "steps", "iter", "age", "size"]
    assert line.split() == (
        [
            "pong",
            "TERMINATED",
            "APEX",
            "PongNoFrameskip-v4",
            "20.94",
            "19.0",
            "12,345,678",
            "321",
            "5",
            "h",
            "3.2",
            "MB",
        ]
    )
    assert grid.startswith("sorted/grid (6 trials)  TERMINATED  DQN+APEX ")


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100])
def test_listing_on_narrow_terminals_keeps_the_most_needed_columns(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    lines = printed(capsys, [found(), found("x" * 100)], columns)
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("run")
    assert "status" in lines[0]
    assert ("steps" in lines[0]) == (columns >= 60)
    assert "iter" not in lines[0]


def test_listing_in_a_pipe_has_every_column_and_whole_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    header, line = printed(capsys, [found("x" * 100)], columns=None)
    assert header.split()[-2:] == ["age", "size"]
    assert line.startswith("x" * 100)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (4_104_000, "4.1 MB"), (12_340_000_000, "12.3 GB")]
)
def test_sizes(capsys: pytest.CaptureFixture[str], size: int, text: str) -> None:
    assert printed(capsys, [found(size_bytes=size)])[1].endswith(f"  {text}")


def test_size_of_which_only_a_part_was_counted(capsys: pytest.CaptureFixture[str]) -> None:
    counted = found(size_bytes=4_104_000, is_whole_size=False)
    assert printed(capsys, [counted])[1].endswith("  >4.1 MB")
    print_found([counted], OUT, as_json=True)
    assert json.loads(capsys.readouterr().out)["runs"][0]["size_bytes"] is None


def test_listing_has_the_reason_of_damage_below(capsys: pytest.CaptureFixture[str]) -> None:
    damaged = Found(OUT / "bad", DAMAGED, "run.json is damaged (\x1b[2Jboom)")
    lines = printed(capsys, [damaged, found()])
    assert lines[1].split()[:4] == ["bad", "DAMAGED", "-", "-"]
    assert lines[3] == "bad: run.json is damaged ( [2Jboom)"


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (timedelta(seconds=9), "9 s"),
        (timedelta(minutes=3), "3 min"),
        (timedelta(days=2), "2 d"),
        (timedelta(days=800), "2 y"),
        (timedelta(seconds=-60), "0 s"),
    ],
)
def test_ages(capsys: pytest.CaptureFixture[str], age: timedelta, text: str) -> None:
    assert f"  {text}  " in printed(capsys, [found(started=datetime.now().astimezone() - age)])[1]


def test_listing_of_no_runs_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_found([], OUT, as_json=False)
    assert capsys.readouterr() == ("", "no runs in results\n")
    print_found([], OUT, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"runs": []}


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    started = datetime.fromisoformat("2026-01-02T03:04:05+00:00")
    print_found([found(started=started, last=float("nan"))], OUT, as_json=True)
    assert json.loads(capsys.readouterr().out)["runs"] == [
        {
            "path": "results/pong",
            "status": "TERMINATED",
            "problem": None,
            "agents": ["APEX"],
            "envs": ["PongNoFrameskip-v4"],
            "trials": 1,
            "best": 20.94,
            "last": None,
            "steps": 12_345_678,
            "iterations": 321,
            "started": "2026-01-02T03:04:05+00:00",
            "size_bytes": 3_200_000,
        }
    ]


def test_address_of_tensorboard_is_a_sentence_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_address("http://localhost:6006/")
    assert capsys.readouterr().out == "http://localhost:6006/\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_address("http://localhost:6006/")
    assert capsys.readouterr().out == "TensorBoard runs at http://localhost:6006/; Ctrl-C stops it\n"
