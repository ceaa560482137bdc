"""SeedGroups: configurations are judged by the mean of their seeds, once all have reached a rung, and end together."""

from __future__ import annotations

import math
from random import Random
from statistics import fmean

import pytest

from rlexp.search.early_stopping import Asha, HyperBand
from rlexp.search.trial_scheduler import Judgement, Milestones, Report, SeedGroups, TrialScheduler, Verdict

CONTINUE, STOP, PAUSE = Verdict.CONTINUE, Verdict.STOP, Verdict.PAUSE


class Reports:
    """Reports of the seeds of configurations to a rule; ``running`` is who runs."""

    def __init__(self, rule: TrialScheduler, *configurations: str, num_seeds: int = 2) -> None:
        assert rule.milestones is not None
        self.groups = SeedGroups(rule, rule.milestones)
        self.running: set[str] = set()
        self.others_wait = False
        for name in configurations:
            seeds = [f"{name}{seed}" for seed in range(num_seeds)]
            self.groups.configured(seeds)
            self.running |= set(seeds)

    def judge(self, trial: str, time: float, value: float, checkpoint: str | None = "some") -> Judgement:
        return self.groups.judge(self._report(trial, time, value, checkpoint))

    def end(self, trial: str, time: float, value: float) -> None:
        """Let a trial reach its stop with a last row."""
        self.groups.record_last(self._report(trial, time, value, None))
        self.groups.ended(trial, failed=False)

    def _report(self, trial: str, time: float, value: float, checkpoint: str | None) -> Report:
        return Report(trial, time, value, {}, checkpoint, lambda: self.others_wait, self.running.__contains__)

    def verdicts(self, *reports: tuple[str, float, float]) -> list[Verdict]:
        return [self.judge(*report).verdict for report in reports]

    def rungs(self) -> dict[float, dict[str, float]]:
        return {rung["at"]: rung["values"] for rung in self.groups.state()["early_stopping"]}


def asha(factor: float = 2) -> Asha:
    return Asha(Milestones("timesteps_total", 100, factor), 1, Random(1))


def test_configuration_is_judged_by_the_mean_once_all_seeds_are_there() -> None:
    reports = Reports(asha(), "a", "b")
    assert reports.verdicts(("a0", 100, 50), ("a1", 100, 30)) == [CONTINUE, CONTINUE]
    assert reports.verdicts(("b0", 100, 10)) == [CONTINUE], "the lowest of all, but its other seed is not there yet"
    assert reports.rungs() == {100: {"a0": 40}}
    judgement = reports.judge("b1", 100, 60)
    assert judgement == Judgement(STOP, "rank 2 of 2 at rung 100; 1 continues", at=100, value=35)
    assert reports.judge("b0", 130, 99, checkpoint=None) == judgement, "they end together"


def test_values_of_a_rung_are_the_first_at_or_after_it() -> None:
    reports = Reports(asha(), "a")
    reports.verdicts(("a0", 103, 1), ("a0", 150, 5), ("a0", 210, 9), ("a1", 120, 3))
    assert reports.rungs() == {100: {"a0": 2}}
    reports.verdicts(("a1", 200, 4))
    assert reports.rungs() == {100: {"a0": 2}, 200: {"a0": 6.5}}


def test_rung_without_a_value_of_every_seed_is_passed_over() -> None:
    reports = Reports(asha(), "a")
    reports.verdicts(("a0", 100, math.nan), ("a1", 100, 3), ("a0", 200, 5), ("a1", 200, 6))
    assert reports.rungs() == {200: {"a0": 5.5}}
    reports = Reports(asha(), "a")
    reports.verdicts(("a0", 100, math.nan), ("a1", 100, 3), ("a0", 150, 5))
    assert reports.rungs() == {100: {"a0": 4}}, "a value that comes late, but before the next rung"


@pytest.mark.parametrize("order", range(30))
def test_asha_of_seeds_equals_asha_of_their_means(order: int) -> None:
    rng = Random(order)
    names = [f"{name}{seed}" for name in "abcdefgh" for seed in range(3)]
    values = {(name, at): rng.randint(0, 20) for name in names for at in (100, 200, 400)}
    reports = Reports(asha(), *"abcdefgh", num_seeds=3)
    slow, stopped, at = asha(), set(), dict.fromkeys(names, 0)
    for name in "abcdefgh":
        slow.configured([f"{name}0"])
    while free := [name for name in names if name[0] not in stopped and at[name] < 400]:
        name = rng.choice(free)
        at[name] = at[name] * 2 or 100
        found = reports.judge(name, at[name], values[name, at[name]]).verdict
        seeds = [f"{name[0]}{seed}" for seed in range(3)]
        verdict = CONTINUE
        if min(at[seed] for seed in seeds) == at[name]:
            mean = fmean(values[seed, at[name]] for seed in seeds)
            report = Report(f"{name[0]}0", at[name], mean, {}, None, lambda: False, lambda name: True)
            verdict = slow.judge(report).verdict
        assert found is verdict
        stopped |= {name[0]} if verdict is STOP else set()
    assert reports.groups.state() == slow.state()


