"""Who ends early: each rule against a slow one that looks at everything again, and by numbers worked by hand.

HyperBand: its brackets by the numbers of the paper, and who continues at each rung against a slow reference.

Milestones: which one a time has passed, and which one is next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.search.early_stopping import Asha, HyperBand, MedianStopping
from rlexp.search.trial_scheduler import Milestones, Report, TrialScheduler, Verdict

REPORTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.integers(-5, 5).map(float)), max_size=60)


def asha_of(first: float, factor: float, brackets: int = 1) -> Asha:
    return Asha(Milestones("timesteps_total", first, factor), brackets, Random(1))


def median_of(grace: float, min_others: int) -> MedianStopping:
    return MedianStopping(Milestones("timesteps_total", max(grace, 1)), min_others)


def report_of(trial: str, time: float, value: float) -> Report:
    return Report(trial, time, value, {}, None, lambda: False, lambda name: True)


def judged(rule: TrialScheduler, trial: str, time: float, value: float) -> str | None:
    """Return why a rule stops a trial, None where the trial continues."""
    rule.configured([trial])
    judgement = rule.judge(report_of(trial, time, value))
    assert (judgement.verdict is Verdict.STOP) == (judgement.reason is not None)
    return judgement.reason


def rising(reports: list[tuple[str, int, float]]) -> list[tuple[str, int, float]]:
    """Return reports whose times, gaps before, only grow for each trial."""
    times: dict[str, int] = {}
    found = []
    for trial, gap, value in reports:
        times[trial] = times.get(trial, 0) + gap
        found.append((trial, times[trial], value))
    return found


class SlowAsha:
    """The rule as a list of all that was reported, looked at anew each time."""

    def __init__(self, first: float, factor: float) -> None:
        self.rungs: dict[float, dict[str, float]] = {first * factor**number: {} for number in range(20)}
        self.factor = factor

    def stops(self, trial: str, time: float, value: float) -> bool:
        passed = [at for at in self.rungs if at <= time]
        counted = [at for at, values in self.rungs.items() if trial in values]
        if math.isnan(value) or not passed or max(passed) in counted:
            return False
        values = self.rungs[max(passed)]
        values[trial] = value
        better = [other for other in values.values() if other > value]
        return len(better) >= max(math.ceil(len(values) / self.factor), 1)


@given(REPORTS, st.sampled_from([1.5, 2.0, 3.0, 4.0]))
def test_asha_judges_by_rank_among_all_that_reached_the_rung(
    reports: list[tuple[str, int, float]], factor: float
) -> None:
    asha, slow = asha_of(4.0, factor), SlowAsha(4.0, factor)
    ended: set[str] = set()
    for trial, time, value in rising(reports):
        if trial not in ended:
            known = math.nan if value == -5.0 else value
            why = judged(asha, trial, time, known)
            assert (why is not None) == slow.stops(trial, time, known)
            ended |= {trial} if why else set()


def test_asha_continues_the_first_and_the_best_at_a_rung() -> None:
    asha = asha_of(10, 3)
    assert judged(asha, "a", 10, -100.0) is None
    assert judged(asha, "b", 11, 5.0) is None
    assert judged(asha, "c", 12, 4.0) == "rank 2 of 3 at rung 10; 1 continues"
    assert judged(asha, "d", 12, 4.5) is None, "of four, two continue"
    assert judged(asha, "b", 29, 0.0) is None, "not yet at the next rung"
    rung = {"at": 10, "bracket": 0, "values": {"a": -100.0, "b": 5.0, "c": 4.0, "d": 4.5}, "ended": ["c"]}
    assert asha.state() == {"early_stopping": [rung]}


def test_asha_late_value_counts_for_the_highest_rung_only() -> None:
    asha = asha_of(10, 2)
    for trial, value in (("a", 1.0), ("b", 2.0)):
        assert judged(asha, trial, 10, value) is None
    assert judged(asha, "late", 25, 0.5) is None, "the first at rung 20"
    assert [(rung["at"], list(rung["values"])) for rung in asha.state()["early_stopping"]] == [
        (10, ["a", "b"]),
        (20, ["late"]),
    ]


def test_asha_brackets_begin_one_rung_later_each() -> None:
    asha = asha_of(10, 2, brackets=3)
    names = [f"trial {number}" for number in range(700)]
    for name in names:
        asha.configured([name])
    for at in (10, 20, 40):
        for name in names:
            asha.judge(report_of(name, at, 1.0))
    rungs = [(rung["bracket"], rung["at"], len(rung["values"])) for rung in asha.state()["early_stopping"]]
    assert [rung[:2] for rung in rungs] == [(0, 10), (0, 20), (0, 40), (1, 20), (1, 40), (2, 40)]
    shares = {bracket: count / len(names) for bracket, _, count in rungs}
    assert shares == pytest.approx({0: 4 / 10, 1: 3 / 10, 2: 3 / 10}, abs=0.06), "of weights 4, 2 * 3 / 2 and 3"


def test_asha_equal_values_share_a_rank() -> None:
    asha = asha_of(10, 4)
    assert [judged(asha, trial, 10, 1.0) for trial in "abcde"] == [None] * 5


@given(REPORTS, st.integers(1, 3), st.integers(0, 60))
def test_median_rule_compares_best_value_with_running_averages(
    reports: list[tuple[str, int, float]], min_others: int, grace: int
) -> None:
    rule = median_of(grace, min_others)
    seen: dict[str, list[tuple[int, float]]] = {}
    for trial, time, value in rising(reports):
        seen.setdefault(trial, []).append((time, value))
        averages = []
        for other, rows in seen.items():
            until = [each for at, each in rows if at <= time] or [rows[0][1]]
            if other != trial and rows[-1][0] >= time:
                averages.append(sum(until) / len(until))
        best = max(each for _, each in seen[trial])
        expected = time >= grace and len(averages) >= min_others and best < median(averages) - 1e-9
        why = judged(rule, trial, time, value)
        if abs(best - median(averages or [best])) > 1e-9:
            assert (why is not None) == expected


def test_judgements_are_final_for_a_restarted_trial() -> None:
    median_rule = median_of(10, 1)
    assert judged(median_rule, "a", 10, 5.0) is None
    assert judged(median_rule, "b", 10, 9.0) is None
    assert judged(median_rule, "a", 5, 0.0) is None, "judged now, it would be below what b is"
    assert judged(median_rule, "a", 10, 0.0) is None
    assert judged(median_rule, "c", 10, 4.0) == "below the median of 2 others at 10", "of 5 and 9, as before"
    assert judged(median_rule, "b", 20, 9.0) is None
    assert judged(median_rule, "a", 20, 0.0) == "below the median of 1 others at 20", "beyond where it was"
    asha = asha_of(10, 2)
    assert judged(asha, "a", 10, 1.0) is None
    assert judged(asha, "b", 10, 2.0) is None
    assert judged(asha, "a", 5, 0.0) is None
    assert judged(asha, "a", 10, 0.0) is None
    assert asha.state()["early_stopping"][0]["values"] == {"a": 1.0, "b": 2.0}


def test_reports_without_a_value_are_not_judged() -> None:
    for rule in (asha_of(10, 2), median_of(10, 1)):
        assert judged(rule, "a", 10, 5.0) is None
        assert judged(rule, "b", 10, math.nan) is None
        assert judged(rule, "b", 10, 4.0) is not None, "as the first report at this time"


def test_median_rule_passes_over_trials_without_a_value() -> None:
    rule = median_of(10, 1)
    assert judged(rule, "a", 10, math.nan) is None
    assert judged(rule, "b", 10, 5.0) is None
    assert judged(rule, "c", 10, 4.0) == "below the median of 1 others at 10"


def hyperband_of(first: float, factor: float, rungs: int, count: int) -> HyperBand:
    return HyperBand(Milestones("timesteps_total", first, factor, writes_checkpoint=True), rungs, count)


def hyperband_report_of(trial: str, time: float, value: float) -> Report:
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
        report = hyperband_report_of(name, self.at[name], self.values[name])
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
    assert rule.judge(hyperband_report_of("a", 10, 1.0)).verdict is Verdict.PAUSE
    assert rule.judge(hyperband_report_of("b", 10, 2.0)).verdict is Verdict.PAUSE
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
        assert rule.judge(hyperband_report_of(name, 10, values[name])).verdict is Verdict.PAUSE
    rule.judge(hyperband_report_of("d", 10, values["d"]))
    assert [rule.judge_paused(name).verdict is Verdict.STOP for name in "abcd"] == [True, False, True, False]
    rule = hyperband_of(10, 2, 2, 4)
    for name in "abcd":
        rule.configured([name])
    for name in "abc":
        rule.judge(hyperband_report_of(name, 10, values[name]))
    rule.ended("b", failed=True)
    rule.judge(hyperband_report_of("d", 10, values["d"]))
    assert [rule.judge_paused(name).verdict is Verdict.STOP for name in "acd"] == [True, True, False]


def test_member_without_a_value_ends_where_others_have_one() -> None:
    rule = hyperband_of(10, 2, 1, 2)
    for name in ("a", "b"):
        rule.configured([name])
    assert rule.judge(hyperband_report_of("a", 10, math.nan)).verdict is Verdict.PAUSE
    assert rule.judge(hyperband_report_of("b", 12, -7.0)).verdict is Verdict.CONTINUE
    assert rule.judge_paused("a").reason == "no value at rung 10"


@pytest.mark.parametrize(
    ("time", "passed", "after"), [(0, 0, 100), (99.9, 0, 100), (100, 100, 200), (250, 200, 300), (300, 300, 400)]
)
def test_milestones_without_factor_are_multiples(time: float, passed: float, after: float) -> None:
    milestones = Milestones("timesteps_total", 100)
    assert (milestones.passed_by(time), milestones.after(time)) == (passed, after)


@given(st.integers(1, 10**6), st.sampled_from([1.5, 2.0, 3.0, 4.0, 10.0]), st.integers(0, 15))
def test_milestones_with_factor_grow_geometrically(first: int, factor: float, number: int) -> None:
    milestones, at = Milestones("timesteps_total", first, factor), first * factor**number
    assert milestones.passed_by(at) == at
    assert milestones.after(at) == first * factor ** (number + 1)
    assert milestones.passed_by(at * 0.999) == (first * factor ** (number - 1) if number else 0)
    assert milestones.after(at * 0.999) == at
    assert milestones.passed(at * 0.999, at)
    assert not milestones.passed(at, at * 1.001)
