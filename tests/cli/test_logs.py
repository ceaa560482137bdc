"""``rlexp logs`` as its user meets it: a process, its output and its exit code."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event

from rlexp.terminal.log_tables import shown_value
from rlexp.terminal.logs import LogOptions, print_logs
from tests.cli.forked_commands import on_terminal, rlexp, rlexp_in_new_process
from tests.lab.event_writing import frames, histogram, scalar, start_of_run, write
from tests.lab.terminals import Terminal

COMMAND = [sys.executable, "-m", "rlexp", "logs"]


def environment(**environ: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    return {**kept, "PYTHONWARNINGS": "error", "CUDA_VISIBLE_DEVICES": "", "TZ": "UTC", **environ}


def logs(*arguments: object, cwd: Path | None = None, **environ: str) -> "subprocess.CompletedProcess[str]":
    return rlexp("logs", *arguments, cwd=cwd, **{"COLUMNS": None, "NO_COLOR": None, "TZ": "UTC", **environ})


def history() -> list[Event]:
    """Forty steps of two scalars, and some histograms."""
    events = []
    for step in range(0, 40_000, 1000):
        events.append(scalar("ray/tune/reward", step, min(step / 100, 350), 1e9 + step))
        events.append(scalar("ray/tune/info/loss", step, 0.1 + 10 / (step + 1), 1e9 + step))
    return [*events, *[histogram("weights", step) for step in range(3)]]


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "00000-DQN"
    write(path, history())
    return path


def test_a_table(trial: Path) -> None:
    done = logs(trial, COLUMNS="120")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        str(trial),
        "2 tags, 80 points, written in 10:50:00 until 2001-09-09 12:36:40",
        "tags below ray/tune/",
        "tag        points      steps    last   max  at step   slope/1k  curve",
        "info/loss      40  0..39,000  0.1003  10.1        0  -8.51e-06  █▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁",
        "reward         40  0..39,000     350   350   35,000      +5.76  ▁▁▁▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇███████",
        "weights  histogram  3",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("tag", ["loss", "ray/tune/a_long_name_that_nobody_can_read/in_a_narrow_terminal/at_all"])
def test_a_table_is_as_wide_as_the_terminal(tmp_path: Path, width: int, tag: str) -> None:
    write(tmp_path, [scalar(tag, 10**9 + step * 10**7, -1.23456e-20 * step) for step in range(2000)])
    done = logs(tmp_path, COLUMNS=str(width))
    table = done.stdout.splitlines()[2:]
    assert max(map(len, table)) <= width
    assert "last" in table[0]
    if width != 80:  # where it depends on the tag
        assert ("points" in table[0]) == (width > 80)
    assert "-2.468e-17" in table[1]
    assert ("▁" in table[1]) == (width >= 40)


def test_several_paths_are_several_tables(trial: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [scalar("loss", 1, 2.0)])
    done = logs(tmp_path / "run", other)
    assert [line for line in done.stdout.splitlines() if line.startswith("/")] == [str(trial), str(other)]


def test_tags(trial: Path) -> None:
    done = logs(trial, "--tag", "rew*", "--tag", "info/*")
    assert "reward" in done.stdout
    assert "loss" in done.stdout
    assert "weights" not in done.stdout
    assert "loss" not in logs(trial, "--tag", "reward").stdout


def test_unknown_tag_is_an_error(trial: Path) -> None:
    done = logs(trial, "--tag", "rewrad")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == ["error: no tag matches rewrad", "hint:  did you mean reward?"]


def test_the_value_at_a_step(trial: Path) -> None:
    done = logs(trial, "--at", "5500", "--tag", "reward")
    assert done.stdout.splitlines()[1:] == ["tag              step   value", "ray/tune/reward  5,000  50"]
    assert logs(trial, "--at", "-1", "--tag", "reward").stdout.splitlines()[1:] == ["tag  step  value"]


def test_csv_has_every_point_and_every_digit(trial: Path) -> None:
    done = logs(trial, "--csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 80
    assert rows[1] == {
        "run": str(trial),
        "tag": "ray/tune/info/loss",
        "step": "1000",
        "wall_time": "1000001000.0",
        "value": "0.10999000817537308",
    }
    assert done.stderr == f"notice: {trial}: 1 tag is not a scalar and left out (histogram)\n"
    at = logs(trial, "--csv", "--at", "1000", "--tag", "reward").stdout.splitlines()
    assert at == ["run,tag,step,wall_time,value", f"{trial},ray/tune/reward,1000,1000001000.0,10.0"]


def test_csv_quotes_what_must_be(tmp_path: Path) -> None:
    write(tmp_path, [scalar('a,"b"', 0, 1.0)])
    (row,) = csv.DictReader(io.StringIO(logs(tmp_path, "--csv").stdout))
    assert row["tag"] == 'a,"b"'


def test_json_lines(trial: Path) -> None:
    done = logs(trial, "--json")
    loss, reward, weights = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (0, "")
    assert weights == {"run": str(trial), "tag": "weights", "kind": "histogram", "points": 3}
    assert reward["steps"] == list(range(0, 40_000, 1000))
    assert reward["wall_times"][1] == 1000001000.0
    assert reward["values"][3] == 30.0
    assert list(loss) == list(reward)
    del reward["steps"], reward["wall_times"], reward["values"]
    assert reward.pop("slope") == pytest.approx(
        np.polyfit(range(30_000, 40_000, 1000), [300, 310, 320, 330, 340, *[350] * 5], 1)[0]
    )
    assert reward == {
        "run": str(trial),
        "tag": "ray/tune/reward",
        "kind": "scalar",
        "points": 40,
        "first_step": 0,
        "last_step": 39_000,
        "last": 350.0,
        "max": 350.0,
        "max_step": 35_000,
        "min": 0.0,
        "min_step": 0,
        "first_wall_time": 1e9,
        "last_wall_time": 1000039000.0,
    }


def test_json_has_null_where_there_is_no_number(tmp_path: Path) -> None:
    write(tmp_path, [scalar("loss", 0, float("nan")), scalar("loss", 1, float("inf"))])
    (line,) = map(json.loads, logs(tmp_path, "--json").stdout.splitlines())
    assert (line["values"], line["max"], line["slope"]) == ([None, None], None, None)


def test_json_at_a_step(trial: Path) -> None:
    (line,) = map(json.loads, logs(trial, "--json", "--at", "1500", "--tag", "reward").stdout.splitlines())
    head = {"run": str(trial), "tag": "ray/tune/reward", "kind": "scalar", "points": 1}
    assert line == {**head, "steps": [1000], "wall_times": [1000001000.0], "values": [10.0]}


def test_all_points_of_a_long_series(tmp_path: Path) -> None:
    write(tmp_path, [scalar("loss", step, step) for step in range(12_345)])
    (line,) = map(json.loads, logs(tmp_path, "--json").stdout.splitlines())
    assert line["steps"] == list(range(12_345)) == line["values"]
    assert len(logs(tmp_path, "--csv").stdout.splitlines()) == 12_346


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "does not exist"),
        (["run", "--csv", "--json"], "--csv and --json cannot be combined"),
        (["run", "--at", "3", "--follow"], "--at and --follow cannot be combined"),
        (["run", "--at", "soon"], "--at must be a whole number"),
        ([], "rlexp logs needs PATH"),
    ],
)
def test_wrong_input(tmp_path: Path, arguments: list[str], message: str) -> None:
    if "run" in arguments:
        write(tmp_path / "run", [scalar("loss", 0, 1.0)])
    done = logs(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert ("hint:" in done.stderr) == ("error: " in done.stderr)


def test_damage_is_reported_and_the_rest_is_shown(trial: Path) -> None:
    (path,) = trial.iterdir()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    done = logs(trial)
    assert done.returncode == 0
    assert "reward" in done.stdout
    assert done.stderr.startswith(
        f"notice: {path} ends within a record, after record 83, byte {size - len(frames(history())[-1])}\n"
    )


def test_restart_is_reported(tmp_path: Path) -> None:
    write(tmp_path, [scalar("loss", step, 1.0) for step in range(9)] + [start_of_run(5)])
    done = logs(tmp_path)
    assert "0..4" in done.stdout
    assert done.stderr == f"notice: {tmp_path}: 4 points are left out: it was resumed from an earlier step\n"


def test_a_run_without_values(tmp_path: Path) -> None:
    write(tmp_path, [])
    assert logs(tmp_path).stderr == f"notice: {tmp_path} has no values yet\n"


def test_terminals_without_unicode(trial: Path) -> None:
    done = rlexp_in_new_process("logs", trial, COLUMNS=None, NO_COLOR=None, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "_" in done.stdout.splitlines()[-2].split()[-1]


def test_colours_only_on_a_terminal(trial: Path) -> None:
    assert "\x1b" not in logs(trial).stdout
    assert "\x1b[1m" in on_terminal("logs", trial, NO_COLOR="")
    assert "\x1b" not in on_terminal("logs", trial, NO_COLOR="1")


class Following:
    """``rlexp logs --follow`` in a process of its own; lines are waited for, and no longer than a test may last."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *map(str, arguments), "--follow"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._lines: Queue[str] = Queue()
        Thread(target=self._read, daemon=True).start()
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == "notice: waiting for new points; Ctrl-C ends\n"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))

    def line(self) -> str:
        return self._lines.get(timeout=30)


