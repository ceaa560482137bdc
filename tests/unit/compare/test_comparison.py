"""Comparisons: scores, intervals, goals and warnings.

Trials that failed or ended early: they set no window, and are listed below the scores.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import CurveAxis
from rlexp.compare.scoring import Window
from rlexp.errors import UsageError
from rlexp.runs.record import Status
from tests.lab.run_folders import MadeTrial, make_run

REWARD = "episode_reward_mean"


def compared(
    *arguments: object,
    metric: str = REWARD,
    axis: CurveAxis = CurveAxis.STEPS,
    goal: float | None = None,
    at: float | None = None,
) -> Comparison:
    return compare_groups([str(argument) for argument in arguments], metric, axis, goal, at)


def rising(last: float, rows: int = 20) -> list[float | None]:
    """Return rewards that rise by one to ``last``."""
    return [last - rows + iteration for iteration in range(1, rows + 1)]


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    worse = make_run(tmp_path / "worse", [MadeTrial(rising(last), seed) for seed, last in enumerate((20, 30, 40, 50))])
    better = make_run(
        tmp_path / "better", [MadeTrial(rising(last), seed) for seed, last in enumerate((45, 55, 65, 75))]
    )
    return worse, better


def warnings(comparison: Comparison) -> str:
    return "\n".join(f"{notice.where} {notice.message}" for notice in comparison.notices)


def test_scores_are_means_over_last_tenth(two: tuple[Path, Path]) -> None:
    comparison = compared(*two)
    worse, better = comparison.groups
    assert (worse.name, worse.mark, better.name, better.mark) == ("worse", "A", "better", "B")
    assert comparison.window == Window(1800.0, 2000.0)
    assert [trial.score for trial in worse.trials] == [19.5, 29.5, 39.5, 49.5]  # the last two of twenty rows
    assert (worse.mean, worse.iqm.value, better.iqm.value) == (34.5, 34.5, 59.5)
    assert (
        comparison.scoring == "Scores are means over env steps 1,800 to 2,000, the last tenth that all 8 trials have."
    )
    assert warnings(comparison) == ""


def test_later_groups_are_compared_with_first(two: tuple[Path, Path]) -> None:
    worse, better = compared(*two).groups
    assert worse.improvement is None
    assert better.improvement is not None
    assert better.improvement.value == pytest.approx(15 / 16)
    assert better.improvement.interval is not None
    assert better.improvement.interval[1] == 1.0
    reverse = compared(*reversed(two)).groups[1].improvement
    assert reverse is not None
    assert reverse.value == pytest.approx(1 / 16)


def test_comparison_does_not_depend_on_order(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / str(power), [MadeTrial(rising(seed**power), seed) for seed in range(1, 10)])
        for power in (1.5, 2.1)
    ]
    first, again = compared(*runs), compared(*reversed(runs))
    for group, same in zip(first.groups, reversed(again.groups), strict=True):
        assert group.iqm == same.iqm
        assert group.iqm.interval is not None
        assert (group.band.low == same.band.low).all()
    assert first.groups[1].improvement == compared(*runs).groups[1].improvement


def test_goal_reached_by_group(two: tuple[Path, Path]) -> None:
    worse, better = compared(*two, goal=45.0).groups
    assert worse.goal is not None
    assert better.goal is not None
    assert (worse.goal.seeds, worse.goal.median_steps, worse.goal.median_seconds) == (1, math.inf, math.inf)
    assert better.goal.seeds == 4
    assert better.goal.median_steps == pytest.approx((1000 + 100) / 2)  # at 2000, 1000, 100 and 100
    assert better.goal.median_seconds == pytest.approx((20 + 2) / 2)
    assert compared(*two).groups[0].goal is None


def test_comparison_by_time(two: tuple[Path, Path]) -> None:
    comparison = compared(*two, axis=CurveAxis.TIME)
    assert comparison.window == Window(36.0, 40.0)
    assert comparison.groups[0].band.x[-1] == 40.0


def test_metrics_by_current_and_old_flat_names(two: tuple[Path, Path]) -> None:
    loss = compared(*two, metric="info/learner/loss").groups[0]
    assert loss.mean == pytest.approx((1 / 19 + 1 / 20) / 2)
    assert compared(*two, metric="env_runners/episode_return_mean").metric == REWARD


def test_unknown_metric_suggests_nearest(two: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="no trial of the 2 groups has reported episode_reward_meen") as caught:
        compared(*two, metric="episode_reward_meen")
    assert caught.value.hint == f"did you mean {REWARD}?"
    with pytest.raises(UsageError, match="has reported zzz") as caught:
        compared(*two, metric="zzz")
    assert REWARD in str(caught.value.hint)


def test_run_without_results(tmp_path: Path) -> None:
    run = make_run(tmp_path / "new", [MadeTrial([])])
    with pytest.raises(UsageError, match="no trial of new has a result yet"):
        compared(run)


def test_differences_between_groups(tmp_path: Path) -> None:
    trials = [MadeTrial([1.0], seed, {"lr": lr}) for seed in (1, 2) for lr in (0.1, 0.2)]
    comparison = compared(make_run(tmp_path / "grid", trials))
    assert comparison.differences == ("config.lr",)
    assert [group.settings["config.lr"] for group in comparison.groups] == ["0.1", "0.2"]


def test_single_seed_has_no_interval_and_a_warning(tmp_path: Path) -> None:
    comparison = compared(make_run(tmp_path / "single", [MadeTrial([1.0])]))
    assert comparison.groups[0].iqm.interval is None
    assert warnings(comparison).startswith("single only one seed per group, so no interval; run more seeds")


def test_group_with_one_scored_seed_of_two_has_a_warning(tmp_path: Path) -> None:
    trials = [MadeTrial(rising(20), 1, {"lr": 0.1}), MadeTrial(rising(20)[:5], 2, {"lr": 0.1}, status=Status.PRUNED)]
    comparison = compared(make_run(tmp_path / "sweep", trials))
    assert "only one seed has a score, so no interval; the others ended before these steps" in warnings(comparison)
    assert "run more seeds" not in warnings(comparison)


def test_short_trial_has_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [MadeTrial(rising(20), 1), MadeTrial(rising(20), 2), MadeTrial([5.0, 6.0], 3)])
    comparison = compared(run)
    assert comparison.window == Window(180.0, 200.0)
    assert "00002-DQN-CartPole-v1 ends at 200 (TERMINATED) of 2,000 env steps" in warnings(comparison)


def test_trials_without_metric_are_left_out_with_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [MadeTrial(rising(20), 1), MadeTrial(rising(30), 2), MadeTrial([None], 3)])
    comparison = compared(run)
    assert [trial.folder.seed for trial in comparison.groups[0].trials] == [1, 2]
    assert "00002-DQN-CartPole-v1 has not reported the metric and is left out" in warnings(comparison)


def test_damaged_files_have_warnings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [MadeTrial(rising(20), 1), MadeTrial(rising(30), 2)])
    with next(run.glob("00000*/result.json")).open("a") as file:
        file.write('{"timesteps_total": 9')
    (run / "run.json").write_text("{")
    found = warnings(compared(run))
    assert "00000-DQN-CartPole-v1/result.json is damaged: 1 line is left out" in found
    assert "run.json is damaged" in found


@pytest.mark.parametrize(
    ("lost", "said"), [("result.json", "/result.json  is missing, with all rows"), ("", "  is missing: the folder")]
)
def test_lost_files_of_trials_are_named(lost: str, said: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "pong", [MadeTrial(rising(20), 1), MadeTrial(rising(20), 2)])
    remove(next(run.glob("00000*")) / lost)
    assert f"00000-DQN-CartPole-v1{said}".replace("  ", " ") in warnings(compared(run))
    remove(next(run.glob("00001*")) / lost)
    with pytest.raises(UsageError, match=f"no trial of pong has rows that can be read: .*00000-DQN-CartPole-v1{said}"):
        compared(run)


def remove(path: Path) -> None:
    path.unlink() if path.is_file() else shutil.rmtree(path)


def test_group_with_different_settings_has_warning(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(lr), [MadeTrial(rising(20), 1, config={"lr": lr})]) for lr in (0.1, 0.2)]
    found = warnings(compared(f"both={runs[0]},{runs[1]}"))
    assert found == "both pools trials that differ in config.lr"


def test_different_envs_have_warning_and_own_strata(tmp_path: Path) -> None:
    scores = {"CartPole-v1": 0.0, "Acrobot-v1": 100.0}
    run = make_run(tmp_path / "pong", [MadeTrial([scores[env]], seed, env=env) for env in scores for seed in range(4)])
    [pooled] = compared(f"all={run}").groups
    assert pooled.iqm.interval == (50.0, 50.0)
    comparison = compared(run)
    assert comparison.groups[1].improvement is None
    assert "Acrobot-v1, CartPole-v1 are different environments" in warnings(comparison)


SLOW = [10.0 * iteration for iteration in range(1, 11)]
"""It is behind at 100 env steps and best at 1,000."""
FAST = [95.0 - 5 * iteration for iteration in range(10)]


def grid(folder: Path, trials: Sequence[tuple[Sequence[float | None], Status]]) -> Path:
    """Return a run with one trial for each learning rate."""
    made = [
        MadeTrial(rewards, 1, {"lr": (index + 1) / 10}, status=status) for index, (rewards, status) in enumerate(trials)
    ]
    return make_run(folder / "grid", made)


@pytest.mark.parametrize("status", [Status.ERROR, Status.PRUNED, Status.STOPPED, Status.RUNNING])
def test_trial_that_ends_early_sets_no_window(status: Status, tmp_path: Path) -> None:
    done = Status.TERMINATED
    comparison = compared(grid(tmp_path, [(SLOW, done), (FAST, done), ([40.0], status)]))
    assert comparison.window == Window(900.0, 1000.0)
    assert {group.name: group.mean for group in comparison.groups} == {"lr=0.1": 100.0, "lr=0.2": 50.0}
    assert comparison.scoring.endswith("the last tenth that all 2 completed trials have.")
    (ended,) = comparison.ended_early
    assert (ended.name, ended.status, ended.at, ended.value, ended.first_value) == ("lr=0.3", status, 100, 40.0, 10.0)


def test_failed_trial_is_below_even_with_all_steps(tmp_path: Path) -> None:
    comparison = compared(grid(tmp_path, [(SLOW, Status.TERMINATED), (FAST, Status.ERROR)]))
    assert [group.name for group in comparison.groups] == ["lr=0.1"]
    (ended,) = comparison.ended_early
    assert ended.why == "ERROR: ValueError: no more"
    assert ended.where == "50.0 @ 1,000"


def test_stopped_trial_with_all_steps_is_scored(tmp_path: Path) -> None:
    comparison = compared(grid(tmp_path, [(SLOW, Status.TERMINATED), (FAST, Status.STOPPED)]))
    assert [group.mean for group in comparison.groups] == [100.0, 50.0]
    assert comparison.ended_early == ()


def test_trials_that_ended_early_are_listed_furthest_first(tmp_path: Path) -> None:
    early = [([1.0], Status.PRUNED), ([2.0] * 3, Status.ERROR), ([3.0], Status.PRUNED), ([0.0] * 2, Status.STOPPED)]
    comparison = compared(grid(tmp_path, [(SLOW, Status.TERMINATED), *early, ([], Status.PENDING)]))
    assert [each.name for each in comparison.ended_early] == ["lr=0.5", "lr=0.4", "lr=0.2", "lr=0.6", "lr=0.3"]
    assert [each.where for each in comparison.ended_early[2:4]] == ["1.0 @ 100", "-"]


def test_seeds_of_one_group_may_end_apart(tmp_path: Path) -> None:
    trials = [MadeTrial(SLOW, 1), MadeTrial(FAST, 2), MadeTrial([5.0, 7.0], 3, status=Status.ERROR)]
    comparison = compared(make_run(tmp_path / "seeds", trials))
    assert [trial.folder.seed for trial in comparison.groups[0].trials] == [1, 2]
    (ended,) = comparison.ended_early
    assert ended.why == "ERROR (1 of 3 trials): ValueError: no more"
    assert (ended.where, ended.first_value) == ("7.0 @ 200", 55.0)


def test_before_a_trial_completes_all_are_compared_at_the_shortest(tmp_path: Path) -> None:
    comparison = compared(grid(tmp_path, [(SLOW, Status.RUNNING), (FAST[:5], Status.STOPPED), ([1.0], Status.ERROR)]))
    assert [group.mean for group in comparison.groups] == [50.0, 75.0]
    assert [each.name for each in comparison.ended_early] == ["lr=0.3"]
    failures = compared(grid(tmp_path / "failed", [(SLOW, Status.ERROR), (FAST[:5], Status.ERROR)]))
    assert [group.mean for group in failures.groups] == [50.0, 75.0]


def test_at_compares_all_at_equal_steps(tmp_path: Path) -> None:
    run = grid(tmp_path, [(SLOW, Status.TERMINATED), (FAST, Status.PRUNED), (FAST[:2], Status.PRUNED)])
    comparison = compared(run, at=300)
    assert comparison.window == Window(270.0, 300.0)
    assert {group.name: group.mean for group in comparison.groups} == {"lr=0.1": 30.0, "lr=0.2": 85.0}
    assert [each.where for each in comparison.ended_early] == ["90.0 @ 200"]
    assert not any("ends at" in notice.message for notice in comparison.notices), "scores are taken before all ends"
    assert comparison.scoring == "Scores are means over env steps 270 to 300, the last tenth before --at."
    assert [group.mean for group in compared(run, at=6, axis=CurveAxis.TIME).groups] == [30.0, 85.0], "2 s a row"


def test_at_beyond_every_trial_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trial has 1,001 env steps: the longest has 1,000") as caught:
        compared(grid(tmp_path, [(SLOW, Status.TERMINATED), (FAST[:5], Status.TERMINATED)]), at=1001)
    assert caught.value.hint == "--at 1000 compares that one alone; use less"
