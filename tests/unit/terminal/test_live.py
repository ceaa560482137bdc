"""The picture of the live display fits the terminal and is true.

What is drawn again and again leaves nothing behind, whatever the window does meanwhile.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console
from rich.text import Text

from rlexp import text
from rlexp.config.keys.ppo import PPOExperiment
from rlexp.runs.record import Status
from rlexp.terminal.live import Canvas, HtmlCanvas
from rlexp.terminal.panel import picture
from rlexp.terminal.trial_view import OverallProgress, TrialView
from tests.lab.terminals import Window
from tests.unit.conftest import MakeRow, MakeTrial


class RememberingWindow(Window):
    """Remembers what was written to it, as it was written."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


def canvas_on(window: Window) -> tuple[Canvas, Console]:
    console = Console(file=window, force_terminal=True, width=window.width, height=24, highlight=False, _environ={})
    return Canvas(console), console


def resize(window: Window, console: Console, width: int) -> None:
    window.resize(width)
    console.width = width


@pytest.mark.parametrize("widths", [(80,), (160, 80), (160, 80, 40), (160, 50, 120, 30), (30, 160, 31)])
def test_a_narrower_window_keeps_no_rows_of_old_pictures(widths: tuple[int, ...]) -> None:
    window = Window(widths[0])
    canvas, console = canvas_on(window)
    print("a shell line above", file=window)
    canvas.open()
    for number, width in enumerate(widths):
        if width != window.width:
            resize(window, console, width)
        picture = [f"picture {number}".ljust(width), "x" * width, "short"]
        canvas.draw(Text("\n".join(picture)))
        assert window.shown == ["a shell line above", picture[0].rstrip(), picture[1], "short"]
    canvas.close()
    assert window.shown == ["a shell line above"]


def test_what_is_printed_above_stays_and_the_picture_comes_below_it() -> None:
    window = Window(40)
    canvas, _ = canvas_on(window)
    canvas.draw(Text("starting"))
    canvas.print_above(Text("a note before it was opened"))
    canvas.open()
    canvas.draw(Text("one\ntwo"))
    canvas.print_above(Text("a note"))
    assert window.shown == ["a note before it was opened", "a note", "one", "two"]
    canvas.close()
    assert window.shown == ["a note before it was opened", "a note"]


def test_pictures_of_a_notebook_are_sent_whole_seldom_and_escaped() -> None:
    sent: list[tuple[str, str]] = []
    now = 0.0
    canvas = HtmlCanvas(lambda html, text: sent.append((html, text)), 60, lambda: now)
    canvas.open()
    canvas.draw(Text("first <b>", style="bold"))
    now = 0.1
    canvas.draw(Text("too soon"))
    now = 0.6
    canvas.draw(Text("second"))
    now = 1.2
    canvas.draw(Text("second"))
    canvas.print_above(Text("a note"))
    canvas.draw(Text("third"))
    canvas.close()
    canvas.close()
    assert [text for _, text in sent] == ["first <b>", "second", "a note\nthird", "a note"]
    assert "&lt;b&gt;" in sent[0][0]
    assert sent[0][0].startswith("<pre")


def test_what_the_terminal_echoes_wraps_no_line_of_the_picture() -> None:
    window = Window(20)
    canvas, _ = canvas_on(window)
    canvas.open()
    canvas.draw(Text("one\n" + "x" * 20))
    window.write("^C")
    canvas.draw(Text("after"))
    assert window.shown == ["after"]


def test_a_canvas_that_was_never_opened_keeps_the_cursor_and_erases_its_line() -> None:
    window = RememberingWindow(40)
    canvas, _ = canvas_on(window)
    canvas.draw(Text("checking  0:00:01"))
    assert window.shown == ["checking  0:00:01"]
    canvas.close()
    assert window.shown == [""]
    assert "\x1b[?25l" not in "".join(window.written)


NOW_S = 1_000.0
"""On the monotonic clock."""


def views(make_trial: MakeTrial, make_row: MakeRow, count: int, name: str | None = None) -> list[TrialView]:
    made = [TrialView(make_trial(index, name)) for index in range(count)]
    for view in made:
        for iteration in range(1, 30):
            view.add(make_row(iteration, None if iteration < 3 else 10.0 * iteration))
    return made


def lines(shown: list[TrialView], width: int = 80, height: int = 23) -> list[str]:
    overall = OverallProgress().of(shown, NOW_S) if len(shown) > 1 else None
    return picture(shown, "results/cartpole  0:01:00", width, height, NOW_S, overall).plain.split("\n")


