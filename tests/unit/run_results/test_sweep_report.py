"""The page of a sweep, parsed: a line for each configuration, slices, importance, and what is said about early ends."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.report.sweep_charts import MOST_DRAWN
from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run
from tests.unit.run_results.sweep_folders import configuration, ended_early, make_sweep
from tests.unit.run_results.test_comparison_report import EVIL, SHOWN, Parsed, parsed

Element = Mapping[str, str | None]


def classes(element: Element) -> list[str]:
    return str(element.get("class")).split()


def with_class(page: Parsed, tag: str, name: str) -> list[Element]:
    return [element for element in page.all(tag) if name in classes(element)]


def places(line: Element) -> list[tuple[float, float]]:
    pairs = [pair.split(",") for pair in str(line["points"]).split()]
    return [(float(x), float(y)) for x, y in pairs]


def point(number: int) -> dict[str, Any]:
    return {"lr": 10 ** (-1 - number % 5), "n_step": 1 + number % 7, "hiddens": [[32], [64, 64]][number % 2]}


def sweep(path: Path, completed: int = 10, others: int = 3, **changes: Any) -> Path:
    configurations = [configuration(n, point(n), 100.0 - n) for n in range(completed)]
    configurations += [ended_early(100 + n, point(n), 200, 50.0 - n) for n in range(others)]
    configurations += [configuration(200, point(1), None)]
    return make_sweep(path, configurations, **changes)


def test_one_line_for_each_configuration(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep"))
    lines = [line for line in page.all("polyline") if "path" in classes(line)]
    assert len(lines) == 14
    assert {len(places(line)) for line in lines} == {4}, "three keys and the score"
    assert [len(with_class(page, "polyline", name)) for name in ("best", "ended-early", "failed")] == [1, 3, 1]
    assert "best" in classes(lines[-1]), "above all others"


def test_lines_pass_the_values_of_their_keys(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep", others=0))
    [best] = with_class(page, "polyline", "best")
    axes = [line for line in page.all("line") if line.get("class") == "axis" and line["x1"] == line["x2"]]
    top, bottom = float(str(axes[0]["y1"])), float(str(axes[0]["y2"]))
    expected = {"lr": 1.0, "n_step": 0.0, "hiddens": 0.25}  # 0.1 of 1e-5 to 0.1, 1 of 1 to 7, the first of two
    for key, (_, y) in zip(keys_of(page), sorted(places(best)), strict=False):
        assert y == pytest.approx(bottom - expected[key] * (bottom - top), abs=0.1), key


def keys_of(page: Parsed) -> list[str]:
    """Return the keys in the order of the table, which is that of the axes."""
    names = ("lr", "n_step", "hiddens")
    start = page.text.index("Keys: best values")
    return sorted(names, key=lambda name: page.text.index(name, start))


def test_who_did_not_complete_ends_below_the_axis(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep"))
    [best] = with_class(page, "polyline", "best")
    lowest = max(places(line)[-1][1] for line in page.all("polyline") if "completed" in classes(line))
    early = {places(line)[-1] for line in with_class(page, "polyline", "ended-early")}
    [failed] = with_class(page, "polyline", "failed")
    assert len(early) == 1, "whatever their values are: these are from fewer steps"
    [(x, y)] = early
    assert x == places(best)[-1][0]
    assert lowest < y < places(failed)[-1][1]
    assert "Lines of configurations that did not complete end below this axis." in page.text
    assert "ended early at 200 timesteps_total: 49.0" in page.text


def test_slices_show_values_early_ends_and_failures(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep"))
    assert len(with_class(page, "svg", "slice")) == 3
    dots = [circle for circle in page.all("circle") if "dot" in classes(circle)]
    keys_in_legend = 3  # completed, best, ended early
    assert len(dots) == 3 * 13 + keys_in_legend
    assert len(with_class(page, "path", "failed")) == 3 + 1
    assert "its last value, from fewer steps" in page.text


def test_logarithmic_key_has_powers_of_ten(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep"))
    ticks = [text for text in ("1e-05", "0.0001", "0.001", "0.01", "0.1") if page.text.count(text) >= 2]
    assert len(ticks) == 5, "in the slice and in the parallel coordinates"


def test_facts_of_summary_are_at_the_head(tmp_path: Path) -> None:
    summary = {"env_steps": 1500, "env_steps_saved": 500, "time_s": 60, "best_found_after_s": 12}
    text = parsed(sweep(tmp_path / "sweep", summary=summary)).text
    assert "14 configurations: 10 completed, 3 ended early, 1 failed." in text
    assert "1,500 env steps; about 500 (25 % of all) saved by ending configurations early." in text
    assert "The best was found after 0:00:12." in text
    assert text.index("The best was found") < text.index("Keys: best values") < text.index("Final scores")


def test_importance_says_how_early_ends_count(tmp_path: Path) -> None:
    text = parsed(sweep(tmp_path / "sweep")).text
    assert "in the best 5 of 14 configurations" in text
    assert "The 14 include 3 that ended early and 1 that failed, at their places in the ranking" in text


def test_report_without_optuna_has_charts_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sweep(tmp_path / "sweep")
    monkeypatch.setitem(sys.modules, "optuna", None)
    page = parsed(path)
    assert "pip install 'rlexp[sweep]'" in page.text
    assert len(with_class(page, "polyline", "path")) == 14
    assert len(with_class(page, "svg", "slice")) == 3


def test_missing_keys_pass_below_their_axis(tmp_path: Path) -> None:
    points: list[dict[str, Any]] = [point(n) for n in range(10)]
    for each in points[5:]:
        del each["hiddens"]
    page = parsed(make_sweep(tmp_path / "sweep", [configuration(n, p, float(-n)) for n, p in enumerate(points)]))
    assert "not set" in page.text
    assert len(with_class(page, "polyline", "path")) == 10
    assert {len(places(line)) for line in with_class(page, "polyline", "path")} == {4}


def test_most_configurations_that_are_drawn(tmp_path: Path) -> None:
    completed = [configuration(n, point(n), 100.0 - n) for n in range(8)]
    others = [ended_early(100 + n, point(n), 200, 0.0) for n in range(MOST_DRAWN)]
    page = parsed(make_sweep(tmp_path / "sweep", completed + others))
    assert len(with_class(page, "polyline", "path")) == MOST_DRAWN
    assert "The best 1,000 are drawn; 8 others are left out." in page.text


def test_curves_and_tables_have_the_best_groups_only(tmp_path: Path) -> None:
    page = parsed(sweep(tmp_path / "sweep", completed=30))
    assert "30 groups, 30 trials" in page.text
    assert "the best 12 of 30 groups" in page.text
    assert len(with_class(page, "polyline", "curve")) == 12


def test_other_runs_have_no_part_about_a_sweep(tmp_path: Path) -> None:
    first = make_run(tmp_path / "run", [MadeTrial([1.0, 2.0])])
    assert "importance" not in parsed(first).text
    assert "importance" not in parsed(sweep(tmp_path / "sweep"), first).text, "nor a sweep beside another run"


def test_far_worse_values_do_not_flatten_the_charts(tmp_path: Path) -> None:
    scores = [*(100.0 - n for n in range(12)), -1e9]
    page = parsed(make_sweep(tmp_path / "sweep", [configuration(n, point(n), s) for n, s in enumerate(scores)]))
    ends = [places(line)[-1][1] for line in with_class(page, "polyline", "path")]
    assert len({round(end) for end in ends}) == 13
    assert "1 value far worse than the others is drawn at the edge." in page.text


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each | {"point": {}},
        lambda each: each | {"point": {"lr": math.inf}},
        lambda each: each | {"point": {"lr": {"a": [1, {}]}}},
        lambda each: each | {"point": {"lr": 10**400}},
        lambda each: each | {"configuration": "x"},
        lambda each: each | {"status": 3},
        lambda each: each | {"ended_early": [], "status": Status.PRUNED},
    ],
)
def test_unusual_configurations_are_drawn(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    path = sweep(tmp_path / "sweep")
    data = json.loads((path / "sweep.json").read_text())
    data["configurations"][4] = change(data["configurations"][4])
    (path / "sweep.json").write_text(json.dumps(data).replace("Infinity", "1e999"))
    assert len(with_class(parsed(path), "polyline", "path")) == 14


def test_foreign_text_is_escaped(tmp_path: Path) -> None:
    configurations = [configuration(n, {EVIL: EVIL if n % 2 else "x"}, float(-n)) for n in range(10)]
    page = parsed(make_sweep(tmp_path / "sweep", configurations, search={"metric": "episode_reward_mean"}))
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "b"})
    assert SHOWN in page.text
