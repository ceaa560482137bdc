"""HyperBand: its brackets by the numbers of the paper, and who continues at each rung against a slow reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from rlexp.search.early_stopping import HyperBand
from rlexp.search.trial_scheduler import Milestones, Report, Verdict


def hyperband_of(first: float, factor: float, rungs: int, count: int) -> HyperBand:
    return HyperBand(Milestones("timesteps_total", first, factor, writes_checkpoint=True), rungs, count)


def report_of(trial: str, time: float, value: float) -> Report:
    return Report(trial, time, value, {}, "some checkpoint", lambda: True, lambda name: False)


class Trials:
    """Trials with known values, trained one rung at a time wherever the rule lets one continue."""

    def __init__(self, rule: HyperBand, values: Sequence[float], limit: float) -> None:
        self.rule = rule
        self.values = {f"t{number}": value for number, value in enumerate(values)}
        self.limit = limit
        self.at = dict.fromkeys(self.values, 0.0)
        self.ends: dict[str, float] = {}
        for name in self.values:
            rule.configured([name])

    def run(self, rng: Random) -> None:
        """Continue trials in random order until all have ended."""
        while left := [name for name in self.values if name not in self.ends]:
            free = [name for name in left if self.rule.judge_paused(name).verdict is not Verdict.PAUSE]
            assert free, "no trial may continue"
            self._continue(rng.choice(free))

    def _continue(self, name: str) -> None:
        if self.rule.judge_paused(name).verdict is Verdict.STOP:
            self._end(name)
            return
        assert self.rule.milestones is not None
        self.at[name] = min(self.rule.milestones.after(self.at[name]), self.limit)
        if self.at[name] == self.limit or self._stops(name):
            self._end(name)

    def _stops(self, name: str) -> bool:
        report = report_of(name, self.at[name], self.values[name])
        return self.rule.judge(report).verdict is Verdict.STOP

    def _end(self, name: str) -> None:
        self.ends[name] = self.at[name]
        self.rule.ended(name, failed=False)


def test_brackets_are_those_of_the_paper() -> None:
    """R = 81, eta = 3: table 1 of Li et al. 2018, of n = 81, 34, 15, 8, 5 configurations."""
    rule = hyperband_of(1, 3, 4, 143)
    trials = Trials(rule, [float(number) for number in range(143)], 81)
    trials.run(Random(1))
    rungs = [(rung["bracket"], rung["at"], len(rung["values"])) for rung in rule.state()["early_stopping"]]
    first = [(0, 1, 81), (0, 3, 27), (0, 9, 9), (0, 27, 3)]
    assert rungs == [*first, (1, 3, 34), (1, 9, 11), (1, 27, 3), (2, 9, 15), (2, 27, 5), (3, 27, 8)]
    assert sum(end == 81 for end in trials.ends.values()) == 1 + 1 + 1 + 2 + 5


@pytest.mark.parametrize("seed", range(20))
def test_survivors_are_the_best_at_each_rung(seed: int) -> None:
    rng = Random(seed)
    values = [rng.random() for _ in range(rng.randint(1, 30))]
    trials = Trials(hyperband_of(10, 2, 3, len(values)), values, 80)
    trials.run(rng)
    begun = 0
    expected: dict[str, float] = {}
    for size, skipped in zip([8, 6, 4, 4, 8, 6], [0, 1, 2, 3, 0, 1], strict=True):
        names = [f"t{number}" for number in range(begun, min(begun + size, len(values)))]
        begun += size
        for rung in range(skipped, 3):
            ranked = sorted(names, key=lambda name: -trials.values[name])
            names = ranked[: max(math.floor(len(ranked) / 2), 1)]
            expected |= dict.fromkeys(ranked[len(names) :], 10 * 2**rung)
        expected |= dict.fromkeys(names, 80)
    assert trials.ends == expected


def test_members_that_end_or_never_come_are_not_waited_for() -> None:
    rule = hyperband_of(10, 2, 2, 4)
    for name in ("a", "b", "c"):
        rule.configured([name])
    assert rule.judge(report_of("a", 10, 1.0)).verdict is Verdict.PAUSE
    assert rule.judge(report_of("b", 10, 2.0)).verdict is Verdict.PAUSE
    rule.ended("c", failed=True)
    rule.exhausted()
    stopped = rule.judge_paused("a")
    assert (stopped.verdict, stopped.reason, stopped.at, stopped.value) == (
        Verdict.STOP,
        "rank 2 of 2 at rung 10; 1 continues",
        10,
        1.0,
    )
    assert rule.judge_paused("b").verdict is Verdict.CONTINUE


def test_members_without_a_value_take_the_places_that_are_left() -> None:
    rule = hyperband_of(10, 2, 2, 4)
    for name in "abcd":
        rule.configured([name])
    values = {"a": math.nan, "b": 5.0, "c": math.nan, "d": 9.0}
    for name in "abc":
        assert rule.judge(report_of(name, 10, values[name])).verdict is Verdict.PAUSE
    rule.judge(report_of("d", 10, values["d"]))
    assert [rule.judge_paused(name).verdict is Verdict.STOP for name in "abcd"] == [True, False, True, False]
    rule = hyperband_of(10, 2, 2, 4)
    for name in "abcd":
        rule.configured([name])
    for name in "abc":
        rule.judge(report_of(name, 10, values[name]))
    rule.ended("b", failed=True)
    rule.judge(report_of("d", 10, values["d"]))
    assert [rule.judge_paused(name).verdict is Verdict.STOP for name in "acd"] == [True, True, False]


def test_member_without_a_value_ends_where_others_have_one() -> None:
    rule = hyperband_of(10, 2, 1, 2)
    for name in ("a", "b"):
        rule.configured([name])
    assert rule.judge(report_of("a", 10, math.nan)).verdict is Verdict.PAUSE
    assert rule.judge(report_of("b", 12, -7.0)).verdict is Verdict.CONTINUE
    assert rule.judge_paused("a").reason == "no value at rung 10"