def test_seed_pauses_where_another_one_waits_for_its_place() -> None:
    reports = Reports(asha(), "a", "b")
    reports.running, reports.others_wait = {"a0"}, True
    assert reports.judge("a0", 100, 50).verdict is PAUSE
    assert reports.groups.judge_paused("a1").verdict is CONTINUE, "it has not begun"
    assert reports.groups.judge_paused("a0").yields, "to the seed that it waits for"
    reports.running = {"a1"}
    assert reports.judge("a1", 100, 50).verdict is CONTINUE
    waiting = reports.groups.judge_paused("a0")
    assert (waiting.verdict, waiting.yields) == (CONTINUE, False)
    assert reports.judge("a1", 150, 50, checkpoint=None).verdict is CONTINUE
    assert reports.judge("a1", 200, 50).verdict is PAUSE
    reports.running = {"a0", "a1"}
    assert reports.judge("a0", 400, 50).verdict is CONTINUE, "the other one runs and will come"


def test_failed_seed_ends_the_others_of_its_configuration() -> None:
    reports = Reports(asha(), "a", "b")
    reports.verdicts(("a0", 100, 50))
    reports.groups.ended("a1", failed=True)
    assert reports.judge("a0", 150, 60).reason == "another seed of its configuration failed"
    assert reports.groups.judge_paused("b0").verdict is CONTINUE


def test_seed_that_has_reached_its_stop_counts_with_its_last_value() -> None:
    reports = Reports(asha(), "a", "b")
    reports.verdicts(("a0", 100, 8), ("a1", 100, 8), ("b0", 100, 9), ("b1", 100, 9), ("a0", 200, 7), ("a1", 200, 7))
    reports.end("b0", 150, 2)
    assert reports.judge("b1", 200, 3) == Judgement(STOP, "rank 2 of 2 at rung 200; 1 continues", at=200, value=2.5)


def test_late_first_value_of_a_seed_that_has_ended_counts_for_its_own_rung_only() -> None:
    reports = Reports(asha(), "a")
    reports.end("a0", 400, 9)
    reports.verdicts(("a1", 100, 1), ("a1", 200, 2), ("a1", 400, 3))
    assert reports.rungs() == {400: {"a0": 6}}


def test_seed_that_reaches_its_stop_in_its_first_row_counts() -> None:
    rule = HyperBand(Milestones("timesteps_total", 100, 2, writes_checkpoint=True), 1, 2)
    reports = Reports(rule, "a", "b")
    reports.verdicts(("b0", 100, 5), ("b1", 100, 5))
    reports.end("a0", 60, 9)
    assert reports.judge("a1", 100, 9).verdict is CONTINUE
    assert reports.rungs() == {100: {"a0": 9, "b0": 5}}
    assert reports.groups.judge_paused("b0").verdict is STOP


def test_hyperband_pauses_and_ends_all_seeds_of_a_configuration() -> None:
    rule = HyperBand(Milestones("timesteps_total", 100, 2, writes_checkpoint=True), 1, 2)
    reports = Reports(rule, "a", "b")
    assert reports.verdicts(("a0", 100, 1)) == [PAUSE], "also while the other seed runs"
    assert reports.groups.judge_paused("a0").verdict is PAUSE
    assert reports.verdicts(("a1", 100, 3)) == [PAUSE]
    assert reports.judge("a1", 110, 1, checkpoint=None).verdict is CONTINUE, "without a checkpoint it cannot pause"
    assert [reports.groups.judge_paused(name).verdict for name in ("a0", "a1", "b0")] == [PAUSE, PAUSE, CONTINUE]
    assert reports.verdicts(("b0", 100, 5), ("b1", 100, 5)) == [PAUSE, CONTINUE]
    assert [reports.groups.judge_paused(name).verdict for name in ("a0", "a1", "b0")] == [STOP, STOP, CONTINUE]
