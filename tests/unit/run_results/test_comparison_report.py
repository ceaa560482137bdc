"""The report, parsed: complete, self-contained, and with all foreign text escaped."""

from __future__ import annotations

from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rlexp.compare.comparison import compare_groups
from rlexp.compare.curve import Axis
from rlexp.compare.report import report_page, write_report
from rlexp.compare.report.page import _LARGEST_BYTES
from rlexp.errors import UsageError
from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run, write_resolved

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
    comparison = compare_groups([str(argument) for argument in arguments], "episode_reward_mean", Axis.STEPS, goal)
    return Parsed(report_page(comparison, where, WRITTEN))


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
    assert len(page.all("polyline")) == len(page.all("polygon")) == 2
    assert len([circle for circle in page.all("circle") if "seed" in str(circle["class"])]) == 4


def test_curves_have_end_labels_and_tooltips(tmp_path: Path) -> None:
    page = parsed(run(tmp_path / "grid"))
    assert "A 191.5" in page.text
    assert "A lr=0.1\n2,000 env steps: 191.5 [191.0, 192.0]" in page.text
    points = [circle for circle in page.all("circle") if "point" in str(circle["class"])]
    assert len(points) == 50
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
    css = (Path(__file__).parents[3] / "rlexp/compare/report/style.css").read_text()
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


def test_report_without_videos_has_no_section(tmp_path: Path) -> None:
    assert "Videos" not in parsed(run(tmp_path / "grid")).text


def test_charts_of_single_seed_and_flat_curve(tmp_path: Path) -> None:
    page = parsed(make_run(tmp_path / "flat", [MadeTrial([3.0])]))
    assert "one seed" in page.text
    assert "None, apart from seeds." in page.text
    points = {str(attributes["points"]) for attributes in page.all("polyline")}
    assert not any(word in point for point in points for word in ("nan", "inf"))


def test_final_window_has_label(tmp_path: Path) -> None:
    page = parsed(make_run(tmp_path / "flat", [MadeTrial([3.0])]))
    assert "grey band: the steps over which final scores are taken" in page.text


def test_many_groups_have_dashes(tmp_path: Path) -> None:
    page = parsed(make_run(tmp_path / "many", [MadeTrial([1.0, 2.0], 0, {"lr": lr}) for lr in range(10)]))
    looks = [(attributes["class"], attributes.get("stroke-dasharray")) for attributes in page.all("polyline")]
    assert len(set(looks)) == 10


def test_report_is_written_whole(tmp_path: Path) -> None:
    comparison = compare_groups([str(run(tmp_path / "grid"))], "episode_reward_mean", Axis.STEPS, None)
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(comparison, path, WRITTEN)
    assert path.read_text() == report_page(comparison, tmp_path, WRITTEN)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["grid", "report.html"]


@pytest.mark.parametrize("where", ["missing/report.html", "grid", "x" * 300])
def test_report_at_unwritable_path(tmp_path: Path, where: str) -> None:
    comparison = compare_groups([str(run(tmp_path / "grid"))], "episode_reward_mean", Axis.STEPS, None)
    with pytest.raises(UsageError, match="cannot write") as caught:
        write_report(comparison, tmp_path / where, WRITTEN)
    assert caught.value.hint
    assert [entry.name for entry in tmp_path.iterdir()] == ["grid"]


def test_what_ended_early_has_a_table(tmp_path: Path) -> None:
    trials = [MadeTrial([1.0] * 20, 1, {"lr": 0.1}), MadeTrial([5.0] * 3, 1, {"lr": 0.2}, status=Status.ERROR)]
    comparison = compare_groups([str(make_run(tmp_path / "run", trials))], "episode_reward_mean", Axis.STEPS, None)
    page = Parsed(report_page(comparison, tmp_path, WRITTEN))
    words = " ".join(page.text.split())
    assert "Ended early These have no score" in words
    assert "lr=0.2 5.0 @ 300 1.0 ERROR: ValueError: no more" in words
