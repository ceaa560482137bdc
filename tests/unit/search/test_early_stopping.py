"""Who ends early: each rule against a slow one that looks at everything again, and by numbers worked by hand."""

from __future__ import annotations

import math
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from rlexp.search.early_stopping import Asha, MedianStopping
from rlexp.search.trial_scheduler import Report, TrialScheduler, Verdict

REPORTS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 40), st.integers(-5, 5).map(float)), max_size=60)


def judged(rule: TrialScheduler, trial: str, time: float, value: float) -> str | None:
    """Return why a rule stops a trial, None where the trial continues."""
    judgement = rule.judge(Report(trial, time, value, {}, None, lambda: False))
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


@given(REPORTS, st.sampled_from([1.5, 2.0, 3.0, 4.0]))
def test_asha_judges_by_rank_among_all_that_reached_the_rung(
    reports: list[tuple[str, int, float]], factor: float
) -> None:
    asha = Asha(4.0, factor)
    rungs: dict[float, dict[str, float]] = {4.0 * factor**number: {} for number in range(20)}
    ended: set[str] = set()
    for trial, time, value in rising(reports):
        if trial in ended:
            continue
        why = judged(asha, trial, time, value)
        expected = False
        for at, values in rungs.items():
            if at <= time and trial not in values:
                values[trial] = value
                better = [other for other in values.values() if other > value]
                expected = expected or len(better) >= max(math.ceil(len(values) / factor), 1)
        assert (why is not None) == expected
        ended |= {trial} if why else set()


def test_asha_continues_the_first_and_the_best_at_a_rung() -> None:
    asha = Asha(10, 3)
    assert judged(asha, "a", 10, -100.0) is None
    assert judged(asha, "b", 11, 5.0) is None
    assert judged(asha, "c", 12, 4.0) == "rank 2 of 3 at rung 10; 1 trial continues"
    assert judged(asha, "d", 12, 4.5) is None, "of four, two go on"
    assert judged(asha, "b", 29, 0.0) is None, "not yet at the next rung"
    assert [rung.at for rung in asha.rungs] == [10]
    rung = {"at": 10, "values": {"a": -100.0, "b": 5.0, "c": 4.0, "d": 4.5}, "ended": ["c"]}
    assert asha.state() == {"early_stopping": [rung]}


def test_asha_equal_values_share_a_rank() -> None:
    asha = Asha(10, 4)
    assert [judged(asha, trial, 10, 1.0) for trial in "abcde"] == [None] * 5


@given(REPORTS, st.integers(1, 3), st.integers(0, 60))
def test_median_rule_compares_best_value_with_running_averages(
    reports: list[tuple[str, int, float]], min_others: int, grace: int
) -> None:
    rule = MedianStopping(grace, min_others)
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
    median_rule = MedianStopping(10, 1)
    assert judged(median_rule, "a", 10, 5.0) is None
    assert judged(median_rule, "b", 10, 9.0) is None
    assert judged(median_rule, "a", 5, 0.0) is None, "judged now, it would be below what b is"
    assert judged(median_rule, "a", 10, 0.0) is None
    assert judged(median_rule, "c", 10, 4.0) == "below the median of 2 others at 10", "of 5 and 9, as before"
    assert judged(median_rule, "b", 20, 9.0) is None
    assert judged(median_rule, "a", 20, 0.0) == "below the median of 1 others at 20", "beyond where it was"
    asha = Asha(10, 2)
    assert judged(asha, "a", 10, 1.0) is None
    assert judged(asha, "b", 10, 2.0) is None
    assert judged(asha, "a", 5, 0.0) is None
    assert judged(asha, "a", 10, 0.0) is None
    assert asha.rungs[0].values == {"a": 1.0, "b": 2.0}


def test_reports_without_a_value_are_not_judged() -> None:
    for rule in (Asha(10, 2), MedianStopping(10, 1)):
        assert judged(rule, "a", 10, 5.0) is None
        assert judged(rule, "b", 10, math.nan) is None
        assert judged(rule, "b", 10, 4.0) is not None, "as the first report at this time"


def test_median_rule_passes_over_trials_without_a_value() -> None:
    rule = MedianStopping(10, 1)
    assert judged(rule, "a", 10, math.nan) is None
    assert judged(rule, "b", 10, 5.0) is None
    assert judged(rule, "c", 10, 4.0) == "below the median of 1 others at 10"
