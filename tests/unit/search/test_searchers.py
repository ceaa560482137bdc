"""Searchers: what each suggests, and that what failed is never a recommendation.

When the trials of a run are given.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Sweep
from rlexp.errors import UsageError
from rlexp.files import to_json
from rlexp.search.optuna import require_sampler
from rlexp.search.searchers import OptunaSearcher, make_searcher
from rlexp.search.trial_source import FixedTrials, Outcome, OutcomeStatus
from tests.lab.sweeps import sweep_of

SPACE = {
    "lr": {"loguniform": [1e-4, 1e-1]},
    "n_step": {"randint": [1, 9]},
    "buffer_size": {"lograndint": [1000, 9000]},
    "gamma": {"quniform": [0.9, 0.99, 0.01]},
    "train_batch_size": {"quniform": [8, 64, 8]},
    "hiddens": {"choice": [[8], [16]]},
}


def test_optuna_points_are_in_the_space(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SPACE, {"searcher": "optuna", "num_samples": 30})
    searcher = make_searcher(sweep)
    for configuration in range(30):
        point = searcher.suggest(configuration)
        assert point is not None
        (trial,) = sweep.trials(configuration, point)
        config = trial.experiment.config
        assert isinstance(config, DQNConfig)
        assert config.n_step in range(1, 9)
        assert config.train_batch_size % 8 == 0
        assert round(config.gamma * 100, 6).is_integer()
        searcher.record(configuration, Outcome(OutcomeStatus.FINISHED, 1.0, 10))


@pytest.mark.parametrize("status", [OutcomeStatus.FAILED, OutcomeStatus.PRUNED])
def test_optuna_avoids_points_that_did_not_finish(status: OutcomeStatus, tmp_path: Path) -> None:
    search = {"searcher": "optuna", "num_samples": 60, "optuna": {"n_startup_trials": 10}}
    searcher = OptunaSearcher(sweep_of(tmp_path, {"lr": {"uniform": [0.1, 1.0]}}, search))
    rates = []
    for configuration in range(60):
        point = searcher.suggest(configuration)
        assert point is not None
        rates.append(point["lr"])
        bad = point["lr"] > 0.5
        value = None if status is OutcomeStatus.FAILED else -9.0
        searcher.record(configuration, Outcome(status, value, 5) if bad else Outcome(OutcomeStatus.FINISHED, 0.0, 10))
    assert sum(rate > 0.5 for rate in rates[30:]) < 15, "recorded as failures, they would be nearly all of the 30"


def test_missing_optuna_is_refused_with_its_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    require_sampler(sweep_of(tmp_path, SPACE))
    with pytest.raises(UsageError, match="Optuna") as caught:
        require_sampler(sweep_of(tmp_path, SPACE, {"searcher": "optuna"}))
    assert caught.value.hint == "pip install 'rlexp[sweep]'"


SIX_POINTS = {"n_step": {"randint": [1, 4]}, "double_q": {"choice": [True, False]}}


def same_points(one: Iterable[Mapping[str, Any]], other: Iterable[Mapping[str, Any]]) -> bool:
    return sorted(map(to_json, one)) == sorted(map(to_json, other))


def test_random_points_without_repetition_are_the_draws_of_their_streams(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SPACE, {"num_samples": 20})
    draws = [{key: domain.draw(rng) for key, domain in sweep.space.domains.items()} for rng in streams(sweep, 20)]
    assert sweep.planned_points() == tuple(draws)


def streams(sweep: Sweep, count: int) -> Iterator[Random]:
    return (sweep.rng("point", number) for number in range(count))


def test_more_samples_keep_the_first_points(tmp_path: Path) -> None:
    few, many = (sweep_of(tmp_path, SIX_POINTS, {"num_samples": count}).planned_points() for count in (3, 20))
    assert few is not None
    assert many is not None
    assert many[:3] == few


def test_random_points_beside_a_grid_are_new_for_each_of_its_points(tmp_path: Path) -> None:
    config = {"n_step": {"grid_search": [1, 2, 2]}, "double_q": {"choice": [True, False]}}
    sweep = sweep_of(tmp_path, config, {"num_samples": 3})
    assert sweep.number_of_configurations == 4
    assert same_points(
        sweep.planned_points() or (), [{"n_step": n, "double_q": d} for n in (1, 2) for d in (True, False)]
    )


def test_population_may_have_the_same_point_twice(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, {"double_q": {"choice": [True, False]}}, {"num_samples": 8, "scheduler": "pbt"})
    assert len(sweep.planned_points() or ()) == sweep.number_of_configurations == 8


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
