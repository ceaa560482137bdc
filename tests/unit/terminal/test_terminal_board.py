"""What ``rlexp submit`` and ``rlexp tasks`` print.

What ``board check`` says of a server: by facts that are made up, since no server shows all of them.

What ``rlexp join`` prints of an actor.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlexp.board.actor.actor import ActorFigures
from rlexp.board.messages.address import parse_address
from rlexp.board.messages.basics import BoardLostError
from rlexp.board.servers.board import TaskStatus, TaskSummary
from rlexp.board.servers.probes import Reach, ReachError, ReachObstacle, RedisFacts, Speed
from rlexp.terminal.board import BoardCheck, Level, reach_findings, refused, server_findings, unreachable
from rlexp.terminal.displays import JsonDisplay, QuietDisplay
from rlexp.terminal.lines import visible
from rlexp.terminal.tasks import (
    ActorDisplay,
    TaskDisplay,
    line_of,
    print_cancelled,
    print_tasks,
    seats_of,
    short_duration,
)
from tests.lab.board import result_row, submitted_task
from tests.lab.terminals import Terminal

GIB = 1 << 30
ABOUT = {"maxmemory": str(GIB), "used_memory": "1000000", "maxmemory_policy": "noeviction", "maxclients": "1000"}
FACTS = RedisFacts(
    server="redis",
    version=(7, 2, 4),
    mode="standalone",
    role="master",
    user="trainer",
    missing={"actor": [], "trainer": [], "client": []},
    rules_server=False,
    clock_offset_s=-0.1,
    speed=Speed(0.001, 5e7, 4 << 20),
    about=ABOUT,
)
ADDRESS = parse_address("redis://:hidden@10.0.0.1")
DAY_S = 86400.0


def found(check: str, facts: RedisFacts) -> BoardCheck:
    (finding,) = [finding for finding in server_findings(facts) if finding.check == check]
    return finding


def test_good_server_has_no_warning() -> None:
    assert {finding.level for finding in server_findings(FACTS)} == {Level.OK}


@pytest.mark.parametrize(
    ("check", "level", "change", "words"),
    [
        ("server", Level.PROBLEM, {"version": (6, 0, 16)}, "redis 6.0.16"),
        ("server", Level.PROBLEM, {"role": "replica"}, "only reads"),
        ("server", Level.WARNING, {"mode": "cluster"}, "cluster"),
        ("rights", Level.WARNING, {"rules_server": True}, "erase"),
        ("rights", Level.OK, {"missing": {"actor": [], "trainer": ["see the tasks"]}}, "user trainer can be actor"),
        ("rights", Level.PROBLEM, {"missing": {"actor": ["send fragments"]}}, "as actor it may not send fragments"),
        ("rights", Level.UNKNOWN, {"missing": None}, "does not say"),
        ("round trip", Level.WARNING, {"speed": Speed(0.4, None, 0)}, "400.0 ms"),
        ("largest message", Level.PROBLEM, {"speed": Speed(0.1, 1e6, 1 << 20, 4 << 20, "too long")}, "too long"),
        ("memory", Level.UNKNOWN, {"about": None}, "may not ask"),
        ("memory", Level.PROBLEM, {"about": {**ABOUT, "maxmemory_policy": "volatile-lru"}}, "volatile-lru"),
        ("memory", Level.OK, {"about": {"maxmemory": "0", "maxmemory_policy": "allkeys-lru"}}, "no limit"),
        ("memory", Level.WARNING, {"about": {**ABOUT, "maxmemory": "30000000"}}, "of 30.0 MB"),
        ("persistence", Level.PROBLEM, {"about": {**ABOUT, "rdb_last_bgsave_status": "err"}}, "may refuse"),
        ("persistence", Level.WARNING, {"about": {**ABOUT, "aof_enabled": "1"}}, "appendonly"),
        ("connections", Level.WARNING, {"about": {**ABOUT, "maxclients": "30", "connected_clients": "25"}}, "25 of 30"),
        ("clock", Level.WARNING, {"clock_offset_s": 4000.0}, "ahead"),
    ],
)
def test_each_fact_that_matters_is_told_with_its_remedy(
    check: str, level: Level, change: dict[str, object], words: str
) -> None:
    finding = found(check, replace(FACTS, **change))  # type: ignore[arg-type]
    assert finding.level is level
    assert words in finding.text
    assert level is Level.OK or finding.hint


@pytest.mark.parametrize(
    ("reach", "level", "words"),
    [
        (Reach("127.0.0.1", True, 0.01), Level.OK, "this machine"),
        (Reach("10.0.0.1", True, 0.01), Level.WARNING, "reads the password"),
        (Reach("8.8.8.8", False, 0.01), Level.PROBLEM, "reads the password"),
        (Reach("8.8.8.8", False, 0.01, "TLSv1.3", 90 * DAY_S), Level.OK, "TLSv1.3"),
        (Reach("8.8.8.8", False, 0.01, "TLSv1.3", 3 * DAY_S), Level.WARNING, "TLSv1.3"),
    ],
)
def test_encryption_is_judged_by_the_way_it_goes(reach: Reach, level: Level, words: str) -> None:
    (tls,) = [finding for finding in reach_findings(ADDRESS, reach) if finding.check == "TLS"]
    assert (tls.level, words in tls.text) == (level, True)


def test_server_without_password_is_told() -> None:
    reach = Reach("10.0.0.1", True, 0.01)
    assert "password" in [finding.check for finding in reach_findings(parse_address("redis://10.0.0.1"), reach)]
    assert "password" not in [finding.check for finding in reach_findings(ADDRESS, reach)]


@pytest.mark.parametrize("obstacle", list(ReachObstacle))
def test_every_obstacle_has_a_remedy(obstacle: ReachObstacle) -> None:
    assert unreachable(ReachError(obstacle, "why")).hint


def test_server_that_hangs_up_may_want_tls() -> None:
    hint = refused(ADDRESS, BoardLostError("closed")).hint
    assert hint is not None
    assert "rediss://" in hint


FIGURES = ActorFigures(
    seat=3,
    num_env_steps=41_000,
    num_fragments=80,
    num_sent_again=0,
    num_bytes=1_600_000,
    num_dropped=0,
    num_waiting=5,
    window=32,
    weights_version=8812,
    wait_share=0.0,
    seconds=1.0,
    is_connected=True,
    mean_return=212.0,
)
LINE = "41,000 steps/s · sent 80/s 1.6 MB/s · window 5/32 · waited 0 % · weights 8,812 · ε 0.012 · return 212.0"


def test_line_has_rates_since_the_last_one() -> None:
    assert line_of(FIGURES, None, 1.0, 0.012, 212.0) == LINE
    twice = replace(FIGURES, num_env_steps=82_000, num_fragments=160, num_bytes=3_200_000)
    assert line_of(twice, FIGURES, 1.0, 0.012, 212.0) == LINE


def test_line_leaves_out_what_is_not_known_and_says_that_the_board_is_away() -> None:
    line = line_of(replace(FIGURES, is_connected=False), None, 1.0, None, None)
    assert line.endswith("weights 8,812 · board away")


def test_a_log_gets_a_line_each_ten_seconds_and_each_event() -> None:
    now_s, stream = [0.0], io.StringIO()
    display = ActorDisplay(as_json=False, quiet=False, stream=stream, clock=lambda: now_s[0])
    display.on_seat(3, 8, "a-1", "CartPole-v1")
    for now_s[0] in (1.0, 10.0, 11.0):
        display.on_figures(FIGURES, None)
    display.close()
    first, second = stream.getvalue().splitlines()
    assert first.endswith("took seat 3 of 8 in a-1, CartPole-v1")
    assert "seat 3/8 CartPole-v1 · 4,100 steps/s" in second


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    now_s, stream = [0.0], io.StringIO()
    display = ActorDisplay(as_json=True, quiet=False, stream=stream, clock=lambda: now_s[0])
    display.note("waiting")
    now_s[0] = 11.0
    display.on_figures(FIGURES, 0.012)
    note, actor = map(json.loads, capsys.readouterr().out.splitlines())
    assert (note["event"], note["text"]) == ("note", "waiting")
    assert (actor["event"], actor["num_env_steps"], actor["epsilon"]) == ("actor", 41_000, 0.012)
    assert stream.getvalue() == ""


def test_seat_that_was_left_is_told_with_all_that_was_done_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    ActorDisplay(as_json=True, quiet=False, stream=stream).on_left(FIGURES, "a-1", "the task is over")
    left = json.loads(capsys.readouterr().out)
    assert (left["event"], left["task"], left["why"], left["num_fragments"]) == ("left", "a-1", "the task is over", 80)
    ActorDisplay(as_json=False, quiet=False, stream=stream).on_left(
        replace(FIGURES, num_dropped=2), "a-1", "it is over"
    )
    told = "left seat 3 of a-1: it is over · 41,000 steps in 80 fragments, 2 of them thrown away"
    assert told in stream.getvalue()


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    display = ActorDisplay(as_json=False, quiet=True, stream=stream, clock=lambda: 0.0)
    display.note("waiting")
    display.on_seat(3, 8, "a-1", "CartPole-v1")
    display.close()
    assert stream.getvalue() == ""


SUBMISSION_FIGURES = {"num_updates": 33_800, "episode_reward_mean": 187.0, "updates_per_s": 545.3}
TASK = TaskSummary(
    "pend-1", "pend", TaskStatus.RUNNING, "", 3, (0, 1), "colab-1", 70.0, True, SUBMISSION_FIGURES, 33_800
)
EVIL = "\x1b[2J\x1b[31mname\nline"


def shown_lines(folder: Path, stream: io.StringIO, clock: list[float]) -> TaskDisplay:
    display = TaskDisplay(io.StringIO(), stream, lambda: clock[0])
    display.start(folder, [submitted_task(folder).trial])
    return display


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ("120", "RUNNING 8s (12s left) · 4,000 updates · reward 18.0 · trainer colab-1 545/s · seats 0 ● 1 ● 2 ○"),
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
    display = JsonDisplay(stream)
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
    display = QuietDisplay(io.StringIO())
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
    assert (task["id"], task["status"], task["taken"]) == ("pend-1", "RUNNING", [0, 1])
    assert task["figures"] == SUBMISSION_FIGURES
