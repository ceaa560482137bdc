"""The ranking, computed step by step with caches, equals a slow one that is computed at once from plain lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlexp.config.keys.search import SearchConfig
from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RecordedError, Status
from rlexp.search.ranking import EndedEarly
from rlexp.search.standings import Standings

MakeTrial = Callable[..., Trial]
MakeRow = Callable[..., dict[str, Any]]

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
    pruned: tuple[float, float] | None
    """Where and with which value the scheduler ended it."""


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
        if each.pruned is not None:
            return 2, -each.pruned[0], each.pruned[1]
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
        rung = draw(st.sampled_from([(1_000.0, 1.0), (3_000.0, 1.0), (3_000.0, 2.0)])) if pruned else None
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
            standings.on_early_end(configuration.number, EndedEarly(*configuration.pruned))
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
