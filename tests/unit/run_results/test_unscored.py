"""Trials that failed or ended early: they set no window, and are listed below the scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlexp.compare.comparison import Comparison, compare_groups
from rlexp.compare.curve import Axis
from rlexp.compare.scoring import Window
from rlexp.errors import UsageError
from rlexp.runs.record import Status
from tests.unit.run_results.run_folders import MadeTrial, make_run

REWARD = "episode_reward_mean"
SLOW = [10.0 * iteration for iteration in range(1, 11)]
"""It is behind at 100 env steps and best at 1,000."""
FAST = [95.0 - 5 * iteration for iteration in range(10)]


def compared(*paths: Path, at: float | None = None, axis: Axis = Axis.STEPS) -> Comparison:
    return compare_groups([str(path) for path in paths], REWARD, axis, None, at)


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
    assert [group.mean for group in compared(run, at=6, axis=Axis.TIME).groups] == [30.0, 85.0], "2 s a row"


def test_at_beyond_every_trial_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trial has 1,001 env steps: the longest has 1,000") as caught:
        compared(grid(tmp_path, [(SLOW, Status.TERMINATED), (FAST[:5], Status.TERMINATED)]), at=1001)
    assert caught.value.hint == "--at 1000 compares that one alone; use less"
