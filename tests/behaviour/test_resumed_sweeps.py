"""A sweep that is killed at any moment and resumed ends as if nobody had killed it.

Everything is real but the trials: the files that a kill would leave are copied before each write, and ``rlexp resume``
continues the copy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.files import to_json
from rlexp.runs.record import read_run_record
from rlexp.schedules import derive_seed
from rlexp.search.searchers import OptunaSearcher
from rlexp.terminal.summary import summary_lines
from tests.behaviour.rehearsed_sweeps import (
    ASHA,
    CONDITIONAL,
    DRAWN,
    GRID,
    MEDIAN,
    PBT,
    Copies,
    Rehearsals,
    conclusion,
    curve,
    journal,
    rows,
    saved,
    statuses,
    text_of,
)
from tests.behaviour.simulated_sweeps import NEVER, Reward

STRIDE = 29
"""Of so many moments one is looked at; all of them take minutes."""
OVER = {"TERMINATED", "PRUNED", "ERROR"}


def diverging(trial: Trial, steps: int) -> float:
    return float("nan") if trial.index == 2 and steps >= 500 else curve(trial, steps)


SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any], Reward, dict[str, Any]]] = {
    "grid-fifo": (GRID, {}, curve, {"checkpoint_freq": 3}),
    "grid-asha": (GRID, ASHA, curve, {}),
    "grid-asha-checkpoints": (GRID, ASHA, curve, {"checkpoint_freq": 3}),
    "grid-median": (GRID, MEDIAN, curve, {"checkpoint_freq": 4}),
    "random-fifo-seeds": (DRAWN, {"num_samples": 2, "num_seeds": 3}, curve, {}),
    "random-fifo-failure": (DRAWN, {"num_samples": 5}, diverging, {"checkpoint_freq": 2}),
    "random-asha": (DRAWN, {"num_samples": 7, **ASHA}, curve, {"checkpoint_freq": 1}),
    "random-conditional": (CONDITIONAL, {"num_samples": 6, **ASHA}, curve, {}),
    "random-median": (DRAWN, {"num_samples": 7, **MEDIAN}, curve, {}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_resumed_sweep_ends_like_one_that_was_not_killed(name: str, tmp_path: Path) -> None:
    config, search, reward, keys = SCENARIOS[name]
    copies = Copies(tmp_path / "copies", STRIDE, derive_seed(1, name) % STRIDE)
    rehearsals = Rehearsals(tmp_path, reward)
    whole = rehearsals.begin(text_of(config, search, **keys), copies.take)
    expected, expected_rows = conclusion(whole), rows(whole)
    assert len(copies.paths) > 5
    for path in copies.paths:
        was_over = {trial for trial, status in statuses(path).items() if status in OVER}
        before = rows(path)
        number_played = len(rehearsals.played)
        rehearsals.resume(path)
        assert conclusion(path) == expected
        for trial, lines in rows(path).items():
            assert lines == expected_rows[trial][: len(lines)]
            assert len(lines) >= len(expected_rows[trial]) - 1  # the kill came between a decision and its row
            assert trial not in was_over or lines == before[trial]
        for played in rehearsals.played[number_played:]:
            assert was_over.isdisjoint(played.order), "what is over does not run again"


def first_steps(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return where each trial was at its first row."""
    reports = [event for event in events if event["event"] == "reported"]
    return {event["trial"]: event["row"]["timesteps_total"] for event in reversed(reports)}


