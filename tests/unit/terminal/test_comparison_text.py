"""What ``rlexp compare`` prints.

What ``rlexp ls`` prints, on wide and on narrow terminals.

Plots in braille dots: size, positions of curves, and letters that mark them without colour.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import CurveAxis
from rlexp.compare.run_listing import DAMAGED, Found
from rlexp.config.keys.agents import AGENTS
from rlexp.runs.record import Status
from rlexp.terminal.comparison import print_comparison
from rlexp.terminal.plot import PlotLine, plot
from rlexp.terminal.results import print_address, print_found
from tests.lab.run_folders import MadeTrial, make_run
from tests.lab.terminals import Terminal

Show = Callable[..., tuple[list[str], str]]


def rising(last: float) -> list[float | None]:
    return [last - 19 + row for row in range(20)]


def grid(tmp_path: Path, values: int, seeds: int = 4, key: str = "n_step") -> Path:
    trials = [MadeTrial(rising(20.0 * v + s), s, {key: v}) for s in range(seeds) for v in range(1, values + 1)]
    return make_run(tmp_path / "grid", trials)


def compared(path: Path, goal: float | None = None) -> Comparison:
    return compare_groups([str(path)], "episode_reward_mean", CurveAxis.STEPS, goal)


@pytest.fixture
def show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Show:
    """Prints a comparison on a terminal of 80 columns, which it fits; gives the lines of stdout, and stderr."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")

    def print_and_read(comparison: Comparison) -> tuple[list[str], str]:
        print_comparison(comparison, as_json=False)
        printed = capsys.readouterr()
        lines = [line.rstrip() for line in printed.out.splitlines()]
        assert max(map(len, lines)) <= 80
        return lines, printed.err

    return print_and_read


