"""A sweep that is killed at any moment and resumed ends as if nobody had killed it.

Everything is real but the trials: the files that a kill would leave are copied before each write, and ``rlexp resume``
continues the copy.

Which sweeps can be resumed, with which changes, and what is refused, with nothing changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.trial import Trial
from rlexp.errors import RlexpError
from rlexp.files import to_json
from rlexp.runs.record import read_run_record
from rlexp.schedules import derive_seed
from rlexp.search.searchers import OptunaSearcher
from rlexp.terminal.summary import summary_lines
from tests.lab.sweeps import (
    ASHA,
    CONDITIONAL,
    DRAWN,
    GRID,
    MEDIAN,
    NEVER,
    PBT,
    Copies,
    Rehearsals,
    Reward,
    World,
    conclusion,
    curve,
    journal,
    rows,
    saved,
    statuses,
    text_of,
)

STRIDE = 29
"""Of so many moments one is looked at; all of them take minutes."""
OVER = {"TERMINATED", "PRUNED", "ERROR"}


def diverging(trial: Trial, steps: int) -> float:
    return float("nan") if trial.index == 2 and steps >= 500 else curve(trial, steps)


SCENARIOS: dict[str, tuple[dict[str, Any], dict[str, Any], Reward, dict[str, Any]]] = {
    "grid-fifo": (GRID, {}, curve, {"checkpoint_freq": 3}),
    "grid-asha-checkpoints": (GRID, ASHA, curve, {"checkpoint_freq": 3}),
    "grid-median": (GRID, MEDIAN, curve, {"checkpoint_freq": 4}),
    "random-fifo-seeds": (DRAWN, {"num_samples": 2, "num_seeds": 3}, curve, {}),
    "random-fifo-failure": (DRAWN, {"num_samples": 5}, diverging, {"checkpoint_freq": 2}),
    "random-asha": (DRAWN, {"num_samples": 7, **ASHA}, curve, {"checkpoint_freq": 1}),
    "random-conditional": (CONDITIONAL, {"num_samples": 6, **ASHA}, curve, {}),
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


def test_resumed_hyperband_ranks_early_ends_where_they_were_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows end a little behind a rung, as real ones do, so that the last values are of different steps."""
    end_of_row = World._end_of_row

    def later(world: World, trial: Trial, before: dict[str, Any]) -> int:
        return min(end_of_row(world, trial, before) + 7 * trial.index % 10, 1000)

    monkeypatch.setattr(World, "_end_of_row", later)
    config = {"lr": {"grid_search": [0.4, 0.1, 0.2, 0.3, 0.5, 0.6]}}
    search = {"scheduler": "hyperband", "hyperband": {"grace_period": 200, "reduction_factor": 2}}
    copies = Copies(tmp_path / "copies", 5)
    rehearsals = Rehearsals(tmp_path, lambda trial, steps: trial.experiment.config.lr, capacity=2)
    expected = saved(rehearsals.begin(text_of(config, search), copies.take))
    with_early_ends = [path for path in copies.paths if "PRUNED" in (path / "search.jsonl").read_text()]
    assert with_early_ends
    for path in with_early_ends:
        rehearsals.resume(path)
        for key in ("configurations", "early_stopping"):
            assert saved(path)[key] == expected[key], path


def test_a_sweep_ends_well_without_the_folder_of_a_finished_trial(tmp_path: Path) -> None:
    rehearsals = Rehearsals(tmp_path, curve, capacity=1, stop_after=15)
    path = rehearsals.begin(text_of({"lr": {"grid_search": [0.4, 0.1]}}, {}))
    finished = next(trial for trial, status in statuses(path).items() if status == "TERMINATED")
    shutil.rmtree(next(folder for folder in path.iterdir() if folder.name.startswith(finished[:5])))
    rehearsals.stop_after = NEVER
    rehearsals.resume(path)
    assert set(statuses(path).values()) == {"TERMINATED"}
    assert read_run_record(path).status == "TERMINATED"


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
        number_played = len(rehearsals.played)
        rehearsals.resume(path)
        if len(rehearsals.played) == number_played:
            assert len(ended) >= 7, "nothing but the note of the last end was left to be done"
            continue
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