def test_control_characters_of_a_tag_are_printed_in_no_form(tmp_path: Path) -> None:
    write(tmp_path / "run", [scalar("a\x1b[2J\u202e\r\nx", 1, 1.5)])
    for form in ((), ("--at", "5"), ("--csv",), ("--json",)):
        done = logs(tmp_path / "run", *form)
        assert done.returncode == 0
        assert all(character.isprintable() or character == "\n" for character in done.stdout), form
        assert ("?[2J???x" if form in ((), ("--at", "5")) else "[2J") in done.stdout


@pytest.fixture
def following(trial: Path) -> Iterator[list[Following]]:
    started: list[Following] = []
    yield started
    for one in started:
        one.process.kill()
        one.process.communicate(timeout=30)


def append(trial: Path, *events: Event) -> None:
    (path,) = trial.iterdir()
    with path.open("ab") as file:
        file.write(b"".join(frames(events)))


def test_follow_prints_what_is_written_until_ctrl_c(trial: Path, following: list[Following]) -> None:
    following.append(Following(trial, "--tag", "reward"))
    table = [following[0].line() for _ in range(4)]
    assert table[-1].startswith("ray/tune/reward")
    for step in (40_000, 41_000):
        append(trial, scalar("ray/tune/reward", step, 1.5, 1e9), scalar("ray/tune/other", step, 1.5))
        assert following[0].line().split() == ["01:46:40", f"{step:,}", "1.5", "ray/tune/reward"]
    following[0].process.send_signal(signal.SIGINT)
    assert following[0].process.wait(timeout=30) == 130
    assert following[0].process.stderr is not None
    assert "Traceback" not in following[0].process.stderr.read()


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_follow_in_other_forms(trial: Path, following: list[Following], form: str) -> None:
    following.append(Following(trial, "--tag", "reward", form))
    for _ in range(41 if form == "--csv" else 1):
        following[0].line()
    append(trial, scalar("ray/tune/reward", 40_000, 1.5, 1e9))
    line = following[0].line()
    if form == "--csv":
        assert line == f"{trial},ray/tune/reward,40000,1000000000.0,1.5"
    else:
        head = {"run": str(trial), "tag": "ray/tune/reward", "kind": "scalar", "points": 1}
        assert json.loads(line) == {**head, "steps": [40_000], "wall_times": [1e9], "values": [1.5]}


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, lines: int, *paths: Path, **options: bool) -> list[str]:
    """Return the lines that a terminal of so many lines gets."""
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_logs(paths, LogOptions((), None, False, False, False, **options))
    return terminal.getvalue().splitlines()


