"""Trials that HyperBand pauses until all of their bracket have reached a rung."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from rlexp.config.keys.trial import Trial
from rlexp.runs.record import Status
from rlexp.search.searchers import OptunaSearcher
from tests.behaviour.rehearsed_sweeps import Copies, Rehearsals, conclusion, rows, saved, statuses, text_of
from tests.behaviour.simulated_sweeps import World, simulated, sweep_of

RATES = {"lr": {"grid_search": [0.4, 0.1, 0.2, 0.3]}}
SEARCH = {"scheduler": "hyperband", "hyperband": {"grace_period": 200, "reduction_factor": 2}}


def rate(trial: Trial, steps: int) -> float:
    return trial.experiment.config.lr * 100


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_paused_trials_continue_or_stop_once_all_have_reported(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, SEARCH), tmp_path, rate, capacity)
    assert simulation.most_running == capacity
    ends = {name.rpartition("lr=")[2]: end for name, end in simulation.ends.items()}
    pruned = Status.PRUNED
    assert ends == {"0.4": (Status.TERMINATED, 1000), "0.3": (pruned, 400), "0.2": (pruned, 200), "0.1": (pruned, 200)}
    best = simulation.search.standings.best()
    assert best is not None
    assert best.varied == {"lr": 0.4}


@pytest.mark.parametrize("capacity", [1, 2, 3, 4, 8])
def test_seeds_of_hyperband_train_no_further_than_the_rung_of_their_end(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, {**SEARCH, "num_seeds": 2}), tmp_path, rate, capacity)
    ends = [
        (name.rpartition("lr=")[2].removesuffix("-sample=1"), steps) for name, (_, steps) in simulation.ends.items()
    ]
    assert sorted(ends) == sorted([("0.1", 200), ("0.2", 200), ("0.3", 400), ("0.4", 1000)] * 2)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_paused_trials_of_a_killed_sweep_stay_paused(num_seeds: int, tmp_path: Path) -> None:
    text = text_of(RATES, {**SEARCH, "num_seeds": num_seeds})
    rehearsals = Rehearsals(tmp_path, rate)
    copies = Copies(tmp_path / "copies", stride=11)
    whole = rehearsals.begin(text, copies.take)
    assert len(copies.paths) > 10
    for copy in copies.paths:
        rehearsals.resume(copy)
        assert conclusion(copy) == conclusion(whole)
        assert {name: len(lines) for name, lines in rows(copy).items()} == {
            name: len(lines) for name, lines in rows(whole).items()
        }


SEEDED = {"scheduler": "asha", "num_seeds": 2, "asha": {"grace_period": 200, "reduction_factor": 2}}


def of_seed(trial: Trial, steps: int) -> float:
    """Return a reward by which the second seed of each configuration looks bad."""
    return rate(trial, steps) - 1000 * trial.sample


@pytest.mark.parametrize("capacity", [1, 2, 3, 8])
def test_seeds_of_a_configuration_are_judged_and_end_together(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, RATES, SEEDED), tmp_path, of_seed, capacity)
    rungs = {rung["at"]: rung for rung in simulation.saved["early_stopping"]}
    assert len(rungs[200]["values"]) == 4, "of four configurations"
    assert set(rungs[200]["values"].values()) == {value - 500 for value in (10, 20, 30, 40)}
    statuses: dict[str, set[Status]] = {}
    for standing in simulation.search.standings.ranked():
        statuses[str(standing.varied["lr"])] = {trial.status for trial in standing.trials}
        ended = {trial.ended_early for trial in standing.trials}
        assert len(ended) == 1
    assert statuses["0.4"] == {Status.TERMINATED}
    assert statuses["0.1"] == {Status.PRUNED}


class EarlyStopWorld(World):
    """The first seed of each configuration reaches its own stop before the first rung."""

    def _report(self, trial: Trial, before: dict[str, Any]) -> None:
        stop = {"timesteps_total": 150 if trial.sample == 0 else 1000}
        super()._report(replace(trial, experiment=trial.experiment.model_copy(update={"stop": stop})), before)


def test_seed_that_ended_before_a_rung_counts_with_its_last_row(tmp_path: Path) -> None:
    def reward(trial: Trial, steps: int) -> float:
        return trial.experiment.config.lr * 10 + steps

    simulation = simulated(sweep_of(tmp_path, RATES, SEEDED), tmp_path, reward, make_world=EarlyStopWorld)
    rungs = {rung["at"]: sorted(rung["values"].values()) for rung in simulation.saved["early_stopping"]}
    assert rungs[200] == [176, 177, 178, 179], "the means of values at 150 and at 200 steps"


def diverging_first_seed(trial: Trial, steps: int) -> float:
    return float("nan") if trial.sample == 0 and trial.experiment.config.lr == 0.4 else rate(trial, steps)


def test_seeds_that_have_not_begun_end_when_another_one_fails(tmp_path: Path) -> None:
    text = text_of(RATES, SEEDED)
    rehearsals = Rehearsals(tmp_path, diverging_first_seed, capacity=1)
    copies = Copies(tmp_path / "copies", stride=11)
    whole = rehearsals.begin(text, copies.take)
    failed = saved(whole)["configurations"][-1]
    assert (failed["point"], failed["tier"]) == ({"lr": 0.4}, "failed")
    assert [(trial["status"], trial["timesteps_total"]) for trial in failed["trials"]] == [
        ("ERROR", 100),
        ("PRUNED", 0),
    ]
    assert statuses(whole).keys() == {
        trial["name"] for each in saved(whole)["configurations"] for trial in each["trials"]
    }
    assert len(copies.paths) > 10
    for copy in copies.paths:
        rehearsals.resume(copy)
        assert statuses(copy) == statuses(whole)


def test_optuna_gets_the_mean_at_the_rung_of_a_pruned_configuration(tmp_path: Path) -> None:
    sampled = {"lr": {"choice": [0.4, 0.1, 0.2, 0.3]}}
    search = {**SEEDED, "searcher": "optuna", "num_samples": 6}
    simulation = simulated(sweep_of(tmp_path, sampled, search), tmp_path, of_seed, 2)
    searcher = simulation.search._state.searcher
    assert isinstance(searcher, OptunaSearcher)
    pruned = [trial for trial in searcher._study.trials if trial.state is TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        lr = trial.params["lr"]
        ((at, value),) = trial.intermediate_values.items()
        assert value == pytest.approx(lr * 100 - 500)
        assert at in (200, 400, 800)


def judged(path: Path) -> list[Any]:
    """Return what was decided; the steps at which a seed learns that its configuration ends may be others."""
    content = conclusion(path)["sweep"]
    statuses = [(each["point"], each["status"]) for each in content["configurations"]]
    return [content["early_stopping"], sorted(statuses, key=repr)]


def test_killed_sweep_with_seeds_ends_as_if_not_killed(tmp_path: Path) -> None:
    text = text_of(RATES, SEEDED)
    rehearsals = Rehearsals(tmp_path, of_seed)
    copies = Copies(tmp_path / "copies", stride=23)
    whole = rehearsals.begin(text, copies.take)
    for copy in copies.paths:
        rehearsals.resume(copy)
        assert judged(copy) == judged(whole)


@pytest.mark.key("search.hyperband.grace_period", "search.hyperband.reduction_factor")
@pytest.mark.parametrize(
    ("group", "rungs"),
    [
        ({}, [37.03703703703704, 111.11111111111111, 333.3333333333333]),
        ({"grace_period": 300}, [300.0, 900.0]),
        ({"grace_period": 300, "reduction_factor": 2}, [300.0, 600.0]),
    ],
)
def test_hyperband_rungs_follow_from_the_first_and_the_factor(
    group: dict[str, Any], rungs: list[float], tmp_path: Path
) -> None:
    search = {"scheduler": "hyperband", "hyperband": group}
    simulation = simulated(sweep_of(tmp_path, RATES, search), tmp_path, rate, capacity=4)
    assert simulation.search.milestones is not None
    at = simulation.search.milestones.after(0)
    found = []
    while at < 1000:
        found.append(at)
        at = simulation.search.milestones.after(at)
    assert found == pytest.approx(rungs)


@pytest.mark.key("search.hyperband.time_attr")
def test_hyperband_time_attr_is_the_unit_of_rungs(tmp_path: Path) -> None:
    search = {"scheduler": "hyperband", "hyperband": {"time_attr": "training_iteration", "grace_period": 3}}
    stop = {"training_iteration": 9, "timesteps_total": 1000}
    simulation = simulated(sweep_of(tmp_path, RATES, search, stop=stop), tmp_path, rate, capacity=4)
    assert sorted(end for status, end in simulation.ends.values() if status is Status.PRUNED) == [300] * 2


@pytest.mark.key("search.asha.brackets")
@pytest.mark.parametrize("brackets", [1, 3])
def test_asha_brackets_of_a_sweep(brackets: int, tmp_path: Path) -> None:
    asha = {"grace_period": 200, "reduction_factor": 2, "brackets": brackets}
    search = {"scheduler": "asha", "num_samples": 40, "asha": asha}
    simulation = simulated(sweep_of(tmp_path, {"lr": {"uniform": [0.1, 1.0]}}, search), tmp_path, rate)
    rungs = simulation.saved["early_stopping"]
    assert {rung["bracket"] for rung in rungs} == set(range(brackets))
    assert min(rung["at"] for rung in rungs if rung["bracket"] == brackets - 1) == 200 * 2 ** (brackets - 1)
    first = sum(len(rung["values"]) for rung in rungs if rung["at"] == 200)
    assert first == 40 if brackets == 1 else 0 < first < 40
