"""Which sweeps can be resumed, with which changes, and what is refused, with nothing changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlexp.errors import RlexpError
from tests.behaviour.rehearsed_sweeps import (
    ASHA,
    DRAWN,
    PBT,
    Copies,
    Rehearsals,
    curve,
    journal,
    saved,
    text_of,
)


def cut(folder: Path, config: dict[str, Any], search: dict[str, Any], **keys: Any) -> tuple[Rehearsals, Path]:
    """Return a sweep as a kill left it in its middle."""
    copies, rehearsals = Copies(folder / "copies", 10), Rehearsals(folder, curve)
    rehearsals.begin(text_of(config, search, **keys), copies.take)
    path = folder / "cut"
    copies.paths[len(copies.paths) // 2].rename(path)
    return rehearsals, path


def refused(rehearsals: Rehearsals, path: Path, *overrides: str) -> RlexpError:
    """Return why a sweep cannot go on; nothing has changed then."""
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "rlexp.lock"}
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