def test_one_trial_is_shown_in_full(make_trial: MakeTrial, make_row: MakeRow) -> None:
    shown = "\n".join(lines(views(make_trial, make_row, 1)))
    for fact in (
        "00000-APEX-CartPole-v1",
        "iteration 29",
        "5 % of 500,000 env steps",
        "at most 0:15:42 left",
        "reward     ███████████░░░░░░░░░  290.0 of 475",
        "best 290.0",
        "▁▁▂",
        "sampled 512/s",
        "trained 2,048/s",
        "4.00 trained per sampled",
        "replay 50 % full ▃▆",
        "learner queue 3/16",
        "weight age 400",
        "ε 0.02 to 0.4",
        "bottleneck workers  learner waits 37 %  workers wait 10 %, act 20 %, step 60 %",
    ):
        assert fact in shown


def test_a_trial_of_ppo_shows_its_own_figures(make_trial: MakeTrial, make_row: MakeRow) -> None:
    keys = {"name": "a", "run": "PPO", "env": "CartPole-v1", "stop": {"timesteps_total": 500_000}}
    view = TrialView(replace(make_trial(), experiment=PPOExperiment.model_validate(keys)))
    figures = {"kl": 0.0113, "cur_kl_coeff": 0.2, "entropy": 0.55, "clip_fraction": 0.12, "vf_explained_var": 0.93}
    shares = {"info/learner_time_share/workers": 0.31, "info/learner_time_share/learner": 0.69, "info/weight_age": 0.0}
    view.add(make_row(1, 10.0, **{f"info/learner/{name}": number for name, number in figures.items()}, **shares))
    shown = lines([view])
    facts = [line.strip() for line in shown if any(word in line for word in ("learning ", "sampling "))]
    assert facts == [
        "time       sampling 31 %  learning 69 %  weight age 0",
        "learning   kl 0.0113 (coeff 0.2)  entropy 0.55  clipped 12 %  explained 0.93",
    ]
    assert not [line for line in shown if "replay" in line or "ε" in line]


def test_three_trials_fit_a_small_terminal_in_full(make_trial: MakeTrial, make_row: MakeRow) -> None:
    shown = lines(views(make_trial, make_row, 3))
    assert sum("bottleneck workers" in line for line in shown) == 3
    assert shown[-1] == "3 trials: 3 running  ░░░░░░░░░░░░  5 %"


def test_many_trials_are_a_table_of_the_running_ones_and_counts(make_trial: MakeTrial, make_row: MakeRow) -> None:
    many = views(make_trial, make_row, 12)
    many[4].status, many[5].status = Status.ERROR, Status.TERMINATED
    shown = lines(many)
    assert [line[:5] for line in shown[2:12]] == [f"{index:05d}" for index in (0, 1, 2, 3, 6, 7, 8, 9, 10, 11)]
    assert shown[-1] == "12 trials: 10 running, 1 terminated, 1 error  ██░░░░░░░░░░  21 %"
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
    assert "10 env steps, no stop: Ctrl-C ends it" in "\n".join(lines([view]))


@pytest.mark.parametrize(
    ("stop", "share", "seconds_left"),
    [
        ({"timesteps_total": 4_000}, 0.5, 4.0),
        ({"time_total_s": 16.0}, 0.25, 12.0),
        ({"timesteps_total": 100_000, "training_iteration": 4}, 0.5, 4.0),
        ({"timesteps_total": 4_000, "info/num_steps_sampled": 3_000}, 2 / 3, 2.0),
        ({"episode_reward_mean": 110, "timesteps_total": 4_000}, 0.5, 4.0),
        ({"timesteps_total": 1_000}, 1.0, 0.0),
    ],
)
def test_progress_is_that_of_the_stop_that_comes_first(
    make_trial: MakeTrial, make_row: MakeRow, stop: dict[str, float], share: float, seconds_left: float
) -> None:
    view = TrialView(make_trial(stop=stop))
    view.add(make_row(1, 10.0))
    view.add(make_row(2, 20.0))
    progress = view.progress(NOW_S)
    assert progress is not None
    assert progress.share == pytest.approx(share)
    assert progress.seconds_left == pytest.approx(seconds_left)


def test_a_time_budget_that_ends_first_is_the_progress(make_trial: MakeTrial, make_row: MakeRow) -> None:
    trial = make_trial(stop={"timesteps_total": 1_000_000})
    trial = replace(trial, experiment=trial.experiment.model_copy(update={"time_budget_s": 60.0}))
    view = TrialView(trial)
    view.begin(NOW_S - 15.0)
    view.add(make_row(1, 10.0))
    progress = view.progress(NOW_S)
    assert progress is not None
    assert (progress.metric, progress.share, progress.seconds_left) == ("time_budget_s", 0.25, 45.0)
    assert "25 % of 0:01:00 time_budget_s  0:00:45 left" in "\n".join(lines([view]))


