"""Sweeps whose ``choice`` holds samplers: what Optuna is asked, what a resume restores, and what the files show.

No point of a space is tried twice: its trials would have the same seeds, so they would be exact copies.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.trial import Trial
from rlexp.config.load import load_plan
from rlexp.files import to_json
from rlexp.search.searchers import OptunaSearcher
from rlexp.terminal.summary import leaderboard_lines
from tests.behaviour.test_sweep_ranking import RecordedWorld
from tests.lab.sweeps import Copies, Rehearsals, Simulation, conclusion, journal, simulated, sweep_of, table, text_of

KEY = "exploration_config"
SPACE: dict[str, Any] = {
    "lr": {"choice": [0.5, {"loguniform": [1e-3, 1e-1]}]},
    KEY: {
        "choice": [
            {"type": "EpsilonGreedy", "final_epsilon": {"uniform": [0.01, 0.2]}},
            {"type": "SoftQ", "temperature": {"loguniform": [0.1, 10]}},
        ]
    },
}
OPTUNA = {"searcher": "optuna", "num_samples": 30, "optuna": {"n_startup_trials": 8}}


def reward(trial: Trial, steps: int) -> float:
    """Return a reward that is best for soft Q with a low temperature."""
    config = trial.experiment.config
    assert isinstance(config, DQNConfig)
    return steps / 100 + (50 - 4 * config.softmax_temp if config.soft_q else 20 - 50 * config.exploration_final_eps)


def suggestions(simulation: Simulation) -> list[dict[str, Any]]:
    searcher = simulation.search._state.searcher
    assert isinstance(searcher, OptunaSearcher)
    return [trial.params for trial in searcher._study.trials]


@pytest.fixture(scope="module")
def optuna_sweep(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    folder = tmp_path_factory.mktemp("optuna")
    return simulated(sweep_of(folder, SPACE, OPTUNA), folder, reward, capacity=1, make_world=RecordedWorld)


def test_optuna_suggests_parameters_of_the_drawn_value_only(optuna_sweep: Simulation) -> None:
    inside = {0: f"{KEY}[0].final_epsilon", 1: f"{KEY}[1].temperature"}
    asked = suggestions(optuna_sweep)
    assert len(asked) == 30
    for parameters in asked:
        rates = {"lr", "lr[1]"} if parameters["lr"] == 1 else {"lr"}
        assert set(parameters) == {KEY, inside[parameters[KEY]], *rates}


def test_optuna_learns_which_value_and_what_inside_it(optuna_sweep: Simulation) -> None:
    early, late = suggestions(optuna_sweep)[:8], suggestions(optuna_sweep)[15:]
    assert {parameters[KEY] for parameters in early} == {0, 1}
    temperatures = [parameters.get(f"{KEY}[1].temperature", 99) for parameters in late]
    assert sum(temperature < 1 for temperature in temperatures) >= 10


def test_optuna_trials_are_at_the_suggested_points(optuna_sweep: Simulation) -> None:
    trials = [standing.trial for standing in optuna_sweep.search.standings.trials()]
    for trial, parameters in zip(trials, suggestions(optuna_sweep), strict=True):
        config = trial.experiment.config
        assert isinstance(config, DQNConfig)
        assert config.soft_q == bool(parameters[KEY])
        assert config.lr == pytest.approx(parameters["lr[1]"] if parameters["lr"] else 0.5, rel=1e-3)
        if config.soft_q:
            assert config.softmax_temp == pytest.approx(parameters[f"{KEY}[1].temperature"], rel=1e-3)


def test_files_have_a_column_for_each_key_inside(optuna_sweep: Simulation) -> None:
    rows = table(optuna_sweep.path)
    columns = ["lr", *(f"{KEY}.{name}" for name in ("type", "final_epsilon", "temperature"))]
    assert list(rows[0])[-4:] == columns
    for row in rows:
        assert (row[f"{KEY}.final_epsilon"] == "") == (row[f"{KEY}.type"] == "SoftQ")
        assert (row[f"{KEY}.temperature"] == "") == (row[f"{KEY}.type"] == "EpsilonGreedy")
        assert row["lr"]
    text = "\n".join(leaderboard_lines(optuna_sweep.search.standings))
    assert f"{KEY}.type=SoftQ {KEY}.temperature={float(rows[0][f'{KEY}.temperature']):.3g}" in text
    assert optuna_sweep.saved["space"] == {
        f"{KEY}.type": {"choice": ["EpsilonGreedy", "SoftQ"]},
        f"{KEY}.final_epsilon": {"uniform": [0.01, 0.2]},
        f"{KEY}.temperature": {"loguniform": [0.1, 10]},
    }
    configuration = optuna_sweep.saved["configurations"][0]["point"]
    assert configuration[f"{KEY}.temperature"] == float(rows[0][f"{KEY}.temperature"])


def test_hparams_tab_has_the_columns_of_all_values(optuna_sweep: Simulation) -> None:
    columns = ["lr", *(f"{KEY}.{name}" for name in ("type", "final_epsilon", "temperature")), "seed"]
    for row in table(optuna_sweep.path)[:3]:
        events = EventAccumulator(str(optuna_sweep.path / row["trial"])).Reload()
        data = events.summary_metadata
        config = data["_hparams_/experiment"].plugin_data.content
        start = data["_hparams_/session_start_info"].plugin_data.content
        assert all(column.encode() in config for column in columns)
        other = "final_epsilon" if row[f"{KEY}.type"] == "SoftQ" else "temperature"
        assert f"{KEY}.{other}".encode() not in start
        assert f"{KEY}.type".encode() in start


def test_best_yaml_has_the_drawn_value(optuna_sweep: Simulation) -> None:
    (trial,) = load_plan([optuna_sweep.path / "best.yaml"]).trials
    best, config = table(optuna_sweep.path)[0], trial.experiment.config
    assert isinstance(config, DQNConfig)
    assert config.soft_q
    assert config.softmax_temp == float(best[f"{KEY}.temperature"])
    assert config.lr == float(best["lr"])
    assert "choice" not in (optuna_sweep.path / "best.yaml").read_text()


def test_resumed_optuna_knows_the_values_inside(tmp_path: Path) -> None:
    copies, rehearsals = Copies(tmp_path / "copies", 23, 5), Rehearsals(tmp_path, reward, capacity=1)
    rehearsals.begin(text_of(SPACE, {**OPTUNA, "num_samples": 7}), copies.take)
    assert len(copies.paths) > 5
    for path in copies.paths:
        before = [event["point"] for event in journal(path) if event["event"] == "configured"]
        rehearsals.resume(path)
        after = [event["point"] for event in journal(path) if event["event"] == "configured"]
        assert after[: len(before)] == before
        assert len(after) == 7
        for point, parameters in zip(after, suggestions(rehearsals.played[-1]), strict=True):
            place, inside = (0, "final_epsilon") if "final_epsilon" in point[KEY] else (1, "temperature")
            assert parameters[KEY] == place
            assert parameters[f"{KEY}[{place}].{inside}"] == pytest.approx(point[KEY][inside], rel=1e-3)
            assert ("lr[1]" in parameters) == (point["lr"] != 0.5)


def test_pbt_moves_values_inside_the_drawn_one(tmp_path: Path) -> None:
    search = {
        "num_samples": 6,
        "scheduler": "pbt",
        "pbt": {"perturbation_interval": 200, "resample_probability": 0.0, "quantile_fraction": 0.34},
    }
    simulation = simulated(sweep_of(tmp_path, {KEY: SPACE[KEY]}, search), tmp_path, reward, capacity=6)
    exploits = simulation.saved["exploits"]
    assert exploits
    donors = {standing.trial.name: standing.trial for standing in simulation.search.standings.trials()}
    for exploit in exploits:
        after = exploit["after"][KEY]
        assert after["type"] == "SoftQ", "soft Q is best"
        assert donors[exploit["trial"]].experiment.config.soft_q  # type: ignore[attr-defined]
        assert 0.1 <= after["temperature"] <= 10


SIX_POINTS = {"n_step": {"randint": [1, 4]}, "double_q": {"choice": [True, False]}}
DISTINCT_OPTUNA = {"searcher": "optuna", "num_samples": 20, "optuna": {"n_startup_trials": 2}}


def distinct_reward(trial: Trial, steps: int) -> float:
    """The best point is the first one that a list of them has, so that Optuna returns to it."""
    return steps * (10.0 - trial.varied["n_step"] if trial.varied["double_q"] else -1.0)


def failing(trial: Trial, steps: int) -> float:
    return float("nan") if trial.varied["n_step"] == 2 else distinct_reward(trial, steps)


def tried(simulation: Simulation) -> Counter[str]:
    return Counter(to_json(each["point"]) for each in simulation.saved["configurations"])


@pytest.mark.key("search.searcher", "search.num_samples")
@pytest.mark.parametrize("searcher", ["random", "optuna"])
@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("kept", [distinct_reward, failing])
def test_each_point_is_tried_once(searcher: str, capacity: int, kept: Any, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SIX_POINTS, {**DISTINCT_OPTUNA, "searcher": searcher})
    simulation = simulated(sweep, tmp_path, kept, capacity)
    assert len(tried(simulation)) == 6
    assert set(tried(simulation).values()) == {1}
    assert len((simulation.path / "trials.csv").read_text().splitlines()) == 7
    assert simulation.search.is_complete


@pytest.mark.parametrize("capacity", [1, 4])
def test_repeated_suggestion_gets_the_outcome_of_its_point(capacity: int, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, SIX_POINTS, DISTINCT_OPTUNA)
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
    sweep = sweep_of(tmp_path, {"gamma": {"uniform": [0.98, 0.981]}}, DISTINCT_OPTUNA)
    simulation = simulated(sweep, tmp_path, lambda trial, steps: trial.varied["gamma"] * steps)
    assert set(tried(simulation).values()) == {1}
    assert len(tried(simulation)) == 11


@pytest.mark.parametrize("searcher", ["random", "optuna"])
def test_resumed_sweep_tries_each_point_once(searcher: str, tmp_path: Path) -> None:
    copies, rehearsals = Copies(tmp_path / "copies", 17, 5), Rehearsals(tmp_path, distinct_reward)
    whole = rehearsals.begin(text_of(SIX_POINTS, {**DISTINCT_OPTUNA, "searcher": searcher}), copies.take)
    points = {to_json(event["point"]) for event in journal(whole) if event["event"] == "configured"}
    assert len(copies.paths) > 5
    for path in copies.paths:
        rehearsals.resume(path)
        after = [to_json(event["point"]) for event in journal(path) if event["event"] == "configured"]
        assert len(after) == 6
        assert set(after) == points
        assert searcher == "optuna" or conclusion(path) == conclusion(whole)
