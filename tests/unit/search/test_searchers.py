"""Searchers: what each suggests, and that what failed is never a recommendation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import UsageError
from rlexp.search.optuna_searcher import OptunaSearcher, require_sweep_extra
from rlexp.search.outcome import Outcome, OutcomeStatus
from rlexp.search.searchers import make_searcher
from tests.behaviour.simulated_sweeps import sweep_of

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
    assert searcher.suggest(30) is None


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
    require_sweep_extra(sweep_of(tmp_path, SPACE))
    with pytest.raises(UsageError, match="Optuna") as caught:
        require_sweep_extra(sweep_of(tmp_path, SPACE, {"searcher": "optuna"}))
    assert caught.value.hint == "pip install 'rlexp[sweep]'"
