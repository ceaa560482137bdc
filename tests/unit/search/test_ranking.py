"""How configurations stand: scores, intervals and ranks, and what of them is shown and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlexp.config.keys.search import SearchConfig
from rlexp.config.keys.trial import Trial
from rlexp.display.leaderboard import leaderboard, leaderboard_lines
from rlexp.metrics.statistics import bootstrap_interval
from rlexp.runs.run_record import RecordedError, Status
from rlexp.search.standings import Standings

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]


def standings_of(
    make_trial: MakeTrial, make_row: MakeRow, rewards: list[list[float]], **search: Any
) -> tuple[Standings, list[Trial]]:
    """Return standings after ten rows of each trial; ``rewards`` are those of each configuration's seeds."""
    standings = Standings(SearchConfig(num_seeds=len(rewards[0]), **search), len(rewards))
    trials: list[Trial] = []
    for configuration, seeds in enumerate(rewards):
        for reward in seeds:
            trial = make_trial(len(trials))
            standings.begin(configuration, trial)
            trials.append(trial)
            for iteration in range(1, 11):
                standings.on_result(trial, make_row(iteration, reward * iteration / 10))
    return standings, trials


def test_scores_are_means_over_the_last_tenth(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, (trial,) = standings_of(make_trial, make_row, [[50.0]])
    assert standings.score_of(trial) == 50.0, "of ten rows, the last"
    for iteration in range(11, 41):
        standings.on_result(trial, make_row(iteration, float(iteration)))
    assert standings.score_of(trial) == np.mean([37, 38, 39, 40])


def test_completed_trials_are_compared_where_the_shortest_ends(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, (short, long) = standings_of(make_trial, make_row, [[50.0], [40.0]])
    for iteration in range(11, 21):
        standings.on_result(long, make_row(iteration, 90.0))
    for trial in (short, long):
        standings.on_end(trial, Status.TERMINATED, None)
    assert (standings.score_of(short), standings.score_of(long)) == (50.0, 40.0)


def test_seeds_give_a_mean_with_its_interval(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, _ = standings_of(make_trial, make_row, [[10.0, 30.0, 20.0]])
    standing = standings.of_configuration(0)
    assert standing.score == 20.0
    assert standing.interval == bootstrap_interval(np.array([10.0, 20.0, 30.0]), np.random.default_rng(0))


def test_failed_trials_rank_last_and_pruned_ones_before_them(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[99.0], [90.0], [10.0], [20.0]])
    endings = [(Status.ERROR, RecordedError("x")), (Status.PRUNED, None), (Status.TERMINATED, None)]
    for trial, (status, error) in zip(trials, [*endings, endings[-1]], strict=True):
        standings.on_end(trial, status, error)
    assert [standing.configuration for standing in standings.ranked()] == [3, 2, 1, 0]
    best = standings.best()
    assert best is not None
    assert best.configuration == 3


def test_one_failed_seed_fails_its_configuration(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[99.0, 98.0], [1.0, 2.0]])
    standings.on_end(trials[1], Status.ERROR, RecordedError("x"))
    assert [standing.configuration for standing in standings.ranked()] == [1, 0]


def test_mode_min_ranks_the_lowest_first(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, _ = standings_of(make_trial, make_row, [[10.0], [30.0], [20.0]], mode="min")
    assert [standing.configuration for standing in standings.ranked()] == [0, 2, 1]


@pytest.mark.parametrize("count", [0, 1, 8, 60])
@pytest.mark.parametrize("size", [(80, 23), (40, 8), (20, 3), (1, 1)])
def test_leaderboard_fits_every_terminal(
    make_trial: MakeTrial, make_row: MakeRow, count: int, size: tuple[int, int]
) -> None:
    width, height = size
    rewards = [[float(number)] for number in range(count)] or [[0.0]]
    standings, _ = standings_of(make_trial, make_row, rewards)
    lines = leaderboard(standings, "results/sweep  0:01:00", width, height).plain.split("\n")
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_leaderboard_shows_the_best_first_and_running_trials(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[float(number)] for number in range(40)])
    for trial in trials[1:]:
        standings.on_end(trial, Status.TERMINATED, None)
    lines = leaderboard(standings, "results/sweep", 80, 23).plain.split("\n")
    assert lines[2].split()[:2] == ["1", "39.0"]
    assert any(line.split()[0] == "40" and "running" in line for line in lines[2:-2]), "the last runs"
    assert lines[-2] == "… and 21 more"
    assert lines[-1] == "40 of 40 configurations started; trials: 1 running, 39 terminated; by episode_r…"


def test_summary_has_ranking_and_failures(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[10.0], [20.0]])
    standings.on_end(trials[0], Status.ERROR, RecordedError("ValueError: no\x1b[2J"))
    standings.on_end(trials[1], Status.TERMINATED, None)
    lines = leaderboard_lines(standings)
    assert lines[1].split() == ["1", "20.0", "-", "10,000", "TERMINATED", "lr=0.001"]
    assert lines[3].startswith("A trial scores the mean of episode_reward_mean over the last tenth of the steps")
    assert lines[-2] == "1 of 2 trials failed:"
    assert lines[-1] == "  00000 lr=0.001  after 10,000 steps: ValueError: no [2J"


def test_standings_drop_rows_that_a_trial_repeats(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, (trial,) = standings_of(make_trial, make_row, [[50.0]])
    standings.on_result(trial, make_row(8, 7.0))
    standing = standings.of(trial)
    assert standing.steps == [1_000 * iteration for iteration in range(1, 9)]
    assert standing.values[-2:] == [35.0, 7.0]
    assert (standings.score_of(trial), standing.iterations) == (7.0, 8)
    standings.on_result(trial, make_row(1, 3.0))
    assert (standing.steps, standing.values) == ([1_000], [3.0]), "it began anew"