def as_json(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    print_comparison(comparison, as_json=True)
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_comparison_has_curves_and_a_line_per_group(tmp_path: Path, show: Show) -> None:
    lines, notices = show(compared(grid(tmp_path, 2), goal=40.0))
    assert lines[0] == "episode_reward_mean: IQM over seeds, dots: 95 % interval"
    assert len(lines) < 24
    tables = [line.split() for line in lines[lines.index("") + 1 :]]
    assert tables[1] == ["A", "n_step=1", "4", "21.00", "21.00", "[19.50,", "22.50]", "-"]
    assert tables[2][:5] == ["B", "n_step=2", "4", "41.00", "41.00"]
    assert tables[2][-3:] == ["1.00", "[1.00,", "1.00]"]
    assert tables[5] == ["A", "n_step=1", "0", "of", "4", "-", "-"]
    assert tables[6] == ["B", "n_step=2", "4", "of", "4", "1,850", "0:00:37"]
    budget = "This order is for a budget of 2,000 env steps: with more, another group may be best."
    assert " ".join(lines).endswith(f"the last tenth that all 8 trials have. {budget}")
    assert notices == ""


def test_comparison_cuts_long_names_but_no_numbers(tmp_path: Path, show: Show) -> None:
    lines, _ = show(compared(grid(tmp_path, 2, key="a_very_long_name_of_a_key_that_nobody_should_have")))
    rows = [line for line in lines if line.startswith(("A ", "B "))]
    assert [row[-1] for row in rows] == ["-", "]"]
    assert all("…" in row for row in rows)


def test_cut_names_of_a_grid_differ(tmp_path: Path, show: Show) -> None:
    keys = [(lr, target) for lr in (0.001, 0.0005) for target in (500, 1000)]
    trials = [
        MadeTrial(rising(300.0 + lr + target + seed), seed, {"lr": lr, "target_network_update_freq": target})
        for lr, target in keys
        for seed in range(3)
    ]
    lines, _ = show(compared(make_run(tmp_path / "grid", trials)))
    names = [line[3:].split("  ")[0] for line in lines if line[:3] in ("A  ", "B  ", "C  ", "D  ")]
    assert names == ["lr=0.001, …freq=500", "lr=0.001, …freq=1000", "lr=0.0005, …freq=500", "lr=0.0005, …freq=1000"]


@pytest.mark.parametrize(("seeds", "is_said"), [(1, True), (2, False)])
def test_comparison_says_why_a_probability_is_missing(seeds: int, is_said: bool, tmp_path: Path, show: Show) -> None:
    lines, notices = show(compared(grid(tmp_path, 2, seeds=seeds)))
    (row,) = [line for line in lines if line.startswith("B ")]
    assert row.endswith("[1 seed]                 -") == is_said
    assert ("only one seed per group, so no interval; run more seeds" in notices) == is_said
    told = "P(better than A) is - if it cannot be estimated: both groups need 2 seeds"
    assert (told in "\n".join(lines)) == is_said


def test_the_best_of_a_sweep_with_mode_min_are_the_lowest(tmp_path: Path, show: Show) -> None:
    comparison = replace(compared(grid(tmp_path, 9, seeds=2)), lower_is_better=True)
    plotted = "\n".join(show(comparison)[0]).split("\n\n", maxsplit=1)[0].split("\n", maxsplit=2)[2]
    assert {letter for letter in "ABCDEFGHI" if letter in plotted} <= set("ABCDEF")


@pytest.mark.parametrize("columns", ["1", "2", "5"])
def test_comparison_is_shown_on_the_narrowest_terminal(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_comparison(compared(grid(tmp_path, 2)), as_json=False)
    assert capsys.readouterr().out


def test_comparison_of_many_groups_draws_the_best_and_lists_all(tmp_path: Path, show: Show) -> None:
    lines, notices = show(compared(grid(tmp_path, 9, seeds=1)))
    curves, tables = "\n".join(lines).split("\n\n", maxsplit=1)
    heading, plotted = " ".join(lines[:2]), curves.split("\n", maxsplit=2)[2]
    assert heading.endswith("the first group and the 5 best others")
    assert {letter for letter in "ABCDEFGHI" if letter in plotted} <= set("AEFGHI")
    assert [line[0] for line in tables.splitlines()[1:10]] == list("ABCDEFGHI")
    assert "[1 seed]" in tables
    assert "notice: " in notices


def test_settings_that_differ_are_listed_with_their_values(tmp_path: Path, show: Show) -> None:
    configs: list[dict[str, Any]] = [{"env_config": {"size": 3}, "lr": 0.1}, {"env_config": {"size": 4}}]
    paths = [make_run(tmp_path / f"run{n}", [MadeTrial(rising(20.0), n, config=c)]) for n, c in enumerate(configs)]
    lines, _ = show(compare_groups(list(map(str, paths)), "episode_reward_mean", CurveAxis.STEPS, None))
    place = lines.index("the groups differ in their env: their scores may not be comparable")
    assert [line.split() for line in lines[place + 1 : place + 4]] == [
        ["setting", "that", "differs", "A", "B"],
        ["env_config.size", "3", "4"],
        ["lr", "0.1", "0.001"],
    ]


def test_settings_that_the_names_have_are_not_repeated(tmp_path: Path, show: Show) -> None:
    lines, _ = show(compared(grid(tmp_path, 3)))
    assert not any("differ" in line for line in lines)


def test_settings_of_many_groups_are_named_first_those_that_all_have(tmp_path: Path, show: Show) -> None:
    paths = [
        make_run(tmp_path / f"run{n}", [MadeTrial(rising(20.0), n, config={f"key{n}": n, "lr": n})]) for n in range(14)
    ]
    lines, _ = show(compare_groups(list(map(str, paths)), "episode_reward_mean", CurveAxis.STEPS, None))
    assert any(line.startswith("settings that differ: config.lr, config.key0, ") for line in lines)
    assert "… and 3 more; --html FILE and --json have all" in lines


def test_names_cannot_move_the_cursor(tmp_path: Path, show: Show) -> None:
    run = make_run(tmp_path / "run", [MadeTrial([1.0], 0)])
    lines, notices = show(compare_groups([f"a\x1b[2Jb={run}"], "episode_reward_mean", CurveAxis.STEPS, None))
    assert "\x1b" not in "".join(lines) + notices


def ended_early(tmp_path: Path, name: str = "n_step") -> Path:
    """Return a run of a trial that completed, one that was pruned and one that failed."""
    trials = [
        MadeTrial(rising(60.0), 1, {name: 0}),
        MadeTrial([45.5] * 5, 1, {name: 1}, status=Status.PRUNED),
        MadeTrial([None], 1, {name: 2}, status=Status.ERROR),
    ]
    return make_run(tmp_path / "early", trials)


def test_what_ended_early_is_below_the_scores(tmp_path: Path, show: Show) -> None:
    lines, notices = show(compared(ended_early(tmp_path)))
    start = next(number for number, line in enumerate(lines) if line.startswith("ended early"))
    assert lines[start : start + 4] == [
        "ended early  value where it ended  A there  status",
        "n_step=1               45.5 @ 500     45.0  PRUNED",
        "n_step=2                        -        -  ERROR",
        "n_step=2: ValueError: no more",
    ]
    assert "left out" not in notices, "it is in the table"


def test_names_of_what_ended_early_are_cut(tmp_path: Path, show: Show) -> None:
    run = ended_early(tmp_path, "a_very_long_name_of_a_key_that_nobody_should_have_in_a_sweep_at_all")
    lines, _ = show(compared(run))
    assert any("45.5 @ 500" in line for line in lines)


def test_long_errors_do_not_cut_the_table_of_what_ended_early(tmp_path: Path, show: Show) -> None:
    error = "env my_env:Robot: my_env.py:8 in step: RuntimeError: the sensor of the left arm is lost (correct the env)"
    comparison = compared(ended_early(tmp_path))
    groups = tuple(replace(each, error=each.error and error) for each in comparison.ended_early)
    lines, _ = show(replace(comparison, ended_early=groups))
    assert "n_step=1               45.5 @ 500     45.0  PRUNED" in lines
    start = lines.index("n_step=2                        -        -  ERROR")
    assert " ".join(line.strip() for line in lines[start + 1 : start + 3]) == f"n_step=2: {error}"


def test_json_lists_what_ended_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended_early(tmp_path)
    pruned, failed = as_json(compared(run), capsys)["ended_early"]
    assert pruned == {
        "name": "n_step=1",
        "status": "PRUNED",
        "error": None,
        "at": 500.0,
        "of": None,
        "unit": "env steps",
        "value": 45.5,
        "first_value": 45.0,
        "trials": [str(run / "00001-DQN-CartPole-v1")],
    }
    assert (failed["status"], failed["error"], failed["at"]) == ("ERROR", "ValueError: no more", None)


def test_comparison_json_has_what_rliable_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = as_json(compared(grid(tmp_path, 2), goal=25.0), capsys)
    assert (printed["metric"], printed["by"], printed["goal"]) == ("episode_reward_mean", "steps", 25.0)
    assert printed["final_window"] == [1800.0, 2000.0]
    assert printed["differences"] == {"config.n_step": {"n_step=1": "1", "n_step=2": "2"}}
    first, second = printed["groups"]
    assert [trial["score"] for trial in first["trials"]] == [19.5, 20.5, 21.5, 22.5]
    assert (first["iqm"], first["improvement_probability"], second["improvement_probability"]) == (21.0, None, 1.0)
    assert first["goal"] == {"seeds": 0, "median_steps": None, "median_seconds": None}
    assert first["trials"][0]["steps_to_goal"] is None
    assert second["trials"][0]["steps_to_goal"] == 500.0
    assert len(first["curve"]["x"]) == len(first["curve"]["iqm"]) == len(first["curve"]["high"])
    assert printed["notices"] == []


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
    told = " ".join(line.split())
    assert told == "pong TERMINATED APEX PongNoFrameskip-v4 20.94 19.0 12,345,678 321 5 h 3.2 MB"
    assert grid.startswith("sorted/grid (6 trials)  TERMINATED  DQN+APEX ")


def test_a_run_of_many_agents_takes_no_column_from_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    header, line = printed(capsys, [found(agents=tuple(sorted(AGENTS)))], columns=120)
    assert "agent" in header
    assert "iter" in header
    assert "A2C+A3…2+SAC+SIMPLEQ+TD3" in line


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


def line(
    mark: str, y: list[float], x: list[float] | None = None, colour: str = "36", edge: float | None = None
) -> PlotLine:
    values = np.array(y)
    low, high = (None, None) if edge is None else (values - edge, values + edge)
    return PlotLine(mark, colour, np.array(x if x is not None else range(len(y)), float), values, low, high)


def drawn(*lines: PlotLine, width: int = 40, height: int = 12) -> list[str]:
    return list(plot(lines, width, height, "env steps", io.StringIO()))


def test_plot_of_a_rising_line_rises() -> None:
    rows = drawn(line("A", [0.0, 100.0]))
    area = rows[:-2]
    first = [min((column for column, cell in enumerate(row[6:]) if cell != " "), default=99) for row in area]
    assert first == sorted(first, reverse=True)
    assert first[-1] == 0


def test_plot_axes_have_round_numbers_and_a_name() -> None:
    rows = drawn(line("A", [0.0, 100.0], [0.0, 20_000.0]))
    assert [row[:5] for row in rows if "┤" in row] == ["100 ┤", " 75 ┤", " 50 ┤", " 25 ┤", "  0 ┤"]
    assert rows[-1].split() == ["0", "10k", "env", "steps"]
    assert rows[-2].count("┬") == 3


def test_plot_draws_a_line_on_the_row_of_its_value() -> None:
    rows = drawn(line("A", [50.0, 50.0]), line("B", [0.0, 100.0]))
    assert sum("A" in row for row in rows) == 1
    [middle] = [number for number, row in enumerate(rows) if "A" in row]
    assert middle in (4, 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20), min_size=1, max_size=5),
    st.integers(25, 120),
    st.integers(6, 30),
)
def test_plot_fits_and_every_curve_has_its_letter(curves: list[list[float]], width: int, height: int) -> None:
    lines = [line("ABCDE"[number], y, edge=1.0) for number, y in enumerate(curves)]
    rows = drawn(*lines, width=width, height=height)
    assert len(rows) == height
    assert max(map(len, rows)) <= width
    assert lines[-1].mark in "".join(rows[:-2])  # the last one drawn is hidden by none


def test_plot_letters_of_parallel_curves_are_side_by_side() -> None:
    text = "".join(drawn(line("A", [0.0, 1.0]), line("B", [0.0, 1.0]), width=60))
    assert text.count("A") == text.count("B") == 3


def test_plot_draws_interval_edges() -> None:
    plain, edged = (drawn(line("A", [5.0, 5.0], edge=edge), line("B", [0.0, 10.0])) for edge in (None, 4.0))
    count = [sum(0x2800 < ord(cell) <= 0x28FF for row in rows for cell in row) for rows in (plain, edged)]
    assert count[1] > count[0] + 10


@pytest.mark.parametrize("y", [[3.0], [3.0, 3.0], [0.0, 1e-12]])
def test_plot_of_flat_lines_and_single_points(y: list[float]) -> None:
    assert any("A" in row for row in drawn(line("A", y)))


def test_plot_has_colours_on_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line("A", [0.0, 1.0], colour="35")]
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[35m" in "".join(plot(lines, 40, 12, "x", Terminal()))
    assert "\x1b" not in "".join(plot(lines, 40, 12, "x", io.StringIO()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(plot(lines, 40, 12, "x", Terminal()))
