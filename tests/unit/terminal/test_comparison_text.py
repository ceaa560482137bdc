"""What ``rlexp compare`` prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import Axis
from rlexp.runs.record import Status
from rlexp.terminal.comparison import print_comparison
from tests.unit.run_results.run_folders import MadeTrial, make_run


def rising(last: float) -> list[float | None]:
    return [last - 19 + row for row in range(20)]


def grid(tmp_path: Path, values: int, seeds: int = 4, key: str = "n_step") -> Path:
    trials = [MadeTrial(rising(20.0 * v + s), s, {key: v}) for s in range(seeds) for v in range(1, values + 1)]
    return make_run(tmp_path / "grid", trials)


def compared(path: Path, goal: float | None = None) -> Comparison:
    return compare_groups([str(path)], "episode_reward_mean", Axis.STEPS, goal)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


@pytest.mark.usefixtures("screen")
def test_comparison_has_curves_and_a_line_per_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(compared(grid(tmp_path, 2), goal=40.0), as_json=False)
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "episode_reward_mean: IQM over seeds, dots: 95 % interval"
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    tables = [line.split() for line in lines[lines.index("") + 1 :]]
    assert tables[1] == ["A", "n_step=1", "4", "21.00", "21.00", "[19.50,", "22.50]", "-"]
    assert tables[2][:5] == ["B", "n_step=2", "4", "41.00", "41.00"]
    assert tables[2][-3:] == ["1.00", "[1.00,", "1.00]"]
    assert tables[5] == ["A", "n_step=1", "0", "of", "4", "-", "-"]
    assert tables[6] == ["B", "n_step=2", "4", "of", "4", "1,850", "0:00:37"]
    assert " ".join(printed.out.split()).endswith("the last tenth that all 8 trials have.")
    assert printed.err == ""


@pytest.mark.usefixtures("screen")
def test_comparison_cuts_long_names_but_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(
        compared(grid(tmp_path, 2, key="a_very_long_name_of_a_key_that_nobody_should_have")), as_json=False
    )
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("A ", "B "))]
    assert max(map(len, rows)) <= 80
    assert [row[-1] for row in rows] == ["-", "]"]
    assert all("…" in row for row in rows)


@pytest.mark.usefixtures("screen")
def test_cut_names_of_a_grid_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [(lr, target) for lr in (0.001, 0.0005) for target in (500, 1000)]
    trials = [
        MadeTrial(rising(300.0 + lr + target + seed), seed, {"lr": lr, "target_network_update_freq": target})
        for lr, target in keys
        for seed in range(3)
    ]
    print_comparison(compared(make_run(tmp_path / "grid", trials)), as_json=False)
    rows = [line for line in capsys.readouterr().out.splitlines() if line[:3] in ("A  ", "B  ", "C  ", "D  ")]
    names = [row[3:].split("  ")[0] for row in rows]
    assert names == ["lr=0.001, …freq=500", "lr=0.001, …freq=1000", "lr=0.0005, …freq=500", "lr=0.0005, …freq=1000"]
    assert max(map(len, rows)) <= 80


@pytest.mark.usefixtures("screen")
def test_one_seed_gives_no_probability(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(compared(grid(tmp_path, 2, seeds=1)), as_json=False)
    printed = capsys.readouterr()
    (row,) = [line for line in printed.out.splitlines() if line.startswith("B ")]
    assert row.endswith("[1 seed]                 -")
    assert "only one seed per group, so no interval; run more seeds" in printed.err


@pytest.mark.usefixtures("screen")
def test_comparison_of_many_groups_draws_the_best_and_lists_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(compared(grid(tmp_path, 9, seeds=1)), as_json=False)
    printed = capsys.readouterr()
    out = printed.out
    curves, tables = out.split("\n\n", maxsplit=1)
    assert "the first group and the 5 best others" in curves
    assert {letter for letter in "ABCDEFGHI" if letter in curves.partition("\n")[2]} <= set("AEFGHI")
    assert [line[0] for line in tables.splitlines()[1:10]] == list("ABCDEFGHI")
    assert "[1 seed]" in tables
    assert "notice: " in printed.err


def test_names_cannot_move_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", [MadeTrial([1.0], 0)])
    comparison = compare_groups([f"a\x1b[2Jb={run}"], "episode_reward_mean", Axis.STEPS, None)
    print_comparison(comparison, as_json=False)
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err


def ended_early(tmp_path: Path, name: str = "n_step") -> Path:
    """Return a run of a trial that completed, one that was pruned and one that failed."""
    trials = [
        MadeTrial(rising(60.0), 1, {name: 0}),
        MadeTrial([45.5] * 5, 1, {name: 1}, status=Status.PRUNED),
        MadeTrial([None], 1, {name: 2}, status=Status.ERROR),
    ]
    return make_run(tmp_path / "early", trials)


@pytest.mark.usefixtures("screen")
def test_what_ended_early_is_below_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_comparison(compared(ended_early(tmp_path)), as_json=False)
    printed = capsys.readouterr()
    lines = [line.rstrip() for line in printed.out.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("ended early"))
    assert lines[start : start + 4] == [
        "ended early  value where it ended  A there  status",
        "n_step=1               45.5 @ 500     45.0  PRUNED",
        "n_step=2                        -        -  ERROR",
        "n_step=2: ValueError: no more",
    ]
    assert "left out" not in printed.err, "it is in the table"


@pytest.mark.usefixtures("screen")
def test_names_of_what_ended_early_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended_early(tmp_path, "a_very_long_name_of_a_key_that_nobody_should_have_in_a_sweep_at_all")
    print_comparison(compared(run), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("45.5 @ 500" in line for line in lines)


@pytest.mark.usefixtures("screen")
def test_long_errors_do_not_cut_the_table_of_what_ended_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = "env my_env:Robot: my_env.py:8 in step: RuntimeError: the sensor of the left arm is lost (correct the env)"
    comparison = compared(ended_early(tmp_path))
    groups = tuple(replace(each, error=each.error and error) for each in comparison.ended_early)
    print_comparison(replace(comparison, ended_early=groups), as_json=False)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "n_step=1               45.5 @ 500     45.0  PRUNED" in lines
    start = lines.index("n_step=2                        -        -  ERROR")
    assert " ".join(line.strip() for line in lines[start + 1 : start + 3]) == f"n_step=2: {error}"


def test_json_lists_what_ended_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ended_early(tmp_path)
    print_comparison(compared(run), as_json=True)
    pruned, failed = json.loads(capsys.readouterr().out)["ended_early"]
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
    print_comparison(compared(grid(tmp_path, 2), goal=25.0), as_json=True)
    printed = json.loads(capsys.readouterr().out)
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


@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize(("seeds", "is_said"), [(1, True), (2, False)])
def test_comparison_says_why_a_probability_is_missing(
    seeds: int, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_comparison(compared(grid(tmp_path, 2, seeds=seeds)), as_json=False)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert ("P(better than A) is - where it cannot be estimated: both groups need 2 seeds" in printed) == is_said
