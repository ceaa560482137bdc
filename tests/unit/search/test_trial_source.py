"""When the trials of a run are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.search.trial_source import FixedTrials

MakeTrial = Callable[..., Trial]


def given(source: FixedTrials) -> list[int]:
    """Return the numbers of the trials that a source gives now."""
    found = []
    while (trial := source.next()) is not None:
        found.append(trial.index)
    return found


@pytest.mark.parametrize(("cpus", "first"), [(1.0, [0]), (2.0, [0, 1]), (0.3, [0]), (9.0, [0, 1, 2, 3])])
def test_fixed_trials_are_given_in_order_while_there_is_room(
    make_trial: MakeTrial, cpus: float, first: list[int]
) -> None:
    trials = [make_trial(index, num_workers=0, num_cpus_for_driver=1.0) for index in range(4)]
    source = FixedTrials(trials, cpus)
    assert given(source) == first
    for trial in trials[:3]:
        source.on_end(trial, True, None)
    assert given(source)[:1] == ([] if len(first) == 4 else [len(first)])


def test_fixed_trial_waits_for_larger_one_before_it(make_trial: MakeTrial) -> None:
    small, large, last = (
        make_trial(index, num_workers=0, num_cpus_for_driver=cpus) for index, cpus in enumerate([0.5, 2.0, 0.5])
    )
    source = FixedTrials([small, large, last], cpus=2.0)
    assert given(source) == [0]
    assert not source.finished
    source.on_end(small, True, None)
    assert given(source) == [1]
    source.on_end(large, True, None)
    assert given(source) == [2]
    assert source.finished


def test_rounding_takes_no_room(make_trial: MakeTrial) -> None:
    trials = [make_trial(index, num_workers=0, num_cpus_for_driver=0.1) for index in range(11)]
    assert len(given(FixedTrials(trials, cpus=1.0))) == 10