def test_where_only_a_reward_ends_a_trial_it_is_said_and_no_time_is(make_trial: MakeTrial, make_row: MakeRow) -> None:
    view = TrialView(make_trial(stop={"episode_reward_mean": 475.5}))
    view.add(make_row(1, 10.0))
    view.add(make_row(2, 20.0))
    assert view.progress(NOW_S) is None
    shown = "\n".join(lines([view]))
    assert "2,000 env steps, ends when episode_reward_mean reaches 475.5" in shown
    assert "reward     ░░░░░░░░░░░░░░░░░░░░  20.0 of 475.5" in shown
    assert " left" not in shown


def test_no_stop_or_no_row_is_no_progress(make_trial: MakeTrial, make_row: MakeRow) -> None:
    without_goal, without_row = TrialView(make_trial(stop={})), TrialView(make_trial())
    without_goal.add(make_row())
    assert without_goal.progress(NOW_S) is None
    assert without_row.progress(NOW_S) is None


def test_time_left_after_a_resume_counts_from_the_resume(make_trial: MakeTrial, make_row: MakeRow) -> None:
    view = TrialView(make_trial(stop={"timesteps_total": 110_000}))
    view.add(make_row(100, time_total_s=1_000_000.0))
    view.add(make_row(101, time_total_s=1_000_002.0))
    progress = view.progress(NOW_S)
    assert progress is not None
    assert progress.seconds_left == pytest.approx(18.0)


def test_a_resumed_trial_keeps_its_sparkline_and_takes_back_what_it_does_again(
    make_trial: MakeTrial, make_row: MakeRow
) -> None:
    view = TrialView(make_trial())
    view.recall([(1, 10.0), (2, 20.0), (3, 90.0)])
    view.add(make_row(3, 30.0))
    view.add(make_row(4, 40.0))
    assert view.rewards == [10.0, 20.0, 30.0, 40.0]
    assert "▁▃▆█" in "\n".join(lines([view]))


def test_a_grid_has_one_progress_over_all_trials(make_trial: MakeTrial, make_row: MakeRow) -> None:
    grid = [TrialView(make_trial(index, stop={"timesteps_total": 4_000})) for index in range(4)]
    overall = OverallProgress()
    grid[0].add(make_row(1))
    assert overall.of(grid, 100.0).share == pytest.approx(1 / 16)
    grid[0].add(make_row(4))
    grid[0].status = Status.TERMINATED
    grid[1].add(make_row(2))
    done = overall.of(grid, 130.0)
    assert done.share == pytest.approx(6 / 16)
    assert done.seconds_left == pytest.approx(30.0 * 10 / 5)
    slow = TrialView(make_trial(4, stop={"timesteps_total": 1_000_000}))
    slow.add(make_row(1))
    slow.add(make_row(2))
    assert overall.of([*grid, slow], 131.0).seconds_left == pytest.approx(998_000 / 500)
    shown = picture(grid, "grid", 80, 23, 130.0, done).plain.split("\n")
    assert shown[-1] == "4 trials: 2 pending, 1 running, 1 terminated  ████░░░░░░░░  37 %  0:01:00 left"


@pytest.mark.parametrize("word", ["workers", "learner", "replay"])
@pytest.mark.parametrize(
    "waits", [(1.0, 0.1, 0.4, 0.5, 0.0), (0.0, 1.0, 0.0, 0.0, 0.0), (0.99, 0.11, 0.12, 0.13, 0.64)]
)
def test_the_bottleneck_line_is_never_cut(
    make_trial: MakeTrial, make_row: MakeRow, word: str, waits: tuple[float, ...]
) -> None:
    view = TrialView(make_trial())
    row = make_row()
    parts = dict(zip(("acting", "stepping", "folding"), waits[2:], strict=True))
    row["info"] |= {"bottleneck": word, "learner_wait_share": waits[0], "worker_wait_share": waits[1]}
    row["info"]["worker_time_share"] = parts
    view.add(row)
    for width in (80, 100, 160):
        (line,) = [line for line in lines([view], width) if "bottleneck" in line]
        assert "…" not in line
        learner, workers = map(text.percent, waits[:2])
        assert f"learner waits {learner}  workers wait {workers}" in line
    assert ", rows " in line


def test_what_a_trial_does_until_its_first_row_is_shown(make_trial: MakeTrial, make_row: MakeRow) -> None:
    view = TrialView(make_trial())
    view.status, view.phase = Status.RUNNING, "creating 2 workers"
    assert lines([view])[1].endswith("creating 2 workers")
    view.add(make_row())
    assert "creating" not in "\n".join(lines([view]))