def cut(folder: Path, config: dict[str, Any], search: dict[str, Any], **keys: Any) -> tuple[Rehearsals, Path]:
    """Return a sweep as a kill left it in its middle."""
    copies, rehearsals = Copies(folder / "copies", 10), Rehearsals(folder, curve)
    rehearsals.begin(text_of(config, search, **keys), copies.take)
    path = folder / "cut"
    copies.paths[len(copies.paths) // 2].rename(path)
    return rehearsals, path


def refused(rehearsals: Rehearsals, path: Path, *overrides: str) -> RlexpError:
    """Return why a sweep cannot go on; nothing has changed then."""
    kept = (file for file in path.rglob("*") if file.is_file() and file.name != "rlexp.lock")
    # A kill amid a write leaves a file that is removed with the next one.
    before = {file: file.read_bytes() for file in kept if file.suffix != ".writing"}
    with pytest.raises(RlexpError) as caught:
        rehearsals.resume(path, *overrides)
    assert before == {file: file.read_bytes() for file in before}
    return caught.value


@pytest.fixture(scope="module")
def random_cut(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rehearsals, Path]:
    return cut(tmp_path_factory.mktemp("cut"), DRAWN, {"num_samples": 6, **ASHA, "time_budget_s": 1000})


@pytest.fixture
def begun(random_cut: tuple[Rehearsals, Path], tmp_path: Path) -> tuple[Rehearsals, Path]:
    rehearsals, path = random_cut
    return rehearsals, Path(shutil.copytree(path, tmp_path / "sweep"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lr=0.1", "-o lr=0.1: lr cannot change when a sweep is resumed, because it is searched"),
        ("config.n_step={randint: [1, 9]}", "n_step cannot change"),
        ("buffer_size=20000", "cannot be resumed with other keys: buffer_size 50000 → 20000"),
        ("search.scheduler=fifo", "search.scheduler asha → fifo"),
        ("search.metric=episode_len_mean", "search.metric episode_reward_mean → episode_len_mean"),
        ("search.num_seeds=2", "search.num_seeds 1 → 2"),
        ("stop.timesteps_total=5000", "stop.timesteps_total 1000"),
        ("search.num_samples=1", "configurations have begun, and search.num_samples asks for fewer"),
        ("search.time_budget_s=1e-6", "has ended: search.time_budget_s is 1e-06"),
        ("train_batch_size={grid_search: [8, 16]}", "searches lr, gamma, n_step, "),
    ],
)
def test_resume_refuses_changes_of_the_space(override: str, said: str, begun: tuple[Rehearsals, Path]) -> None:
    error = refused(*begun, override)
    assert error.exit_code == 3
    assert said in error.message
    assert error.hint


def test_resume_accepts_more_samples_trials_and_time(begun: tuple[Rehearsals, Path]) -> None:
    rehearsals, path = begun
    points = [event["point"] for event in journal(path) if event["event"] == "configured"]
    more = ("search.num_samples=9", "search.max_concurrent=3", "search.time_budget_s=null", "checkpoint_freq=2")
    assert rehearsals.resume(path, *more) == 0
    after = [event["point"] for event in journal(path) if event["event"] == "configured"]
    assert len(after) == 9
    assert after[: len(points)] == points
    assert len(saved(path)["configurations"]) == 9
    assert "num_samples: 9" in (path / "resolved.yaml").read_text()
    assert rehearsals.resume(path, "search.num_samples=10") == 0, "what was given before holds still"
    error = refused(rehearsals, path)
    assert error.message == f"every trial of {path} has ended"


def test_resume_refuses_edited_resolved_file(begun: tuple[Rehearsals, Path]) -> None:
    rehearsals, path = begun
    resolved = path / "resolved.yaml"
    resolved.write_text(
        resolved.read_text().replace("gamma:\n      uniform: [0.9, 0.99]", "gamma:\n      uniform: [0.8, 0.99]")
    )
    assert "gamma.uniform [0.9, 0.99] → [0.8, 0.99]" in refused(rehearsals, path).message


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: [], "search.jsonl:1 is damaged"),
        (lambda lines: [b"{}\n", *lines[1:]], "search.jsonl:1 is damaged (KeyError: 'format')"),
        (lambda lines: [lines[0].replace(b'"format": 1', b'"format": 2'), *lines[1:]], "by another version"),
        (lambda lines: [*lines[:4], b"\xff\n", *lines[4:]], "search.jsonl:5 is damaged"),
        (lambda lines: [*lines[:4], b"[" * 100_000 + b"\n"], "search.jsonl:5 is damaged (ValueError"),
        (lambda lines: [*lines[:4], b'{"event": "begun"}\n'], "search.jsonl:5 is damaged (KeyError: 'trial')"),
        (lambda lines: [*lines[:4], b'{"event": "posix.system"}\n'], "there is no event 'posix.system'"),
        (lambda lines: [lines[0], *lines[2:]], "search.jsonl:2 is damaged"),
        (lambda lines: lines[:1], "run.json and search.jsonl are not from the same sweep"),
    ],
)
def test_resume_refuses_damaged_journal(
    damage: Callable[[list[bytes]], list[bytes]], said: str, begun: tuple[Rehearsals, Path]
) -> None:
    rehearsals, path = begun
    file = path / "search.jsonl"
    file.write_bytes(b"".join(damage(file.read_bytes().splitlines(keepends=True))))
    error = refused(rehearsals, path)
    assert (error.exit_code, said in error.message) == (3, True), error.message
    assert error.hint