def test_a_terminal_gets_the_tags_that_fit_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["aaa", "constant", "episode_reward_mean", "timesteps_total", *(f"tag{number}" for number in range(30))]
    values = ((name, step, 1.0 if name == "constant" else float(step)) for step in range(3) for name in names)
    write(tmp_path, [scalar(f"ray/tune/{name}", step, value) for name, step, value in values])
    lines = on_a_terminal(monkeypatch, 20, tmp_path)
    assert len(lines) < 20
    assert lines[-1] == "… and 20 more tags: --all shows them, --tag 'GLOB' some"
    shown = {line.split()[0] for line in lines[4:-1]}
    assert {"episode_reward_mean", "timesteps_total", "aaa"} <= shown
    assert "constant" not in shown
    assert len(on_a_terminal(monkeypatch, 20, tmp_path, all_tags=True)) == 4 + len(names)


def test_the_newest_run_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, age in (("a", 0), ("b", 100)):
        write(tmp_path / name, [scalar("reward", 1, 2.0)])
        for file in (tmp_path / name).iterdir():
            os.utime(file, (10**9 - age, 10**9 - age))
    headings = [line for line in on_a_terminal(monkeypatch, 40, tmp_path) if str(tmp_path) in line]
    assert ["/b" in headings[0], "/a" in headings[1]] == [True, True]


@pytest.mark.parametrize(
    ("tag", "value", "shown"),
    [
        ("ray/tune/time_total_s", 3723.0, "1:02:03"),
        ("time_since_restore", 59.0, "59"),
        ("ray/tune/episode_reward_mean", 3723.0, "3723"),
        ("ray/tune/timestamp", float("nan"), "nan"),
        ("ray/tune/timestamp", 1e300, "1e+300"),
        ("time_total_s", None, "-"),
    ],
)
def test_times_are_shown_as_times(tag: str, value: float | None, shown: str) -> None:
    assert shown_value(tag, value) == shown


def test_a_timestamp_is_shown_as_date_and_time() -> None:
    assert re.fullmatch(r"2026-11-2\d \d\d:\d\d:\d\d", shown_value("ray/tune/timestamp", 1.7955e9 + 3e5))
