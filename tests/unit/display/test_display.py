"""What a person sees fits the terminal and is true; what a program reads is one JSON object per line."""

from __future__ import annotations

import io
import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RunRecord, Status
from rlexp.search.display import Display
from rlexp.terminal import live
from rlexp.terminal.displays import JsonDisplay, PlainDisplay, QuietDisplay, choose_display
from rlexp.terminal.live import LiveDisplay
from tests.terminals import Terminal

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


def play(display: Display, trial: Trial, row: dict[str, Any], run: RunRecord) -> None:
    with display:
        display.on_phase(None, "starting Ray")
        display.start(Path("results/cartpole"), [trial])
        display.on_phase(trial, "creating 2 workers")
        display.on_trial_start(trial)
        display.on_result(trial, row)
        display.tick()
        display.on_trial_end(trial, Status.ERROR, "Boom: no\x1b[2J\nsecond line")
        display.finish(run)


def test_plain_prints_one_phase_between_two_results(make_trial: MakeTrial, make_row: MakeRow) -> None:
    stderr, trial = io.StringIO(), make_trial()
    with PlainDisplay(io.StringIO(), stderr) as display:
        display.start(Path("results/cartpole"), [trial])
        display.on_trial_start(trial)
        for iteration in (1, 2):
            display.on_result(trial, make_row(iteration))
            for ended in (0, 1, 2):
                display.on_phase(trial, f"evaluating: {ended} of 10 episodes ended")
    assert stderr.getvalue().count("evaluating: 0 of 10") == 2
    assert stderr.getvalue().count("evaluating") == 2


def test_plain_prints_an_event_of_a_long_iteration_once(make_trial: MakeTrial, make_row: MakeRow) -> None:
    stderr, trial, event = io.StringIO(), make_trial(), "worker 0 failed: no display; replaced in 0.1 s"
    with PlainDisplay(io.StringIO(), stderr) as display:
        display.start(Path("results/cartpole"), [trial])
        display.on_trial_start(trial)
        display.on_phase(trial, event)
        display.on_note(trial, event)
        assert stderr.getvalue().count(event) == 1
        display.on_note(trial, event)
    assert stderr.getvalue().count(event) == 2


def test_plain_prints_a_line_per_event_on_stderr(
    make_trial: MakeTrial, make_row: MakeRow, finished_run: RunRecord
) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    play(PlainDisplay(stdout, stderr), make_trial(), make_row(250), finished_run)
    told = [line.split(" ", 1)[1] for line in stderr.getvalue().splitlines()]
    assert told == [
        "starting Ray",
        "1 trial in results/cartpole",
        "00000-APEX-CartPole-v1 starts",
        "00000-APEX-CartPole-v1: creating 2 workers",
        "00000-APEX-CartPole-v1  iteration 250  steps 250,000 (50 % of 500,000 env steps)  reward 20.0 of 475"
        "  sampled 512/s  trained 2,048/s  bottleneck workers",
        "00000-APEX-CartPole-v1 ERROR: Boom: no [2J",
    ]
    assert "env steps" in stdout.getvalue()


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
            display.on_note(make_trial(), "worker 1 failed;\x1b[2J replaced in 1.8 s")
    plain, as_json, live, quiet = (stream.getvalue() for stream in streams)
    assert "00000-APEX-CartPole-v1: worker 1 failed; [2J replaced in 1.8 s" in plain
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


def test_the_clock_moves_while_the_command_itself_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    console = Console(file=terminal, force_terminal=True, width=80, height=24, highlight=False, _environ={})
    seconds = itertools.count()
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with LiveDisplay(io.StringIO(), console) as display:
        display.start(Path("results/cartpole"), [])
        display.on_phase(None, "starting Ray")
        give_up_s = time.monotonic() + 20
        while terminal.getvalue().count("starting Ray") < 3 and time.monotonic() < give_up_s:
            threading.Event().wait(0.01)
        clocks = re.findall(r"results/cartpole  (0:\d\d:\d\d)  starting Ray", terminal.getvalue())
    assert len(clocks) >= 3
    assert clocks == sorted(set(clocks))
    assert not [thread for thread in threading.enumerate() if thread.name == "display-clock"]


def test_a_resumed_trial_shows_its_earlier_rewards(tmp_path: Path, make_trial: MakeTrial, make_row: MakeRow) -> None:
    trial = make_trial()
    (tmp_path / trial.name).mkdir()
    rows = [make_row(1, 10.0), make_row(2, None), make_row(3, 90.0)]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"training_iteration": 4, "cut'
    (tmp_path / trial.name / "result.json").write_text(text)
    terminal = Terminal()
    console = Console(file=terminal, force_terminal=True, width=80, height=24, highlight=False, _environ={})
    with LiveDisplay(io.StringIO(), console) as display:
        display.start(tmp_path, [trial])
        display.on_result(trial, make_row(4, 50.0))
        display.tick()
    assert "best 90.0" in terminal.getvalue()
    assert "▁█▅" in terminal.getvalue()


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
