"""Studies of Optuna in a storage: what their readers see, how sweeps join them, and what a resumed sweep finds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest

from rlexp.config.keys.trial import Trial
from rlexp.errors import ConfigError
from rlexp.search.searchers import OptunaSearcher
from rlexp.search.shared_study import StudyMember
from rlexp.search.trial_source import Outcome, OutcomeStatus
from tests.lab.sweeps import (
    ASHA,
    NEVER,
    Copies,
    Rehearsals,
    Simulation,
    curve,
    journal,
    saved,
    simulated,
    sweep_of,
    text_of,
)

SPACE = {"lr": {"loguniform": [0.01, 1.0]}, "hiddens": {"choice": [[8], [16]]}, "double_q": {"choice": [True, False]}}
SIX_POINTS = {"n_step": {"randint": [1, 4]}, "double_q": {"choice": [True, False]}}
STORAGES = ["sqlite:///study.db", "study.log"]


def search_of(storage: str, count: int = 8) -> dict[str, Any]:
    return {"searcher": "optuna", "num_samples": count, "optuna": {"storage": storage, "n_startup_trials": 3}}


def reward(trial: Trial, steps: int) -> float:
    return trial.experiment.config.lr * 100 + steps / 100


def study_in(folder: Path, storage: str = STORAGES[0], name: str = "small") -> optuna.Study:
    if "://" in storage:
        return optuna.load_study(study_name=name, storage=f"sqlite:///{folder}/study.db")
    backend = optuna.storages.journal.JournalFileBackend(str(folder / storage))
    return optuna.load_study(study_name=name, storage=optuna.storages.JournalStorage(backend))


def joined(
    folder: Path, name: str, search: dict[str, Any], config: dict[str, Any] = SPACE, seed: int = 3
) -> Simulation:
    """Run a sweep from a directory of its own, with a storage in ``folder``."""
    (folder / name).mkdir()
    storage = search["optuna"]["storage"]
    place = storage.replace("///", f"///{folder}/") if "://" in storage else str(folder / storage)
    search = {**search, "optuna": {**search["optuna"], "storage": place}}
    return simulated(sweep_of(folder / name, {**config, "seed": seed}, search), folder / name, reward)


@pytest.mark.key("search.optuna.storage")
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("mode", ["max", "min"])
def test_study_shows_points_values_and_trials(storage: str, mode: str, tmp_path: Path) -> None:
    search = {**search_of(storage), "num_seeds": 2, "mode": mode, "metric": "episode_len_mean", **ASHA}
    simulation = simulated(sweep_of(tmp_path, SPACE, search), tmp_path, reward)
    study = study_in(tmp_path, storage)
    assert study.direction.name == ("MAXIMIZE" if mode == "max" else "MINIMIZE")
    assert study.metric_names == ["episode_len_mean"]
    by_number = {each["configuration"]: each for each in simulation.saved["configurations"]}
    assert len(study.trials) == len(by_number) == 8
    for trial in study.trials:
        configuration = by_number[trial.user_attrs["configuration"]]
        assert trial.params["hiddens"] == json.dumps(configuration["point"]["hiddens"])
        assert trial.params["double_q"] is configuration["point"]["double_q"]
        assert float(f"{trial.params['lr']:.4g}") == configuration["point"]["lr"]
        assert trial.user_attrs["trials"] == [each["name"] for each in configuration["trials"]]
        assert trial.user_attrs["seeds"] == [each["seed"] for each in configuration["trials"]]
        assert trial.user_attrs["run_directory"] == str(simulation.path)
        if trial.state.name == "COMPLETE":
            assert trial.value == configuration["score"] < 0, "the metric as its user knows it"
        else:
            assert (trial.state.name, configuration["status"]) == ("PRUNED", "PRUNED")
            assert len(trial.intermediate_values) == 1
            assert all(value < 0 for value in trial.intermediate_values.values())
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED"}


@pytest.mark.key("search.optuna.study_name")
def test_study_has_the_name_of_the_key_or_of_the_experiment(tmp_path: Path) -> None:
    search = search_of(STORAGES[0], 2)
    simulated(sweep_of(tmp_path, SPACE, search), tmp_path, reward)
    named = {**search, "optuna": {**search["optuna"], "study_name": "other"}}
    simulated(sweep_of(tmp_path, SPACE, named), tmp_path, reward)
    assert len(study_in(tmp_path).trials) == len(study_in(tmp_path, name="other").trials) == 2


@pytest.mark.parametrize("storage", STORAGES)
def test_second_sweep_sees_the_trials_of_the_first_and_ranks_its_own(storage: str, tmp_path: Path) -> None:
    first = joined(tmp_path, "first", search_of(storage))
    second = joined(tmp_path, "second", search_of(storage, 5))
    assert len(study_in(tmp_path, storage).trials) == 13
    assert len(first.saved["configurations"]) == 8
    assert len(second.saved["configurations"]) == 5
    points = [json.dumps(each["point"]) for run in (first, second) for each in run.saved["configurations"]]
    assert len(set(points)) == 13, "the second does not draw what the first has drawn"
    searcher = second.search._state.searcher
    assert isinstance(searcher, OptunaSearcher)
    assert len(searcher._study.trials) == 13


def test_sweeps_of_one_study_share_a_small_space(tmp_path: Path) -> None:
    first = joined(tmp_path, "first", search_of(STORAGES[1], 4), SIX_POINTS)
    second = joined(tmp_path, "second", search_of(STORAGES[1], 4), SIX_POINTS)
    assert (len(first.saved["configurations"]), len(second.saved["configurations"])) == (4, 2)
    assert second.search.is_complete
    other_seed = joined(tmp_path, "third", search_of(STORAGES[1], 6), SIX_POINTS, seed=4)
    assert len(other_seed.saved["configurations"]) == 6, "its trials are no copies"
    for trial in study_in(tmp_path, STORAGES[1]).trials:
        assert trial.state.is_finished()


@pytest.mark.parametrize(
    ("config", "search", "keys", "said"),
    [
        (SPACE, {"mode": "min"}, {}, "it does not minimize one value; it has maximize"),
        (SPACE, {"metric": "episode_len_mean"}, {}, "its metric is episode_reward_mean"),
        ({**SPACE, "lr": {"loguniform": [0.001, 1.0]}}, {}, {}, "its lr is FloatDistribution(high=1.0, log=True"),
        ({**SPACE, "n_step": 2}, {}, {}, "n_step 1 → 2"),
        (SPACE, {}, {"stop": {"timesteps_total": 2000}}, "stop.timesteps_total 1000.0 → 2000.0"),
    ],
)
def test_study_of_something_else_is_refused_before_anything_starts(
    config: dict[str, Any], search: dict[str, Any], keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    Rehearsals(tmp_path, curve).begin(text_of(SPACE, search_of(storage, 3)))
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(ConfigError) as caught:
        Rehearsals(tmp_path, curve).begin(text_of(config, {**search_of(storage, 3), **search}, **keys))
    (problem,) = caught.value.problems
    assert "study 'small' of something else" in problem.message
    assert said in problem.message
    assert re.search(r"\.yaml:\d+:\d+$", problem.where), "at the line of storage"
    assert problem.hint == "write another search.optuna.study_name"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("storage", STORAGES)
def test_resumed_sweep_continues_its_trials_of_the_study(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rehearsals = Rehearsals(tmp_path, curve, stop_after=13)
    path = rehearsals.begin(text_of(SPACE, search_of(storage, 6)))
    running = {trial.number for trial in study_in(tmp_path, storage).trials if trial.state.name == "RUNNING"}
    assert len(running) == 3, "two that run, and the next one"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    rehearsals.stop_after = NEVER
    assert rehearsals.resume(path) == 0
    trials = study_in(tmp_path, storage).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 6
    scores = {each["configuration"]: each["score"] for each in saved(path)["configurations"]}
    assert {trial.user_attrs["configuration"]: trial.value for trial in trials} == scores


def test_sweep_that_is_killed_at_any_moment_is_resumed_with_its_study(tmp_path: Path) -> None:
    storage = tmp_path / "study.log"
    folder = tmp_path / "copies"
    copies, rehearsals = Copies(folder, 29, 11), Rehearsals(tmp_path, curve)

    def copy(run: Path) -> None:
        count = len(copies.paths)
        copies.take(run)
        if len(copies.paths) > count:
            shutil.copy(storage, copies.paths[-1].with_suffix(".log"))

    rehearsals.begin(text_of(SIX_POINTS, {**search_of(str(storage)), **ASHA}), copy)
    assert len(copies.paths) > 5
    for path in copies.paths:
        shutil.copy(path.with_suffix(".log"), storage)
        before = [event["point"] for event in journal(path) if event["event"] == "configured"]
        rehearsals.resume(path)
        after = [event["point"] for event in journal(path) if event["event"] == "configured"]
        assert after[: len(before)] == before
        assert len({json.dumps(point) for point in after}) == len(after) == 6
        trials = study_in(tmp_path, "study.log").trials
        assert all(trial.state.is_finished() for trial in trials if "sweep" in trial.user_attrs)
        ended = [trial.user_attrs for trial in trials if trial.state.name in ("COMPLETE", "PRUNED")]
        own = [attributes["configuration"] for attributes in ended if "same_as" not in attributes]
        assert sorted(own) == list(range(6)), "each configuration is there once"


def test_resumed_sweep_writes_a_study_that_was_deleted_again(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    rehearsals = Rehearsals(tmp_path, curve, stop_after=13)
    path = rehearsals.begin(text_of(SPACE, search_of(storage, 4)))
    (tmp_path / "study.db").unlink()
    rehearsals.stop_after = NEVER
    assert rehearsals.resume(path) == 0
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["COMPLETE"] * 4


def searcher_of(tmp_path: Path, member: str, seed: int = 3) -> OptunaSearcher:
    sweep = sweep_of(tmp_path, {**SPACE, "seed": seed}, search_of(STORAGES[0]))
    return OptunaSearcher(sweep, StudyMember(member, tmp_path / member, tmp_path))


def test_trials_of_a_killed_sweep_fail_when_another_one_uses_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = searcher_of(tmp_path, "killed")
    point = killed.suggest(0)
    assert point is not None
    searcher_of(tmp_path, "soon")
    assert study_in(tmp_path).trials[0].state.name == "RUNNING", "it may run still"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    searcher_of(tmp_path, "late")
    assert study_in(tmp_path).trials[0].state.name == "FAIL"
    resumed = searcher_of(tmp_path, "killed")
    resumed.restore(0, point)
    resumed.record(0, Outcome(OutcomeStatus.FINISHED, 7.0, 10))
    assert [(trial.state.name, trial.value) for trial in study_in(tmp_path).trials] == [
        ("FAIL", None),
        ("COMPLETE", 7.0),
    ]


def test_trial_that_another_sweep_recorded_as_failed_gets_its_value(tmp_path: Path) -> None:
    """As when a machine slept: its sweep gave no sign of life."""
    searcher = searcher_of(tmp_path, "slept")
    searcher.suggest(0)
    study_in(tmp_path).tell(0, state=optuna.trial.TrialState.FAIL)
    searcher.record(0, Outcome(OutcomeStatus.FINISHED, 7.0, 10))
    assert [trial.value for trial in study_in(tmp_path).trials] == [None, 7.0]


def test_conditional_space_is_continued_from_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inner = {"fcnet_hiddens": {"choice": [[8], [16]]}, "fcnet_activation": {"choice": ["relu", "tanh"]}}
    config = {"lr": SPACE["lr"], "model": {"choice": [{"fcnet_hiddens": [32]}, inner]}}
    rehearsals = Rehearsals(tmp_path, curve, stop_after=33)
    path = rehearsals.begin(text_of(config, search_of("study.log", 6)))
    rehearsals.stop_after = NEVER
    assert rehearsals.resume(path) == 0
    trials = study_in(tmp_path, "study.log").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 6
    assert {len(trial.params) for trial in trials} == {2, 4}
    Rehearsals(tmp_path, curve).begin(text_of(config, search_of("study.log", 2)))
    assert len(study_in(tmp_path, "study.log").trials) == 8


def test_points_that_a_person_enqueues_are_tried_if_they_are_in_the_space(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path, "first")
    study = study_in(tmp_path)
    study.enqueue_trial({"double_q": "maybe"})
    study.enqueue_trial({"lr": 0.123, "double_q": False})
    point = searcher.suggest(0)
    assert point is not None
    assert (point["lr"], point["double_q"]) == (0.123, False)
    assert [trial.state.name for trial in study_in(tmp_path).trials] == ["FAIL", "RUNNING"]


RUN = """
import sys
from pathlib import Path
from tests.behaviour.test_shared_studies import joined, search_of
joined(Path(sys.argv[1]), sys.argv[2], search_of(sys.argv[3], 10), seed=int(sys.argv[4]))
"""


@pytest.mark.parametrize("storage", STORAGES)
def test_two_processes_use_one_storage_at_once(storage: str, tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path), name, storage, "3"], stderr=subprocess.PIPE)
        for name in ("first", "second")
    ]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    trials = study_in(tmp_path, storage).trials
    assert all(trial.state.is_finished() for trial in trials)
    own = [
        (each.user_attrs["sweep"], each.user_attrs["configuration"])
        for each in trials
        if "same_as" not in each.user_attrs
    ]
    assert len(own) == len(set(own)) == 20
