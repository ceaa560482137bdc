"""``search.confirm``: the best configurations again, with other seeds; the surest of them is in ``best.yaml``."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rlexp.compare.comparison import compare_groups
from rlexp.compare.curve import Axis
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.errors import ResumeError
from rlexp.search.confirmation import ConfirmedSearch
from tests.behaviour.rehearsed_sweeps import Copies, Rehearsals, conclusion, saved, statuses, table, text_of
from tests.behaviour.simulated_sweeps import NEVER

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
    found = compare_groups([str(path)], "episode_reward_mean", Axis.STEPS, None)
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


def test_resume_refuses_to_search_on_during_the_confirmation(tmp_path: Path) -> None:
    rehearsals = Rehearsals(tmp_path, lucky)
    drawn = {"lr": {"uniform": [0.1, 0.39]}}
    path = rehearsals.begin(text_of(drawn, {**SEARCH, "num_samples": 4}))
    with pytest.raises(ResumeError, match="being confirmed"):
        rehearsals.resume(path, "search.num_samples=6")
    with pytest.raises(ResumeError, match="has ended"):
        rehearsals.resume(path)