def test_resume_refuses_lost_journal_and_rewrites_sweep_json(begun: tuple[Rehearsals, Path], tmp_path: Path) -> None:
    rehearsals, path = begun
    lost = Path(shutil.copytree(path, tmp_path / "lost"))
    (lost / "search.jsonl").unlink()
    assert refused(rehearsals, lost).exit_code == 3
    (lost / "sweep.json").unlink()
    error = refused(rehearsals, lost)
    assert (error.exit_code, error.message) == (
        3,
        f"{lost}/search.jsonl is missing: what the sweep has tried is unknown",
    )
    (path / "sweep.json").write_text("{")
    assert rehearsals.resume(path) == 0
    assert len(saved(path)["configurations"]) == 6


def test_resume_refuses_checkpoint_outside_the_run(tmp_path: Path) -> None:
    rehearsals, path = cut(tmp_path, {"lr": DRAWN["lr"]}, {"num_samples": 3, **PBT})
    file = path / "search.jsonl"
    text = file.read_text()
    assert text.count('/checkpoint_000002"') > 0
    file.write_text(text.replace('/checkpoint_000002"', '/../../checkpoint_000002"'))
    assert "is not a checkpoint of a trial" in refused(rehearsals, path).message


def test_resume_ignores_a_cut_last_line(begun: tuple[Rehearsals, Path]) -> None:
    rehearsals, path = begun
    events = journal(path)
    with (path / "search.jsonl").open("ab") as file:
        file.write(b'{"event": "ended", "trial": "0')
    assert rehearsals.resume(path) == 0
    after = [json.loads(line) for line in (path / "search.jsonl").read_text().splitlines()[1:]]
    assert after[: len(events)] == events
    seconds = [event["elapsed_s"] for event in after]
    assert seconds == sorted(seconds), "the time between a kill and a resume does not count, that before does"


def test_trial_without_checkpoint_starts_again_with_a_note(begun: tuple[Rehearsals, Path]) -> None:
    rehearsals, path = begun
    reported, ended = (
        {event["trial"] for event in journal(path) if event["event"] == kind} for kind in ("reported", "ended")
    )
    running = sorted(reported - ended)
    assert running
    rehearsals.resume(path)
    notes = [note for note in rehearsals.played[-1].search.standings.notes if "starts from the beginning" in note]
    assert notes == [f"{trial} has no checkpoint and starts from the beginning" for trial in running]
