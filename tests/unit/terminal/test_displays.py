"""What a person sees fits the terminal and is true; what a program reads is one JSON object per line.

The summary says how a run ended, why, what is kept, and what to type next.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RecordedError, RunRecord, Status, TrialRecord
from rlexp.search.standings import Display
from rlexp.terminal import live
from rlexp.terminal.displays import JsonDisplay, PlainDisplay, QuietDisplay, choose_display
from rlexp.terminal.live import LiveDisplay
from rlexp.terminal.summary import summary_lines
from tests.lab.terminals import Terminal
from tests.unit.conftest import MakeRow, MakeTrial


def live_on(terminal: io.StringIO, stdout: io.StringIO | None = None, width: int = 80) -> LiveDisplay:
    console = Console(file=terminal, force_terminal=True, width=width, height=24, highlight=False, _environ={})
    return LiveDisplay(stdout or io.StringIO(), console)


def check_cursor_is_shown(terminal: io.StringIO) -> None:
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")


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


def test_plain_prints_how_far_a_long_iteration_is_less_and_less_often(make_trial: MakeTrial, make_row: MakeRow) -> None:
    stderr, trial, now = io.StringIO(), make_trial(), 0.0
    with PlainDisplay(io.StringIO(), stderr, clock=lambda: now) as display:
        display.start(Path("results/cartpole"), [trial])
        display.on_trial_start(trial)
        for second in range(5, 205, 5):
            now = float(second)
            display.on_phase(trial, f"iteration 1: {second} env steps")
        display.on_result(trial, make_row(1))
        display.on_phase(trial, "iteration 2: 201 env steps")
        display.on_phase(trial, "evaluating: 0 of 10 episodes ended")
    said = [line.split(": ", 2)[-1] for line in stderr.getvalue().splitlines() if ": iteration" in line]
    assert said == [f"{second} env steps" for second in (5, 15, 35, 75, 135, 195, 201)]
    assert "evaluating" in stderr.getvalue()


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
    play(live_on(terminal, stdout), make_trial(), make_row(), finished_run)
    drawn = terminal.getvalue()
    assert "learner queue 3/16" in drawn
    assert "ERROR" in drawn
    assert "\x1b[2J" not in drawn
    check_cursor_is_shown(terminal)
    assert stdout.getvalue().startswith("results/cartpole: ")


def test_what_happens_to_a_trial_is_told_by_all_but_the_quiet_display(make_trial: MakeTrial) -> None:
    streams = [io.StringIO() for _ in range(4)]
    displays: list[Display] = [
        PlainDisplay(io.StringIO(), streams[0]),
        JsonDisplay(streams[1]),
        live_on(streams[2], width=200),
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
    displays: list[Display] = [
        PlainDisplay(io.StringIO(), streams[0]),
        JsonDisplay(streams[1]),
        live_on(streams[2]),
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
    seconds = itertools.count()
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with live_on(terminal) as display:
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
    with live_on(terminal) as display:
        display.start(tmp_path, [trial])
        display.on_result(trial, make_row(4, 50.0))
        display.tick()
    assert "best 90.0" in terminal.getvalue()
    assert "▁█▅" in terminal.getvalue()


def test_live_gives_the_terminal_back_when_the_run_raises(make_trial: MakeTrial) -> None:
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), live_on(terminal) as display:  # noqa: PT012
        display.start(Path("results/cartpole"), [make_trial()])
        raise KeyboardInterrupt
    check_cursor_is_shown(terminal)


@pytest.mark.parametrize(
    ("streams", "environment", "flags", "expected"),
    [
        ((Terminal, Terminal), {}, {}, LiveDisplay),
        ((Terminal, Terminal), {"NO_COLOR": ""}, {}, LiveDisplay),
        ((Terminal, Terminal), {"NO_COLOR": "1"}, {}, LiveDisplay),
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


RUN = Path("results/cartpole")


def record(*trials: TrialRecord, status: Status = Status.TERMINATED) -> RunRecord:
    return RunRecord("cartpole", [], {}, None, "host", 2, "now", status=status, trials=list(trials))


def trial(index: int, **known: object) -> TrialRecord:
    name = f"{index:05d}-DQN-x"
    facts = {"status": Status.TERMINATED, "iterations": 12, "reason": "timesteps_total reached 6,000", **known}
    return TrialRecord(name, name, index, {}, **facts)  # type: ignore[arg-type]


def test_the_summary_says_how_it_ended_and_what_to_type_next(finished_run: RunRecord) -> None:
    assert summary_lines(finished_run, RUN) == [
        "results/cartpole: RUNNING",
        "      status      iter  env steps     time  reward   best  trial",
        "best  TERMINATED    12     12,000  0:01:00   470.0  475.5  00000-APEX-x",
        "      ERROR          0          0  0:00:00       -      -  00001-APEX-x",
        "00000-APEX-x finished: episode_reward_mean 475.5 reached 475",
        "00001-APEX-x failed: Boom: no [2J (traceback: results/cartpole/e.txt)",
        "best checkpoint: results/cartpole/a/b",
        "",
        "next: correct what failed, then: rlexp resume results/cartpole",
        "      rlexp evaluate results/cartpole",
        "      rlexp compare results/cartpole",
        "      rlexp tensorboard results/cartpole",
    ]


def test_the_summary_fits_the_columns_of_a_terminal() -> None:
    trials = [
        trial(number, reason="episode_reward_mean 475.5 reached 475 and then some more that is long to read here")
        for number in range(2)
    ]
    for number, each in enumerate(trials):
        each.directory = f"0000{number}-DQN-CartPole-v1-train_batch_size=32,lr=0.001,n_step={number}"
    wide, narrow = summary_lines(record(*trials), RUN), summary_lines(record(*trials), RUN, columns=80)
    assert max(map(len, wide)) > 80
    assert max(len(line) for text in narrow for line in text.splitlines()) <= 80
    assert [line[-8:] for line in narrow if line.startswith("TERM")] == ["n_step=0", "n_step=1"]


def test_what_to_type_next_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert summary_lines(record(), tmp_path / "my runs" / "a")[-1] == "next: rlexp tensorboard 'my runs/a'"


def test_the_best_trial_of_each_environment_is_marked() -> None:
    rewards = [("x", 0.8727), ("x", 0.8841), ("y", -20.5), ("y", -20.98), ("z", 1.0)]
    trials = [trial(index, env=env, best_episode_reward_mean=best) for index, (env, best) in enumerate(rewards)]
    lines = summary_lines(record(*trials), RUN)
    assert [line[-11:] for line in lines if line.startswith("best  T")] == ["00001-DQN-x", "00002-DQN-x"]
    assert "0.8727" in lines[2]
    assert "0.8841" in lines[3]


def test_trials_that_ended_alike_share_a_line_and_many_lines_are_counted() -> None:
    lines = summary_lines(record(*map(trial, range(40))), RUN)
    assert "00000-DQN-x and 39 more finished: timesteps_total reached 6,000" in lines
    lines = summary_lines(record(*(trial(index, reason=f"reward {index}") for index in range(40))), RUN)
    assert sum("finished: reward" in line for line in lines) == 20
    assert "… and 20 more, in run.json" in lines


def test_a_policy_that_was_not_saved_is_said_to_be_lost() -> None:
    lines = summary_lines(record(trial(0), trial(1, best_checkpoint="00001-DQN-x/checkpoint_000012")), RUN)
    assert "the trained policy was not saved: checkpoint_at_end is false" in lines
    assert "to save it the next time: -o checkpoint_at_end=true" in lines
    saved = summary_lines(record(trial(1, best_checkpoint="00001-DQN-x/checkpoint_000012")), RUN)
    assert not [line for line in saved if "not saved" in line]
    assert "best checkpoint: results/cartpole/00001-DQN-x/checkpoint_000012" in saved


def test_a_stopped_trial_says_from_where_it_is_resumed(tmp_path: Path) -> None:
    for checkpoint in ("00000-DQN-x/checkpoint_000010", "00000-DQN-x/checkpoint_000008"):
        (tmp_path / checkpoint).mkdir(parents=True)
    stopped = [trial(index, status=Status.STOPPED, reason=None) for index in range(3)]
    stopped[2].iterations = 0
    lines = summary_lines(record(*stopped, status=Status.STOPPED), tmp_path)
    assert "00000-DQN-x stopped: resume continues from checkpoint_000010" in lines
    assert "00001-DQN-x stopped: iteration 12, no checkpoint: resume starts it from the beginning" in lines
    assert "00002-DQN-x stopped: it had no result yet" in lines
    assert f"next: rlexp resume {tmp_path}" in lines


def test_an_error_of_many_lines_and_control_characters_stays_one_line() -> None:
    failed = trial(0, status=Status.ERROR, error=RecordedError("ValueError: \x1b[31mbad\nsecond", None))
    (line,) = [line for line in summary_lines(record(failed), RUN) if "ValueError" in line]
    assert re.fullmatch(r"failed: ValueError:  \[31mbad", line)


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_no_color_leaves_out_the_colours_alone(
    monkeypatch: pytest.MonkeyPatch, make_trial: MakeTrial, no_color: str, colored: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    with choose_display(Terminal(), terminal, os.environ, json=False, quiet=False) as display:
        display.start(Path("results/cartpole"), [make_trial()])
        display.on_trial_start(make_trial())
        display.tick()
    assert "results/cartpole" in terminal.getvalue()
    assert bool(re.search(r"\x1b\[(\d+;)*3[0-7]m", terminal.getvalue())) is colored
