"""No point of a space is tried twice: its trials would have the same seeds, so they would be exact copies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.files import to_json
from rlexp.search.searchers import OptunaSearcher
from tests.behaviour.rehearsed_sweeps import Copies, Rehearsals, conclusion, journal, text_of
from tests.behaviour.simulated_sweeps import Simulation, simulated, sweep_of

SIX_POINTS = {"n_step": {"randint": [1, 4]}, "double_q": {"choice": [True, False]}}
OPTUNA = {"searcher": "optuna", "num_samples": 20, "optuna": {"n_startup_trials": 2}}


def reward(trial: Trial, steps: int) -> float:
    """The best point is the first one that a list of them has, so that Optuna returns to it."""
    return steps * (10.0 - trial.varied["n_step"] if trial.varied["double_q"] else -1.0)


def failing(trial: Trial, steps: int) -> float:
    return float("nan") if trial.varied["n_step"] == 2 else reward(trial, steps)


def tried(simulation: Simulation) -> Counter[str]:
    return Counter(to_json(each["point"]) for each in simulation.saved["configurations"])


@pytest.mark.key("search.searcher", "search.num_samples")
@pytest.mark.parametrize("searcher", ["random", "optuna"])
@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("kept", [reward, failing])
def test_each_point_is_tried_once(searcher: str, capacity: int, kept: Any, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SIX_POINTS, {**OPTUNA, "searcher": searcher})
    simulation = simulated(sweep, tmp_path, kept, capacity)
    assert len(tried(simulation)) == 6
    assert set(tried(simulation).values()) == {1}
    assert len((simulation.path / "trials.csv").read_text().splitlines()) == 7
    assert simulation.search.is_complete


@pytest.mark.parametrize("capacity", [1, 4])
def test_repeated_suggestion_gets_the_outcome_of_its_point(capacity: int, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SIX_POINTS, OPTUNA)
    simulation = simulated(sweep, tmp_path, failing, capacity)
    searcher = simulation.search._state.searcher
    assert isinstance(searcher, OptunaSearcher)
    trials = searcher._study.trials
    assert len(trials) > 6, "Optuna does not avoid what it has tried"
    outcomes = {(to_json(trial.params), trial.state.name, trial.value) for trial in trials}
    assert len(outcomes) == 6
    assert {state for _, state, _ in outcomes} == {"COMPLETE", "PRUNED"}
    assert any("Optuna suggested" in note for note in simulation.search.drain_notes())


def test_optuna_repeats_no_point_that_differs_by_rounding_only(tmp_path: Path) -> None:
    """Numbers have four digits: this range has 11 of them."""
    sweep = sweep_of(tmp_path, {"gamma": {"uniform": [0.98, 0.981]}}, OPTUNA)
    simulation = simulated(sweep, tmp_path, lambda trial, steps: trial.varied["gamma"] * steps)
    assert set(tried(simulation).values()) == {1}
    assert len(tried(simulation)) == 11


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_resumed_sweep_tries_each_point_once(searcher: str, tmp_path: Path) -> None:
    copies, rehearsals = Copies(tmp_path / "copies", 17, 5), Rehearsals(tmp_path, reward)
    whole = rehearsals.begin(text_of(SIX_POINTS, {**OPTUNA, "searcher": searcher}), copies.take)
    points = {to_json(event["point"]) for event in journal(whole) if event["event"] == "configured"}
    assert len(copies.paths) > 5
    for path in copies.paths:
        rehearsals.resume(path)
        after = [to_json(event["point"]) for event in journal(path) if event["event"] == "configured"]
        assert len(after) == 6
        assert set(after) == points
        assert searcher == "optuna" or conclusion(path) == conclusion(whole)