def test_resumed_pbt_continues_from_the_last_milestones(tmp_path: Path) -> None:
    """Which trial copies which depends on the order in which they reach a milestone, and a resume changes that order.

    So it does not end like one that was not killed; but its past exploits stay, and their number seeds the next.
    """
    search = {"num_samples": 4, **PBT}
    copies, rehearsals = Copies(tmp_path / "copies", STRIDE, 7), Rehearsals(tmp_path, curve, capacity=4)
    rehearsals.begin(text_of({"lr": DRAWN["lr"]}, search, stop={"timesteps_total": 2000}), copies.take)
    assert len(copies.paths) > 10
    for path in copies.paths:
        events = journal(path)
        before = [event["exploit"] for event in events if event["event"] == "took_over"]
        was_over = {event["trial"] for event in events if event["event"] == "ended"}
        with_milestone = {file.parent.parent.name for file in path.glob("*/checkpoint_*/manifest.json")}
        rehearsals.resume(path)
        assert set(statuses(path).values()) == {"TERMINATED"}
        content = saved(path)
        assert content["exploits"][: len(before)] == before
        last = {exploit["trial"]: exploit["after"] for exploit in content["exploits"]}
        points = {each["trials"][0]["name"]: each["point"] for each in content["configurations"]}
        assert last.items() <= points.items(), "each is where its last takeover brought it"
        began = first_steps(journal(path)[len(events) :])
        assert was_over.isdisjoint(began)
        assert all(steps >= 200 for trial, steps in began.items() if trial in with_milestone), "none begins anew"


def test_resumed_optuna_knows_each_point_once(tmp_path: Path) -> None:
    search = {"searcher": "optuna", "num_samples": 8, "optuna": {"n_startup_trials": 3}, **ASHA}
    config = {**DRAWN, "double_q": {"choice": [True, False]}}
    copies, rehearsals = Copies(tmp_path / "copies", STRIDE, 3), Rehearsals(tmp_path, diverging)
    rehearsals.begin(text_of(config, search), copies.take)
    assert len(copies.paths) > 5
    for path in copies.paths:
        events = journal(path)
        tried = [event["point"] for event in events if event["event"] == "configured"]
        ended = {event["trial"] for event in events if event["event"] == "ended"}
        begun = [event["trial"] for event in events if event["event"] == "begun"]
        rehearsals.resume(path)
        if len(ended) == 8:
            continue  # nothing was left to be played
        played = rehearsals.played[-1]
        going_on = [trial for trial in begun if trial not in ended and trial in played.order]
        assert played.order[: len(going_on)] == going_on, "what was being tried comes first"
        points = [event["point"] for event in journal(path) if event["event"] == "configured"]
        assert points[: len(tried)] == tried
        assert len(points) == len({to_json(point) for point in points}) == 8
        searcher = played.search._state.searcher
        assert isinstance(searcher, OptunaSearcher)
        known = [(float(f"{trial.params['lr']:.4g}"), trial.state.name) for trial in searcher._study.trials]
        fates = {each["point"]["lr"]: each["status"] for each in saved(path)["configurations"]}
        assert [rate for rate, _ in known] == [point["lr"] for point in points]
        assert {rate for rate, state in known if state == "COMPLETE"} == {
            rate for rate, status in fates.items() if status == "TERMINATED"
        }
        assert {state for _, state in known} == {"COMPLETE", "PRUNED"}
        values = [trial.value for trial in searcher._study.trials if trial.state.name == "COMPLETE"]
        assert all(value is not None for value in values)


@pytest.mark.parametrize("rows_until", [3, 13, 33])
def test_stopped_sweep_is_resumed(rows_until: int, tmp_path: Path) -> None:
    config, search, reward, keys = SCENARIOS["random-fifo-seeds"]
    rehearsals = Rehearsals(tmp_path, reward)
    expected = conclusion(rehearsals.begin(text_of(config, search, **keys)))
    (tmp_path / "stopped").mkdir()
    rehearsals = Rehearsals(tmp_path / "stopped", reward, stop_after=rows_until)
    path = rehearsals.begin(text_of(config, search, **keys))
    record = json.loads((path / "run.json").read_text())
    assert record["status"] == "STOPPED"
    stopped = [trial["name"] for trial in record["trials"] if trial["status"] == "STOPPED"]
    assert len(stopped) == 2
    last_words = summary_lines(read_run_record(path), path, rehearsals.played[-1].search.standings)
    assert any(f"rlexp resume {path}" in line for line in last_words)
    rehearsals.stop_after = NEVER
    assert rehearsals.resume(path) == 0
    assert rehearsals.played[-1].order[:2] == stopped
    assert conclusion(path) == expected
    assert len({line for lines in rows(path).values() for line in lines}) == 60, "no row is lost or done again"
