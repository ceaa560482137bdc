"""How configurations stand: scores, intervals and ranks, and what of them is shown and written.

The ranking, computed step by step with caches, equals a slow one that is computed at once from plain lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlexp.config.keys.search import SearchConfig
from rlexp.config.keys.trial import Trial
from rlexp.metrics import bootstrap_interval
from rlexp.runs.record import RecordedError, Status
from rlexp.search.ranking import EndComparison, EndedEarly, Tier
from rlexp.search.standings import Standings, summary_of
from rlexp.terminal.summary import configuration_words, leaderboard, leaderboard_lines

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


def test_end_of_a_shorter_trial_changes_scores_and_order(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, (first, second, short) = standings_of(make_trial, make_row, [[50.0], [40.0], [0.0]])
    for iteration in range(11, 21):
        standings.on_result(second, make_row(iteration, 90.0))
        standings.on_result(first, make_row(iteration, 80.0))
    for trial in (first, second):
        standings.on_end(trial, Status.TERMINATED, None)
    assert [standing.score for standing in standings.ranked()] == [90.0, 80.0, 0.0]
    standings.on_end(short, Status.TERMINATED, None)
    assert [standing.score for standing in standings.ranked()] == [50.0, 40.0, 0.0]
    assert standings.ranked() is standings.ranked(), "nothing is computed again before something changes"


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
    assert lines[4].split() == ["2", "-", "-", "ERROR", "lr=0.001"]
    assert lines[5] == "Rank: completed by score; ended early, furthest first, by value there; failed."
    assert lines[6].startswith("A score is the mean of episode_reward_mean over the last tenth of the steps")
    assert lines[-2] == "1 of 2 trials failed:"
    assert lines[-1] == "  00000 lr=0.001  after 10,000 steps: ValueError: no [2J"


def test_summary_without_a_completed_configuration_has_no_empty_table(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[10.0], [20.0]])
    for trial in trials:
        standings.on_end(trial, Status.ERROR, RecordedError("ValueError: no"))
    tables = leaderboard_lines(standings)[:4]
    assert [line.split()[:1] for line in tables] == [[], ["rank"], ["1"], ["2"]]


def test_summary_says_why_a_sweep_without_failures_has_no_score(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = Standings(SearchConfig(), 2), [make_trial(0), make_trial(1)]
    for configuration, trial in enumerate(trials):
        standings.begin(configuration, trial)
        standings.on_result(trial, make_row(1, None))
        standings.on_end(trial, Status.STOPPED, None)
    why = "no trial has a value of episode_reward_mean, so none has a score: give the sweep more time"
    assert why in leaderboard_lines(standings)
    standings.on_result(trials[0], make_row(2, 10.0))
    assert why not in leaderboard_lines(standings)


def test_summary_is_no_wider_than_the_terminal(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[10.0], [20.0]])
    standings.on_end(trials[0], Status.ERROR, RecordedError("ValueError: " + "a long reason " * 10))
    standings.on_end(trials[1], Status.TERMINATED, None)
    whole, narrow = leaderboard_lines(standings), leaderboard_lines(standings, 50)
    broken = [line for text in narrow if text not in whole for line in text.split("\n")]
    assert len(broken) > 4
    assert max(map(len, broken)) <= 50
    table = narrow[1].split("\n")
    assert table == ["   1   20.0              -  10,000  TERMINATED", "      lr=0.001"]
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(whole).split()), "nothing is cut"


def pruned(
    make_trial: MakeTrial, make_row: MakeRow, values: list[float], at: list[int], **search: Any
) -> tuple[Standings, list[Trial]]:
    """Return standings where each but the first configuration was pruned after ``at`` rows, with the same value in all.

    The first one completes with the value 10 times its number of rows.
    """
    standings = Standings(SearchConfig(**search), len(values) + 1)
    trials = [make_trial(index, stop={"timesteps_total": 10_000}) for index in range(len(values) + 1)]
    for configuration, trial in enumerate(trials):
        standings.begin(configuration, trial)
        for iteration in range(1, (at[configuration - 1] if configuration else 10) + 1):
            reward = values[configuration - 1] if configuration else 10.0 * iteration
            standings.on_result(trial, make_row(iteration, reward))
        if configuration:
            ended = EndedEarly(1_000.0 * at[configuration - 1], values[configuration - 1])
            standings.on_early_end(configuration, ended)
        standings.on_end(trial, Status.PRUNED if configuration else Status.TERMINATED, None)
    return standings, trials


def test_pruned_rank_by_rung_then_by_value_there(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, _ = pruned(make_trial, make_row, [500.0, 30.0, 40.0, 35.0], [1, 3, 3, 2])
    assert [standing.configuration for standing in standings.ranked()] == [0, 3, 2, 4, 1]
    lowest, _ = pruned(make_trial, make_row, [500.0, 30.0, 40.0, 35.0], [1, 3, 3, 2], mode="min")
    assert [standing.configuration for standing in lowest.ranked()] == [0, 2, 3, 4, 1]


def test_pruned_is_shown_with_the_value_of_rank_1_at_its_rung(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = pruned(make_trial, make_row, [500.0, 40.0], [1, 3])
    lines = leaderboard_lines(standings)
    assert lines[3] == "rank     value where it ended  rank 1 there  status  configuration"
    assert lines[4] == "   2   40.0 @ 3,000 of 10,000          30.0  PRUNED  lr=0.001"
    assert lines[5] == "   3  500.0 @ 1,000 of 10,000          10.0  PRUNED  lr=0.001"
    live = leaderboard(standings, "", 80, 23).plain.split("\n")
    assert live[3].split() == ["2", "40.0", "@", "3,000", "1/1", "3,000", "pruned", "lr=0.001"]
    assert standings.score_of(trials[1]) is None, "it has no score over the common steps"


@pytest.mark.parametrize(
    ("rung", "shown"),
    [
        (2_500, EndComparison(2_500.0, 10_000, "timesteps_total", 4.5, 25.0)),
        (3_000, EndComparison(3_000.0, 10_000, "timesteps_total", 3.0, 30.0)),
        (500, EndComparison(3_000.0, 10_000, "timesteps_total", 3.0, 30.0)),
    ],
    ids=["between rows", "at a row", "before the first row"],
)
def test_value_where_it_ended_is_of_the_same_step_as_that_of_rank_1(
    make_trial: MakeTrial, make_row: MakeRow, rung: int, shown: EndComparison
) -> None:
    standings = Standings(SearchConfig(), 2)
    for configuration, rewards in enumerate(([10.0 * number for number in range(1, 11)], [7.0, 6.0, 3.0])):
        trial = make_trial(configuration, stop={"timesteps_total": 10_000})
        standings.begin(configuration, trial)
        for iteration, reward in enumerate(rewards, 1):
            standings.on_result(trial, make_row(iteration, reward))
        if configuration:
            standings.on_early_end(configuration, EndedEarly(rung, 3.0))
        standings.on_end(trial, Status.PRUNED if configuration else Status.TERMINATED, None)
    assert standings.end_comparison(standings.ranked()[1]) == shown


@pytest.mark.parametrize(("time_attr", "shown"), [("training_iteration", "3 iterations"), ("time_total_s", "6 s")])
def test_time_of_an_early_end_has_its_unit(
    make_trial: MakeTrial, make_row: MakeRow, time_attr: str, shown: str
) -> None:
    search = {"scheduler": "asha", "asha": {"time_attr": time_attr}}
    standings = Standings(SearchConfig.model_validate(search), 2)
    for configuration, status in enumerate((Status.TERMINATED, Status.STOPPED)):
        trial = make_trial(configuration)
        standings.begin(configuration, trial)
        for iteration in range(1, 4 if configuration else 11):
            standings.on_result(trial, make_row(iteration, 10.0 * iteration))
        standings.on_end(trial, status, None)
    assert f"30.0 @ {shown}          30.0  STOPPED" in leaderboard_lines(standings)[4]


def test_running_configurations_rank_between_completed_and_ended_early(
    make_trial: MakeTrial, make_row: MakeRow
) -> None:
    standings, trials = standings_of(make_trial, make_row, [[10.0], [90.0], [20.0], [80.0]])
    standings.on_end(trials[0], Status.TERMINATED, None)
    standings.on_end(trials[3], Status.STOPPED, None)
    standings.begin(4, make_trial(4))
    assert [standing.configuration for standing in standings.ranked()] == [0, 1, 2, 3, 4]


def test_stopped_seeds_are_compared_where_all_have_values(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, trials = standings_of(make_trial, make_row, [[10.0, 30.0]])
    for iteration in range(11, 16):
        standings.on_result(trials[1], make_row(iteration, 1_000.0))
    for trial in trials:
        standings.on_end(trial, Status.STOPPED, None)
    (standing,) = standings.ranked()
    assert standing.ended_early == EndedEarly(10_000, 20.0)


def test_configuration_without_its_second_seed_has_not_completed(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings = Standings(SearchConfig(num_seeds=2), 2)
    for index, configuration in enumerate((0, 0, 1)):
        trial = make_trial(index)
        standings.begin(configuration, trial)
        standings.on_result(trial, make_row(1, 10.0 + index))
        standings.on_end(trial, Status.TERMINATED, None)
    first, second = standings.ranked()
    assert (first.configuration, first.tier, second.tier) == (0, Tier.COMPLETED, Tier.ENDED_EARLY)
    assert second.status is Status.PENDING


def test_summary_estimates_what_early_ends_saved(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, _ = pruned(make_trial, make_row, [5.0, 5.0, 5.0], [1, 3, 3])
    summary = summary_of(standings)
    assert (summary.configurations, summary.ended_early, summary.env_steps) == (4, 3, 17_000)
    assert (summary.env_steps_saved, summary.time_s, summary.time_saved_s) == (23_000, 34.0, 46.0)
    lines = leaderboard_lines(standings)
    assert "4 configurations, 3 ended early (75 %); 17,000 env steps, 0:00:34 of training in all trials" in lines
    assert "saved: about 23,000 env steps, 0:00:46 (an estimate: against all of them running to the stop)" in lines


def test_summary_says_when_the_best_was_found(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings = Standings(SearchConfig(), 3)
    for configuration, reward in enumerate((10.0, 30.0, 20.0)):
        trial = make_trial(configuration)
        standings.begin(configuration, trial)
        standings.on_result(trial, make_row(1, reward))
        standings.elapsed_s = 60.0 * (configuration + 1)
        standings.on_end(trial, Status.TERMINATED, None)
    summary = summary_of(standings)
    assert (summary.best_configuration, summary.best_found_after_s) == (1, 120.0)
    assert (summary.best_found_after_env_steps, summary.env_steps_saved) == (2_000, None)
    (best,) = (trial.trial for trial in standings.trials() if trial.trial.index == 1)
    lines = leaderboard_lines(standings)
    said = "found after 0:02:00 and 2,000 env steps of the sweep"
    assert f"best: {configuration_words(best.varied) or 'the only configuration'}, {said}" in lines
    assert "this ranking is for a budget of 1,000 env steps: with more, another configuration may be best" in lines


def test_standings_drop_rows_that_a_trial_repeats(make_trial: MakeTrial, make_row: MakeRow) -> None:
    standings, (trial,) = standings_of(make_trial, make_row, [[50.0]])
    standings.on_result(trial, make_row(8, 7.0))
    standing = standings.of(trial)
    assert standing.steps == [1_000 * iteration for iteration in range(1, 9)]
    assert standing.values[-2:] == [35.0, 7.0]
    assert (standings.score_of(trial), standing.iterations) == (7.0, 8)
    standings.on_result(trial, make_row(1, 3.0))
    assert (standing.steps, standing.values) == ([1_000], [3.0]), "it began anew"


VALUES = st.sampled_from([None, None, -3.0, 0.0, 1.0, 2.5, 7.0])
ENDINGS = st.sampled_from([*[Status.TERMINATED] * 6, None, Status.STOPPED, Status.ERROR])


@dataclass
class Seed:
    """One trial: its rewards after 1, 2 … thousand env steps, and how it ended; None where it still runs."""

    rewards: list[float | None]
    ending: Status | None

    @property
    def known(self) -> list[tuple[int, float]]:
        return [(1_000 * number, reward) for number, reward in enumerate(self.rewards, 1) if reward is not None]


@dataclass
class Configuration:
    number: int
    seeds: list[Seed]
    pruned: int | None
    """Where the scheduler ended it."""


@dataclass
class Reference:
    """Compares each configuration with each other one."""

    configurations: Sequence[Configuration]
    num_seeds: int
    mode: str

    def order(self) -> list[int]:
        """Return the numbers of the configurations, the best first."""
        return [each.number for each in sorted(self.configurations, key=cmp_to_key(self.better))]

    def better(self, one: Configuration, other: Configuration) -> int:
        """Return whether ``one`` is better, as a negative number."""
        a, b = self.described(one), self.described(other)
        for place in range(2):
            if a[place] != b[place]:
                return -1 if a[place] < b[place] else 1
        if a[2] != b[2]:
            return -1 if (a[2] > b[2]) == (self.mode == "max") else 1
        return one.number - other.number

    def described(self, each: Configuration) -> tuple[int, float, float]:
        """Return the tier, minus how far it came where that counts, and its value."""
        endings = [seed.ending for seed in each.seeds]
        if Status.ERROR in endings:
            return 4, 0, 0
        completed = len(endings) == self.num_seeds and all(ending is Status.TERMINATED for ending in endings)
        if None in endings or completed:
            scores = [final(seed, self.common_end()) for seed in each.seeds]
            if any(score is None for score in scores):
                return 3, 0, 0
            return (0 if completed else 1), 0, sum(score or 0.0 for score in scores) / len(scores)
        rung = each.pruned
        if rung and all(seed.known and seed.known[0][0] <= rung <= seed.known[-1][0] for seed in each.seeds):
            return 2, -rung, sum(interpolated(seed, rung) for seed in each.seeds) / len(each.seeds)
        return self.stopped(each.seeds)

    def stopped(self, seeds: Sequence[Seed]) -> tuple[int, float, float]:
        """Return the same of a configuration that no scheduler ended: where all of its seeds have values."""
        if any(not seed.known for seed in seeds):
            return 3, 0, 0
        at = min(seed.known[-1][0] for seed in seeds)
        if any(seed.known[0][0] > at for seed in seeds):
            return 3, 0, 0
        return 2, -at, sum(interpolated(seed, at) for seed in seeds) / len(seeds)

    def common_end(self) -> int | None:
        """Return the steps that all completed trials have."""
        seeds = [seed for each in self.configurations for seed in each.seeds]
        return min(
            (seed.known[-1][0] for seed in seeds if seed.ending is Status.TERMINATED and seed.known), default=None
        )


def final(seed: Seed, end: int | None) -> float | None:
    """Return the mean over the last tenth of what all completed trials have; of one that is not, of its own."""
    if not seed.known or seed.ending is Status.STOPPED:
        return None
    until = end if seed.ending is Status.TERMINATED and end is not None else seed.known[-1][0]
    inside = [value for step, value in seed.known if until * 0.9 < step <= until]
    nearest = min(seed.known, key=lambda pair: abs(pair[0] - until))[1]
    return sum(inside) / len(inside) if inside else nearest


def interpolated(seed: Seed, at: int) -> float:
    before = next((step, value) for step, value in reversed(seed.known) if step <= at)
    after = next((step, value) for step, value in seed.known if step >= at)
    share = 0.0 if before == after else (at - before[0]) / (after[0] - before[0])
    return before[1] + share * (after[1] - before[1])


@st.composite
def swept(draw: st.DrawFn) -> tuple[list[Configuration], int]:
    num_seeds = draw(st.integers(1, 2))
    found = []
    for number in range(draw(st.integers(1, 7))):
        pruned = draw(st.sampled_from([False, False, False, True]))
        seeds = [
            Seed(draw(st.lists(VALUES, max_size=12)), Status.PRUNED if pruned else draw(ENDINGS))
            for _ in range(draw(st.integers(1, num_seeds)))
        ]
        rung = draw(st.sampled_from([1_000, 2_500, 3_000])) if pruned else None
        found.append(Configuration(number, seeds, rung))
    return found, num_seeds


def events(
    configurations: Sequence[Configuration], standings: Standings, make_trial: MakeTrial, make_row: MakeRow
) -> Iterator[Iterator[None]]:
    """Yield what happens to each trial, an event at each step."""

    def happens(configuration: Configuration, seed: Seed, trial: Trial) -> Iterator[None]:
        for iteration, reward in enumerate(seed.rewards, 1):
            standings.on_result(trial, make_row(iteration, reward))
            yield
        if configuration.pruned is not None:
            standings.on_early_end(configuration.number, EndedEarly(configuration.pruned, 1.0))
            yield
        if seed.ending is not None:
            error = RecordedError("x") if seed.ending is Status.ERROR else None
            standings.on_end(trial, seed.ending, error)

    index = 0
    for configuration in configurations:
        for seed in configuration.seeds:
            trial = make_trial(index)
            standings.begin(configuration.number, trial)
            index += 1
            yield happens(configuration, seed, trial)


@pytest.mark.parametrize("mode", ["max", "min"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=swept(), turns=st.randoms(use_true_random=False))
def test_ranking_equals_the_reference(
    make_trial: MakeTrial, make_row: MakeRow, mode: Any, case: tuple[list[Configuration], int], turns: Any
) -> None:
    configurations, num_seeds = case
    standings = Standings(SearchConfig(mode=mode, num_seeds=num_seeds), len(configurations))
    left = list(events(configurations, standings, make_trial, make_row))
    while left:
        chosen = turns.choice(left)
        if next(chosen, left) is left:
            left.remove(chosen)
        standings.ranked()
    ranked = [standing.configuration for standing in standings.ranked()]
    assert ranked == Reference(configurations, num_seeds, mode).order()
