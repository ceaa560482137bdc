"""The report, parsed: complete, self-contained, and with all foreign text escaped.

The curves as a PNG, and the error if matplotlib is missing.

The page of a sweep, parsed: a line for each configuration, slices, importance, and what is said about early ends.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import CurveAxis
from rlexp.compare.report import _LARGEST_BYTES, report_page, write_picture, write_report
from rlexp.compare.sweep_charts import MOST_DRAWN
from rlexp.errors import UsageError
from rlexp.runs.record import Status
from tests.lab.run_folders import MadeTrial, configuration, ended_early, make_run, make_sweep, write_resolved


def compared(*arguments: object, goal: float | None = None) -> Comparison:
    return compare_groups([str(argument) for argument in arguments], "episode_reward_mean", CurveAxis.STEPS, goal)


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    run = make_run(tmp_path / "run", [MadeTrial([1.0, float(seed)], seed) for seed in (1, 2)])
    return compared(f"_$\\nonsense{{$^={run}")


def test_missing_matplotlib_names_extra(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="matplotlib") as caught:
        write_picture(comparison, tmp_path / "curves.png")
    assert "pip install 'rlexp[plot]'" in str(caught.value.hint)
    assert not (tmp_path / "curves.png").exists()


def test_picture_is_png_for_any_group_name(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_picture(comparison, tmp_path / "curves")
    assert (tmp_path / "curves").read_bytes().startswith(b"\x89PNG\r\n")


def test_picture_at_unwritable_path(comparison: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"cannot write .*missing"):
        write_picture(comparison, tmp_path / "missing" / "curves.png")


def test_titles_say_how_many_seeds_there_are(comparison: Comparison, tmp_path: Path) -> None:
    assert comparison.what_curves_show == "IQM over 2 seeds with pointwise 95 % intervals"
    one = compared(make_run(tmp_path / "one", [MadeTrial([1.0, 2.0], 1)]))
    assert one.what_curves_show == "one seed, so without an interval"
    both = compared(tmp_path / "one", tmp_path / "run")
    assert both.what_curves_show == "IQM over 1 to 2 seeds with pointwise 95 % intervals"


def test_legends_name_the_agent_once(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [MadeTrial([1.0, 2.0], 1)])
    assert compared(f"mine={run}").groups[0].label == "mine (DQN)"
    assert compared(f"dqn 2={run}").groups[0].label == "dqn 2"


EVIL = "<script>alert(1)</script>\"'&<b onload=x>\u202e\x1b[31m"
SHOWN = "<script>alert(1)</script>\"'&<b onload=x>\ufffd\ufffd[31m"
"""EVIL as text: markup is text, what cannot be seen is."""
WRITTEN = datetime(2026, 1, 2, 3, 4)
VOID = {"meta", "br"}


class Parsed(HTMLParser):
    """The elements, attributes and text of a page; fails where one is not closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def parsed(*arguments: object, goal: float | None = None, where: Path = Path()) -> Parsed:
    return Parsed(report_page(compared(*arguments, goal=goal), where, WRITTEN))


def run(path: Path, **changes: Any) -> Path:
    trials = [MadeTrial([10.0 * n + seed for n in range(20)], seed, {"lr": lr}) for seed in (1, 2) for lr in (0.1, 0.2)]
    return make_run(path, trials, **changes)


def video(trial: Path, name: str, size: int = 10) -> Path:
    (trial / "videos").mkdir(exist_ok=True)
    path = trial / "videos" / name
    path.write_bytes(b"x" * size)
    return path


