"""What a person sees fits the terminal and is true; what a program reads is one JSON object per line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rlexp.config.trial import Trial
from rlexp.tuning import figures
from rlexp.tuning.display import (
    Display,
    JsonDisplay,
    LiveDisplay,
    PlainDisplay,
    QuietDisplay,
    choose_display,
)
from rlexp.tuning.display.panel import picture
from rlexp.tuning.display.trial_view import TrialView
from rlexp.tuning.run_record import RunRecord, Status, TrialError, TrialRecord

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def finished_run() -> RunRecord:
    trials = [
        TrialRecord(
            "00000-APEX-x", "00000-APEX-x", 7, {}, Status.TERMINATED, 12, 12_000, 60.0, 470.0, 475.5, "a/b", 1.0
        ),
        TrialRecord("00001-APEX-x", "00001-APEX-x", 8, {}, Status.ERROR, error=TrialError("Boom: no\x1b[2J", "e.txt")),
    ]
    return RunRecord("cartpole", [], {}, None, "host", 2, "now", trials=trials)


def views(make_trial: MakeTrial, make_row: MakeRow, count: int, name: str | None = None) -> list[TrialView]:
    made = [TrialView(make_trial(index, name)) for index in range(count)]
    for view in made:
        for iteration in range(1, 30):
            view.add(make_row(iteration, None if iteration < 3 else 10.0 * iteration))
    return made


def lines(shown: list[TrialView], width: int = 80, height: int = 23) -> list[str]:
    return picture(shown, "results/cartpole  0:01:00", width, height).plain.split("\n")


def test_one_trial_is_shown_in_full(make_trial: MakeTrial, make_row: MakeRow) -> None:
    shown = "\n".join(lines(views(make_trial, make_row, 1)))
    for fact in (
        "00000-APEX-CartPole-v1",
        "iteration 29",
        "5 % of 500,000 env steps",
        "0:15:42 left",
        "290.0 of 475",
        "best 290.0",
        "▁▁▂",
        "sampled 512/s",
        "trained 2,048/s",
        "4.00 trained per sampled",
        "replay 50 % full ▃▆",
        "learner queue 3/16",
        "weight age 400",
        "ε 0.02 to 0.4",
        "bottleneck workers  learner waits 37 %",
    ):
        assert fact in shown


def test_three_trials_fit_a_small_terminal_in_full(make_trial: MakeTrial, make_row: MakeRow) -> None:
    shown = lines(views(make_trial, make_row, 3))
    assert sum("bottleneck workers" in line for line in shown) == 3
    assert shown[-1] == "3 trials: 3 running"


def test_many_trials_are_a_table_of_the_running_ones_and_counts(make_trial: MakeTrial, make_row: MakeRow) -> None:
    many = views(make_trial, make_row, 12)
    many[4].status, many[5].status = Status.ERROR, Status.TERMINATED
    shown = lines(many)
    assert [line[:5] for line in shown[2:12]] == [f"{index:05d}" for index in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11)]
    assert shown[-1] == "12 trials: 10 running, 1 terminated, 1 error"
    assert sum("learner queue" in line for line in shown) == 1


def test_more_trials_than_lines_are_counted(make_trial: MakeTrial, make_row: MakeRow) -> None:
    shown = lines(views(make_trial, make_row, 40))
    assert len(shown) == 23
    rows = [line for line in shown if line.startswith("000")]
    assert f"… and {40 - len(rows)} more running" in shown


@pytest.mark.parametrize("count", [0, 1, 3, 12, 60])
@pytest.mark.parametrize("size", [(80, 23), (120, 60), (40, 10), (20, 3), (1, 1)])
def test_nothing_is_ever_larger_than_the_terminal(
    make_trial: MakeTrial, make_row: MakeRow, count: int, size: tuple[int, int]
) -> None:
    width, height = size
    shown = lines(views(make_trial, make_row, count, name="00000-APEX-ALE_Pong-v5-" + "lr=0.0001," * 8), width, height)
    assert len(shown) <= height
    assert max(len(line) for line in shown) <= width


def test_a_long_name_keeps_its_number_and_its_end(make_trial: MakeTrial, make_row: MakeRow) -> None:
    title = lines(views(make_trial, make_row, 1, "00012-APEX-" + "x" * 100 + "-sample=2"))[1]
    assert title.startswith("00012-…")
    assert "-sample=2  iteration 29" in title


def test_a_trial_without_a_row_or_a_reward_says_so(make_trial: MakeTrial, make_row: MakeRow) -> None:
    view = TrialView(make_trial())
    view.status = Status.RUNNING
    assert lines([view])[1].endswith("starting")
    for nothing in (None, float("nan")):
        view.add(make_row(1, nothing))
        assert "no episode has ended yet" in "\n".join(lines([view]))


def test_a_row_with_nothing_but_counters_is_shown(make_trial: MakeTrial) -> None:
    view = TrialView(make_trial(stop={}))
    view.add({"training_iteration": 1, "timesteps_total": 10, "time_total_s": 1.0, "info": {}})
    assert "10 env steps" in "\n".join(lines([view]))


@pytest.mark.parametrize(
    ("stop", "share", "seconds_left"),
    [
        ({"timesteps_total": 4_000}, 0.5, 4.0),
        ({"time_total_s": 16.0}, 0.25, 12.0),
        ({"timesteps_total": 100_000, "training_iteration": 4}, 0.5, 4.0),
        ({"episode_reward_mean": 110, "timesteps_total": 4_000}, 0.5, 4.0),
        ({"episode_reward_mean": 110}, 0.1, None),
        ({"timesteps_total": 1_000}, 1.0, 0.0),
        ({"episode_reward_mean": 15}, 1.0, None),
    ],
)
def test_progress_is_that_of_the_nearest_goal(
    make_trial: MakeTrial, make_row: MakeRow, stop: dict[str, float], share: float, seconds_left: float | None
) -> None:
    view = TrialView(make_trial(stop=stop))
    view.add(make_row(1, 10.0))
    view.add(make_row(2, 20.0))
    progress = view.progress()
    assert progress is not None
    assert progress.share == pytest.approx(share)
    assert progress.seconds_left == (pytest.approx(seconds_left) if seconds_left is not None else None)


def test_no_goal_or_no_row_is_no_progress(make_trial: MakeTrial, make_row: MakeRow) -> None:
    without_goal, without_row = TrialView(make_trial(stop={})), TrialView(make_trial())
    without_goal.add(make_row())
    assert without_goal.progress() is None
    assert without_row.progress() is None


def test_time_left_after_a_resume_counts_from_the_resume(make_trial: MakeTrial, make_row: MakeRow) -> None:
    view = TrialView(make_trial(stop={"timesteps_total": 110_000}))
    view.add(make_row(100, time_total_s=1_000_000.0))
    view.add(make_row(101, time_total_s=1_000_002.0))
    progress = view.progress()
    assert progress is not None
    assert progress.seconds_left == pytest.approx(18.0)


@given(st.lists(st.floats(-1e9, 1e9)), st.integers(1, 30))
def test_a_sparkline_has_one_block_a_stretch_and_spans_low_to_high(values: list[float], width: int) -> None:
    line = figures.sparkline(values, width)
    assert len(line) == min(len(values), width)
    if len(values) <= width and len(set(values)) > 1:
        assert line[values.index(min(values))] == "▁"
        assert line[values.index(max(values))] == "█"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (figures.count(1234567.8), "1,234,568"),
        (figures.count(None), "-"),
        (figures.count(True), "-"),
        (figures.percent(0.999), "99 %"),
        (figures.percent(0.29), "29 %"),
        (figures.percent(1.0), "100 %"),
        (figures.duration(59.9), "0:00:59"),
        (figures.duration(90_061), "1d 1:01:01"),
        (figures.duration(float("inf")), "-"),
        (figures.bar(0.5, 4), "██░░"),
        (figures.levels([0.0, 0.5, 1.0, 2.0]), "▁▅██"),
        (figures.one_line("a\x1b[2Jb\nc"), "a [2Jb"),
        (figures.one_line(""), ""),
        (figures.middle_cut("abcdefghij", 7), "ab…ghij"),
    ],
)
def test_figures_read_at_a_glance(shown: str, expected: str) -> None:
    assert shown == expected


def play(display: Display, trial: Trial, row: dict[str, Any], run: RunRecord) -> None:
    with display:
        display.start(Path("results/cartpole"), [trial])
        display.on_trial_start(trial)
        display.on_result(trial, row)
        display.tick()
        display.on_trial_end(trial, Status.ERROR, "Boom: no\x1b[2J\nsecond line")
        display.finish(run)


def test_plain_prints_a_line_per_event_on_stderr(
    make_trial: MakeTrial, make_row: MakeRow, finished_run: RunRecord
) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    play(PlainDisplay(stdout, stderr), make_trial(), make_row(250), finished_run)
    told = [line.split(" ", 1)[1] for line in stderr.getvalue().splitlines()]
    assert told == [
        "1 trial in results/cartpole",
        "00000-APEX-CartPole-v1 begins",
        "00000-APEX-CartPole-v1  iteration 250  steps 250,000 (50 % of timesteps_total 500,000)  reward 20.0"
        "  sampled 512/s  trained 2,048/s  bottleneck workers",
        "00000-APEX-CartPole-v1 ERROR: Boom: no [2J",
    ]
    assert "env steps" in stdout.getvalue()


def test_the_summary_says_how_it_ended_and_what_to_type_next(
    make_trial: MakeTrial, make_row: MakeRow, finished_run: RunRecord
) -> None:
    stdout = io.StringIO()
    play(QuietDisplay(stdout), make_trial(), make_row(), finished_run)
    assert stdout.getvalue().splitlines() == [
        "results/cartpole: RUNNING",
        "status      iter  env steps     time  reward   best  trial",
        "TERMINATED    12     12,000  0:01:00   470.0  475.5  00000-APEX-x",
        "ERROR          0          0  0:00:00       -      -  00001-APEX-x",
        "00001-APEX-x: Boom: no [2J (traceback: results/cartpole/e.txt)",
        "",
        "next: rlexp resume results/cartpole",
        "      rlexp evaluate results/cartpole",
        "      tensorboard --logdir results/cartpole",
    ]


def test_what_to_type_next_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished_run: RunRecord
) -> None:
    monkeypatch.chdir(tmp_path)
    stdout = io.StringIO()
    display = QuietDisplay(stdout)
    display.start(tmp_path / "my runs" / "a", [])
    finished_run.trials = []
    display.finish(finished_run)
    assert stdout.getvalue().splitlines()[-1] == "next: tensorboard --logdir 'my runs/a'"


def test_json_prints_one_object_a_line(make_trial: MakeTrial, make_row: MakeRow, finished_run: RunRecord) -> None:
    stdout = io.StringIO()
    row = make_row(1, float("nan"))
    play(JsonDisplay(stdout), make_trial(), row, finished_run)
    events = [json.loads(line) for line in stdout.getvalue().splitlines()]
    assert [event["event"] for event in events] == ["start", "trial_start", "result", "trial_end", "end"]
    assert events[0]["trials"] == ["00000-APEX-CartPole-v1"]
    assert events[2]["result"] == row | {"episode_reward_mean": None}
    assert events[3]["status"] == "ERROR"
    assert events[4]["run"]["trials"][0]["best_episode_reward_mean"] == 475.5


def test_live_draws_on_stderr_and_gives_the_terminal_back(
    make_trial: MakeTrial, make_row: MakeRow, finished_run: RunRecord
) -> None:
    stdout, terminal = io.StringIO(), Terminal()
    console = Console(file=terminal, force_terminal=True, width=80, height=24, highlight=False, _environ={})
    play(LiveDisplay(stdout, console), make_trial(), make_row(), finished_run)
    drawn = terminal.getvalue()
    assert "learner queue 3/16" in drawn
    assert "ERROR" in drawn
    assert "\x1b[2J" not in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    assert stdout.getvalue().startswith("results/cartpole: ")


def test_what_happens_to_a_trial_is_told_by_all_but_the_quiet_display(make_trial: MakeTrial) -> None:
    streams = [io.StringIO() for _ in range(4)]
    console = Console(file=streams[2], force_terminal=True, width=200, height=24, highlight=False, _environ={})
    displays: list[Display] = [
        PlainDisplay(io.StringIO(), streams[0]),
        JsonDisplay(streams[1]),
        LiveDisplay(io.StringIO(), console),
        QuietDisplay(streams[3]),
    ]
    for display in displays:
        with display:
            display.start(Path("results/cartpole"), [make_trial()])
            display.on_note(make_trial(), "worker 1 was lost;\x1b[2J replaced in 1.8 s")
    plain, as_json, live, quiet = (stream.getvalue() for stream in streams)
    assert "00000-APEX-CartPole-v1: worker 1 was lost; [2J replaced in 1.8 s" in plain
    assert json.loads(as_json.splitlines()[-1])["event"] == "note"
    assert json.loads(as_json.splitlines()[-1])["trial"] == "00000-APEX-CartPole-v1"
    assert "replaced in 1.8 s" in live
    assert "\x1b[2J" not in live
    assert quiet == ""


def test_a_stop_request_writes_nothing_itself_but_with_the_next_tick(make_trial: MakeTrial) -> None:
    """It comes from a signal handler, which may stand in the middle of a write to the same stream."""
    streams = [io.StringIO() for _ in range(3)]
    console = Console(file=streams[2], force_terminal=True, width=80, height=24, _environ={})
    displays: list[Display] = [
        PlainDisplay(io.StringIO(), streams[0]),
        JsonDisplay(streams[1]),
        LiveDisplay(io.StringIO(), console),
    ]
    for display, stream in zip(displays, streams, strict=True):
        with display:
            display.start(Path("results/cartpole"), [make_trial()])
            before = stream.getvalue()
            display.on_stop_request()
            assert stream.getvalue() == before
            display.tick()
            display.tick()
            assert "stopping" in stream.getvalue()
    assert streams[0].getvalue().count("stopping") == streams[1].getvalue().count("stopping") == 1


def interrupt_after(act: Callable[[], None]) -> None:
    act()
    raise KeyboardInterrupt


def test_live_gives_the_terminal_back_when_the_run_raises(make_trial: MakeTrial) -> None:
    terminal = Terminal()
    console = Console(file=terminal, force_terminal=True, width=80, height=24, _environ={})
    display = LiveDisplay(io.StringIO(), console)
    with pytest.raises(KeyboardInterrupt), display:
        interrupt_after(lambda: display.start(Path("results/cartpole"), [make_trial()]))
    drawn = terminal.getvalue()
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("streams", "environment", "flags", "expected"),
    [
        ((Terminal, Terminal), {}, {}, LiveDisplay),
        ((Terminal, Terminal), {"NO_COLOR": ""}, {}, LiveDisplay),
        ((Terminal, Terminal), {"NO_COLOR": "1"}, {}, PlainDisplay),
        ((Terminal, Terminal), {"TERM": "dumb"}, {}, PlainDisplay),
        ((io.StringIO, Terminal), {}, {}, PlainDisplay),
        ((Terminal, io.StringIO), {}, {}, PlainDisplay),
        ((Terminal, Terminal), {}, {"quiet": True}, QuietDisplay),
        ((Terminal, Terminal), {}, {"quiet": True, "json": True}, JsonDisplay),
    ],
)
def test_the_display_fits_flags_streams_and_environment(
    streams: tuple[type[io.StringIO], type[io.StringIO]],
    environment: dict[str, str],
    flags: dict[str, bool],
    expected: type,
) -> None:
    stdout, stderr = streams
    chosen = choose_display(stdout(), stderr(), environment, **{"json": False, "quiet": False, **flags})
    assert type(chosen) is expected
