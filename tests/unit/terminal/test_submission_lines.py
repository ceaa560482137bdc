"""What ``rlexp submit`` and ``rlexp tasks`` print."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.terminal.board import print_cancelled, print_tasks
from rlexp.terminal.lines import visible
from rlexp.terminal.submissions import JsonTaskDisplay, QuietTaskDisplay, TaskDisplay, seats_of, short_duration
from tests.submitted_tasks import result_row, submitted_task

FIGURES = {"num_updates": 33_800, "episode_reward_mean": 187.0, "updates_per_s": 545.3}
TASK = TaskSummary("pend-1", "pend", TaskStatus.RUNNING, "", 3, (0, 1), "colab-1", 70.0, True, FIGURES, 33_800)
EVIL = "\x1b[2J\x1b[31mname\nline"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_lines(folder: Path, stream: io.StringIO, clock: list[float]) -> TaskDisplay:
    display = TaskDisplay(io.StringIO(), stream, lambda: clock[0])
    display.start(folder, [submitted_task(folder).trial])
    return display


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (
            "120",
            "RUNNING 8s (12s left) · 4,000 updates · reward 18.0 · trainer colab-1 545/s · seats 0 ● 1 ● 2 ○",
        ),
        ("90", "RUNNING 8s (12s left) · 4,000 updates · reward 18.0 · trainer colab-1 545/s · seats 2/3"),
        ("80", "RUNNING 8s (12s left) · 4,000 updates · reward 18.0 · 545/s · seats 2/3"),
        ("60", "RUNNING 8s · 4,000 updates · reward 18.0"),
        ("20", "RUNNING 8s · 4,000 "),
    ],
)
def test_line_has_what_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, line: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    stream, clock = Terminal(), [100.0]
    display = shown_lines(tmp_path, stream, clock)
    for iteration in range(1, 9):
        display.on_result(submitted_task(tmp_path).trial, result_row(iteration))
    display.on_task(TASK)
    assert stream.getvalue().rpartition("\x1b[K")[2] == line


def test_log_gets_a_line_each_ten_seconds_and_each_event(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), [0.0]
    display = shown_lines(tmp_path, stream, clock)
    display.on_submitted("pend-1")
    for clock[0] in (1.0, 5.0, 12.0):
        display.on_task(TASK)
    display.on_evaluation(545, {"episode_reward_mean": 9.5, "episode_reward_min": 9, "episode_reward_max": 10})
    display.on_leave("pend-1", "redis://host")
    texts = [line[9:] for line in stream.getvalue().splitlines()]
    assert texts[1] == "submitted as pend-1"
    assert texts[2].startswith("RUNNING 0s · 33,800 updates · reward 187.0 · trainer colab-1 545/s")
    assert texts[3].startswith("RUNNING 11s")
    assert texts[4] == "evaluation after 545 updates: mean return 9.5 (9.0 to 10.0) of - episodes"
    assert texts[6:] == [
        "  to wait for it again:  rlexp submit --attach pend-1 --board redis://host",
        "  to end it:             rlexp cancel redis://host pend-1",
    ]


def test_what_others_have_written_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    display = shown_lines(tmp_path, stream, [0.0])
    task = replace(TASK, name=EVIL, trainer=EVIL, reason=EVIL, figures={"num_updates": EVIL, "updates_per_s": [EVIL]})
    display.on_task(task)
    display.on_note(None, f"trainer {EVIL} has taken it")
    print_tasks([task], "redis://host", as_json=False)
    print_cancelled(task)
    printed = stream.getvalue() + capsys.readouterr().out
    assert "\x1b" not in printed
    assert printed == visible(printed)


def test_json_has_each_event_and_a_task_only_where_it_changed(tmp_path: Path) -> None:
    stream = io.StringIO()
    display = JsonTaskDisplay(stream)
    display.on_submitted("pend-1")
    display.on_task(TASK)
    display.on_task(replace(TASK, age_s=71.0))
    display.on_task(replace(TASK, taken=(0,)))
    display.on_evaluation(545, {"episode_reward_mean": 9.5})
    display.on_leave("pend-1", "redis://host")
    events: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["submitted", "task", "task", "evaluation", "left"]
    assert (events[1]["id"], events[1]["taken"], events[2]["taken"]) == ("pend-1", [0, 1], [0])
    assert events[3] == {"event": "evaluation", "num_updates": 545, "evaluation": {"episode_reward_mean": 9.5}}


def test_quiet_prints_nothing_meanwhile(capsys: pytest.CaptureFixture[str]) -> None:
    display = QuietTaskDisplay(io.StringIO())
    display.on_submitted("pend-1")
    display.on_task(TASK)
    display.on_evaluation(1, {})
    display.on_leave("pend-1", "redis://host")
    assert capsys.readouterr() == ("", "")


def test_seats_are_counted_where_they_are_many() -> None:
    assert seats_of(TASK) == "seats 0 ● 1 ● 2 ○"
    assert seats_of(replace(TASK, num_seats=1000, taken=tuple(range(870)))) == "seats 870/1,000"


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (62, "1m02"), (7500, "2h05"), (3 * 86400 + 4 * 3600, "3d04h")]
)
def test_short_durations(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_table_of_tasks_has_the_reasons_below(capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(TASK, id="b-2", status=TaskStatus.FAILED, reason="EnvError: broken", trainer=None, figures={})
    print_tasks([TASK, failed], "redis://host", as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "id      name  status   trainer  seats  updates  reward   age",
        "pend-1  pend  RUNNING  colab-1    2/3   33,800   187.0  1m10",
        "b-2     pend  FAILED   -          2/3        -       -  1m10",
        "b-2: EnvError: broken",
    ]


def test_table_of_a_narrow_terminal_keeps_ids_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    print_tasks([replace(TASK, id="a-long-name-of-a-task-0123456789")], "redis://host", as_json=False)
    assert stream.getvalue().splitlines() == ["id", "a-long-name-of-a-task-0123456789"]


def test_empty_board_says_so_and_json_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    print_tasks([], "redis://host", as_json=False)
    print_tasks([TASK], "redis://host", as_json=True)
    out, err = capsys.readouterr()
    assert err == "no tasks on redis://host\n"
    (task,) = json.loads(out)["tasks"]
    assert (task["id"], task["status"], task["taken"], task["figures"]) == ("pend-1", "RUNNING", [0, 1], FIGURES)