def test_report_has_all_sections(tmp_path: Path) -> None:
    path = run(tmp_path / "grid")
    write_resolved(path, {"grid": {"run": "DQN", "env": "CartPole-v1", "stop": {"episode_reward_mean": 90.0}}})
    page = parsed(path, goal=100.0)
    assert page.all("title")[0] == {}
    for text in (
        "grid on CartPole-v1",
        "2 groups, 4 trials, compared by episode_reward_mean. Written 2026-01-02 03:04 by rlexp ",
        "env steps 1,800 to 2,000",
        "This order is for a budget of 2,000 env steps: with more, another group may be best.",
        "186.5",  # (180 + 190) / 2 and seeds 1 and 2
        "reached 100",
        "2 of 2",
        "config.lr",
        "grid/00000-DQN-CartPole-v1",
        "0123abc",
        "somewhere",
        "rlexp run pong.yaml",
    ):
        assert text in page.text
    assert "stop.episode_reward_mean" not in page.text  # the same in all groups
    assert len(page.all("polyline")) == len(page.all("polygon")) == 4  # over env steps, and over time
    assert len([circle for circle in page.all("circle") if "seed" in str(circle["class"])]) == 4


def test_curves_have_end_labels_and_tooltips(tmp_path: Path) -> None:
    page = parsed(run(tmp_path / "grid"))
    assert "A 191.5" in page.text
    assert "A lr=0.1\n2,000 env steps: 191.5 [191.0, 192.0]" in page.text
    assert re.search(r"A lr=0.1\n[0-9.]+ seconds: 191.5 \[191.0, 192.0\]", page.text)
    points = [circle for circle in page.all("circle") if "point" in str(circle["class"])]
    assert len(points) == 100  # over env steps, and over time
    labels = [float(str(text["y"])) for text in page.all("text") if text.get("class") in ("mark c0", "mark c1")]
    assert labels[1] - labels[0] >= 14, "the same value twice, one label below the other"


def test_scores_have_scale_of_curves(tmp_path: Path) -> None:
    def width_of_scores(rewards: list[float]) -> float:
        trials = [MadeTrial([*rewards, 499.0 + seed / 10], seed) for seed in range(5)]
        page = parsed(make_run(tmp_path / f"run{len(rewards)}", trials))
        places = [float(str(dot["cx"])) for dot in page.all("circle") if "seed" in str(dot["class"])]
        return max(places) - min(places)

    assert width_of_scores([0.0] * 20) < 3, "0.4 of 500 is no distance"
    assert width_of_scores([499.2]) > 300, "where training changed nothing else, it is"


def test_report_loads_nothing_and_has_no_scripts(tmp_path: Path) -> None:
    path = run(tmp_path / "grid")
    video(next(path.glob("00000*")), "iteration_000001.mp4")
    page = parsed(path)
    tags = {tag for tag, _ in page.elements}
    assert tags.isdisjoint({"script", "link", "iframe", "img", "object", "embed", "base", "form"})
    for _, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name != "style"
            if name in {"src", "href", "poster", "srcset", "action", "data", "xlink:href"}:
                assert str(value).startswith("data:video/mp4;base64,")
    [policy] = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy).startswith("default-src 'none'")
    css = (Path(__file__).parents[3] / "rlexp/compare/templates/style.css").read_text()
    assert "url(" not in css
    assert "@import" not in css


def test_foreign_text_is_escaped(tmp_path: Path) -> None:
    path = run(tmp_path / "grid", host=EVIL, git_commit=EVIL, command=[EVIL], versions={EVIL: EVIL}, started=EVIL)
    for file in path.glob("*/params.json"):
        file.write_text(file.read_text().replace("CartPole-v1", "@").replace("@", r"<i>\u202e\"'", 1))
    write_resolved(path, {"grid": {"run": "DQN", "env": "<i>\u202e\"'", EVIL.replace("\x1b", ""): EVIL}})
    other = make_run(tmp_path / "other", [MadeTrial([1.0])])
    (path / "00000-DQN-CartPole-v1").rename(path / "<img src=x>")
    (path / "run.json").write_text((path / "run.json").read_text().replace("00000-DQN-CartPole-v1", "<img src=x>"))
    page = parsed(f"{EVIL.replace('/', '').replace('=', '')}={path}", other)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "b", "i", "img"})
    assert SHOWN in page.text
    assert SHOWN.replace("/", "").replace("=", "") in page.text
    assert "<img src=x>" in page.text
    assert "<i>\ufffd" in page.text
    values = " ".join(str(value) for _, attributes in page.elements for value in attributes.values())
    assert SHOWN.replace("/", "").replace("=", "") in values
    assert not any(character in page.text + values for character in "\u202e\x1b")


