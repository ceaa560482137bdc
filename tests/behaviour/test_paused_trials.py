"""Trials that HyperBand pauses until all of their bracket have reached a rung.

``search.confirm``: the best configurations again, with other seeds; the surest of them is in ``best.yaml``.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState

from rlexp.compare.comparison import compare_groups
from rlexp.compare.curve import CurveAxis
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.errors import ResumeError
from rlexp.runs.record import Status, read_run_record
from rlexp.search.confirmation import ConfirmedSearch
from rlexp.search.searchers import OptunaSearcher
from tests.lab.sweeps import (
    NEVER,
    Copies,
    Rehearsals,
    World,
    conclusion,
    rows,
    saved,
    simulated,
    statuses,
    sweep_of,
    table,
    text_of,
)

RATES = {"lr": {"grid_search": [0.1, 0.2, 0.3, 0.4]}}
SEARCH = {"num_seeds": 2, "confirm": {"top": 2, "num_seeds": 3}}
FOLDER = "confirmation"


def lucky(trial: Trial, steps: int) -> float:
    """Return a reward by which 0.4 is best, but only with the two seeds of the search."""
    lr = trial.experiment.config.lr
    return lr * 100 if lr < 0.4 or trial.sample < 2 else trial.sample


def best_of(path: Path) -> float:
    return load_plan([path / "best.yaml"]).trials[0].experiment.config.lr


@pytest.mark.key("search.confirm.top", "search.confirm.num_seeds")
@pytest.mark.parametrize("top", [2, 3])
def test_best_configurations_run_again_with_other_seeds(top: int, tmp_path: Path) -> None:
    search = {**SEARCH, "confirm": {"top": top, "num_seeds": 3}}
    path = Rehearsals(tmp_path, lucky).begin(text_of(RATES, search))
    assert [each["point"]["lr"] for each in saved(path)["configurations"]] == [0.4, 0.3, 0.2, 0.1]
    confirmed = saved(path / FOLDER)["configurations"]
    assert [each["point"]["lr"] for each in confirmed] == ([0.3, 0.4] if top == 2 else [0.3, 0.2, 0.4])
    assert {len(each["trials"]) for each in confirmed} == {3}
    seeds = [
        {trial["seed"] for each in found["configurations"] for trial in each["trials"]}
        for found in (saved(path), saved(path / FOLDER))
    ]
    assert [len(each) for each in seeds] == [2, 3]
    assert not seeds[0] & seeds[1]
    assert len(statuses(path)) == 8 + 3 * top
    assert len(table(path)) == 8
    assert len(table(path / FOLDER)) == 3 * top
    assert best_of(path) == 0.3, "0.4 was lucky"
    assert "over 3 seeds" in (path / "best.yaml").read_text()
    assert not (path / FOLDER / "best.yaml").exists()


def test_compare_leaves_out_the_trials_of_the_confirmation(tmp_path: Path) -> None:
    path = Rehearsals(tmp_path, lucky).begin(text_of(RATES, SEARCH))
    found = compare_groups([str(path)], "episode_reward_mean", CurveAxis.STEPS, None)
    assert [(group.name, len(group.trials)) for group in found.groups] == [
        (f"lr={lr}", 2) for lr in (0.4, 0.3, 0.2, 0.1)
    ]
    assert not found.ended_early
    assert "confirmation/trials.csv has them" in found.notices[0].message


def test_interval_decides_and_not_the_mean(tmp_path: Path) -> None:
    def unsteady(trial: Trial, steps: int) -> float:
        return {0.3: (50.0, 50.0, 20.0, 90.0, 70.0), 0.2: (40.0, 40.0, 55.0, 56.0, 57.0)}.get(
            trial.experiment.config.lr, (0.0,) * 5
        )[trial.sample]

    path = Rehearsals(tmp_path, unsteady).begin(text_of(RATES, SEARCH))
    first, second = saved(path / FOLDER)["configurations"]
    assert (first["point"]["lr"], first["score"]) == (0.3, 60)
    assert second["interval"][0] > first["interval"][0]
    assert best_of(path) == 0.2


def test_search_without_a_completed_configuration_confirms_nothing(tmp_path: Path) -> None:
    path = Rehearsals(tmp_path, lambda trial, steps: float("nan")).begin(text_of(RATES, SEARCH))
    assert not (path / FOLDER).exists()


def test_killed_confirmation_ends_as_if_not_killed(tmp_path: Path) -> None:
    rehearsals = Rehearsals(tmp_path, lucky)
    copies = Copies(tmp_path / "copies", stride=31)
    whole = rehearsals.begin(text_of(RATES, SEARCH), copies.take)
    assert sum((copy / FOLDER).exists() for copy in copies.paths) > 1
    for copy in copies.paths:
        rehearsals.resume(copy)
        assert conclusion(copy) == conclusion(whole)
        assert table(copy / FOLDER) == table(whole / FOLDER)


def test_time_budget_holds_for_search_and_confirmation_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = {**SEARCH, "time_budget_s": 1000.0}
    rehearsals = Rehearsals(tmp_path, lucky, stop_after=85)
    path = rehearsals.begin(text_of(RATES, search))
    assert (path / FOLDER).exists()
    for journal in (path / "search.jsonl", path / FOLDER / "search.jsonl"):
        lines = journal.read_text().splitlines()
        journal.write_text("\n".join([*lines[:-1], json.dumps({**json.loads(lines[-1]), "elapsed_s": 600.0})]) + "\n")
    with pytest.raises(ResumeError, match=r"the time of .* has ended"):
        rehearsals.resume(path)
    rehearsals.stop_after = NEVER
    assert rehearsals.resume(path, "search.time_budget_s=2000") == 0
    source = rehearsals.played[-1].search
    assert isinstance(source, ConfirmedSearch)
    assert source.confirmation is not None
    assert source.deadline_s == pytest.approx(time.time() + 800, abs=60)


def test_a_budget_that_ends_as_the_confirmation_begins_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, later_s = ConfirmedSearch._begin, [0.0]

    def late(*arguments: Any, **elapsed: Any) -> Any:
        later_s[0] = 10_000.0
        return begin(*arguments, **elapsed)

    monkeypatch.setattr(ConfirmedSearch, "_begin", late)
    monkeypatch.setattr("rlexp.search.search.time", SimpleNamespace(time=lambda: time.time() + later_s[0]))
    path = Rehearsals(tmp_path, lucky).begin(text_of(RATES, {**SEARCH, "time_budget_s": 1000.0}))
    assert not (path / FOLDER / "trials.csv").read_text().splitlines()[1:]
    assert read_run_record(path).status == "TERMINATED"
    assert best_of(path) == 0.4


def test_resume_refuses_to_search_on_during_the_confirmation(tmp_path: Path) -> None:
    rehearsals = Rehearsals(tmp_path, lucky)
    drawn = {"lr": {"uniform": [0.1, 0.39]}}
    path = rehearsals.begin(text_of(drawn, {**SEARCH, "num_samples": 4}))
    with pytest.raises(ResumeError, match="being confirmed"):
        rehearsals.resume(path, "search.num_samples=6")
    with pytest.raises(ResumeError, match="has ended"):
        rehearsals.resume(path)


PAUSED_RATES = {"lr": {"grid_search": [0.4, 0.1, 0.2, 0.3]}}
HYPERBAND = {"scheduler": "hyperband", "hyperband": {"grace_period": 200, "reduction_factor": 2}}


def rate(trial: Trial, steps: int) -> float:
    return trial.experiment.config.lr * 100


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_paused_trials_continue_or_stop_once_all_have_reported(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, HYPERBAND), tmp_path, rate, capacity)
    assert simulation.most_running == capacity
    ends = {name.rpartition("lr=")[2]: end for name, end in simulation.ends.items()}
    pruned = Status.PRUNED
    assert ends == {"0.4": (Status.TERMINATED, 1000), "0.3": (pruned, 400), "0.2": (pruned, 200), "0.1": (pruned, 200)}
    best = simulation.search.standings.best()
    assert best is not None
    assert best.varied == {"lr": 0.4}


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_seeds_of_hyperband_train_no_further_than_the_rung_of_their_end(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, {**HYPERBAND, "num_seeds": 2}), tmp_path, rate, capacity)
    ends = [
        (name.rpartition("lr=")[2].removesuffix("-sample=1"), steps) for name, (_, steps) in simulation.ends.items()
    ]
    assert sorted(ends) == sorted([("0.1", 200), ("0.2", 200), ("0.3", 400), ("0.4", 1000)] * 2)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_paused_trials_of_a_killed_sweep_stay_paused(num_seeds: int, tmp_path: Path) -> None:
    text = text_of(PAUSED_RATES, {**HYPERBAND, "num_seeds": num_seeds})
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


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_seeds_of_a_configuration_are_judged_and_end_together(capacity: int, tmp_path: Path) -> None:
    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, SEEDED), tmp_path, of_seed, capacity)
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

    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, SEEDED), tmp_path, reward, make_world=EarlyStopWorld)
    rungs = {rung["at"]: sorted(rung["values"].values()) for rung in simulation.saved["early_stopping"]}
    assert rungs[200] == [176, 177, 178, 179], "the means of values at 150 and at 200 steps"


def diverging_first_seed(trial: Trial, steps: int) -> float:
    return float("nan") if trial.sample == 0 and trial.experiment.config.lr == 0.4 else rate(trial, steps)


def test_seeds_that_have_not_begun_end_when_another_one_fails(tmp_path: Path) -> None:
    text = text_of(PAUSED_RATES, SEEDED)
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
    text = text_of(PAUSED_RATES, SEEDED)
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
    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, search), tmp_path, rate, capacity=4)
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
    simulation = simulated(sweep_of(tmp_path, PAUSED_RATES, search, stop=stop), tmp_path, rate, capacity=4)
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