def test_small_videos_are_embedded_and_others_linked(tmp_path: Path) -> None:
    path = run(tmp_path / "grid")
    first, second = sorted(path.glob("*/"))[:2]
    video(first, "iteration_000001.mp4")
    video(first, "iteration_000002.mp4")
    video(first, ".iteration_000003.mp4")
    video(second, 'odd #?" name.mp4', size=_LARGEST_BYTES + 1)
    (second / "videos" / "link.mp4").symlink_to("/etc/passwd")
    page = parsed(path, where=tmp_path / "reports")
    assert [attributes["src"] for attributes in page.all("video")] == ["data:video/mp4;base64,eHh4eHh4eHh4eA=="]
    assert [attributes["href"] for attributes in page.all("a")] == [
        f"../grid/{first.name}/videos/iteration_000001.mp4",
        f"../grid/{second.name}/videos/odd%20%23%3F%22%20name.mp4",
    ]
    assert "iteration_000002" in page.text


def test_charts_of_single_seed_and_flat_curve(tmp_path: Path) -> None:
    page = parsed(make_run(tmp_path / "flat", [MadeTrial([3.0])]))
    assert "Videos" not in page.text
    assert "grey band: the steps over which final scores are taken" in page.text
    assert "one seed" in page.text
    assert "None, apart from seeds." in page.text
    points = {str(attributes["points"]) for attributes in page.all("polyline")}
    assert not any(word in point for point in points for word in ("nan", "inf"))


def test_many_groups_have_dashes(tmp_path: Path) -> None:
    page = parsed(make_run(tmp_path / "many", [MadeTrial([1.0, 2.0], 0, {"lr": lr}) for lr in range(10)]))
    looks = [(attributes["class"], attributes.get("stroke-dasharray")) for attributes in page.all("polyline")]
    assert len(set(looks)) == 10


def test_report_is_written_whole(tmp_path: Path) -> None:
    comparison = compared(run(tmp_path / "grid"))
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(comparison, path, WRITTEN)
    assert path.read_text() == report_page(comparison, tmp_path, WRITTEN)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["grid", "report.html"]


@pytest.mark.parametrize("where", ["missing/report.html", "grid", "x" * 300])
def test_report_at_unwritable_path(tmp_path: Path, where: str) -> None:
    comparison = compared(run(tmp_path / "grid"))
    with pytest.raises(UsageError, match="cannot write") as caught:
        write_report(comparison, tmp_path / where, WRITTEN)
    assert caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["grid"]


def test_what_ended_early_has_a_table(tmp_path: Path) -> None:
    trials = [MadeTrial([1.0] * 20, 1, {"lr": 0.1}), MadeTrial([5.0] * 3, 1, {"lr": 0.2}, status=Status.ERROR)]
    words = " ".join(parsed(make_run(tmp_path / "run", trials)).text.split())
    assert "Ended early These have no score" in words
    assert "lr=0.2 5.0 @ 300 1.0 ERROR: ValueError: no more" in words


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
    assert text.index("The best was found") < text.index("Keys: best values") < text.index("Final scores")


def test_the_best_of_a_sweep_is_for_a_budget(tmp_path: Path) -> None:
    text = parsed(sweep(tmp_path / "sweep")).text
    assert text.count("This order is for a budget of") == 1
    assert text.index("The best is configuration") < text.index("This order is for a budget of") < text.index("Keys:")


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
    assert len(with_class(page, "polyline", "curve")) == 24  # each over env steps and over time


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


def test_foreign_text_of_a_sweep_is_escaped(tmp_path: Path) -> None:
    configurations = [configuration(n, {EVIL: EVIL if n % 2 else "x"}, float(-n)) for n in range(10)]
    page = parsed(make_sweep(tmp_path / "sweep", configurations, search={"metric": "episode_reward_mean"}))
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "b"})
    assert SHOWN in page.text
