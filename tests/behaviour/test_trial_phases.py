"""A trial says what it does until its first result, and why it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.config.keys.ppo import PPOConfig
from rlexp.runs.trial_files import PhaseWatch, end_phases, read_phase, write_phase
from rlexp.tuning import trainable
from rlexp.tuning.stop_condition import reached
from tests.behaviour.inline_trials import assigned, rows_of


def test_trial_reports_phases_until_its_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def write_and_keep(directory: Path, text: str) -> None:
        said.append(text)
        write_phase(directory, text)
        assert (directory / ".phase").read_text() == text

    monkeypatch.setattr("rlexp.runs.trial_files.write_phase", write_and_keep)
    with assigned(tmp_path, stop={"training_iteration": 2}, checkpoint_freq=1) as assignment:
        rows_of(assignment, monkeypatch, at_most=1)
        assert said == ["loading PyTorch", "creating the environments", "waiting for the first result"]
        assert not (assignment.directory / ".phase").exists()
        said.clear()
        rows_of(assignment, monkeypatch)
    assert said[1] == "reading checkpoint_000001"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"num_workers": 0}, "the environments"),
        ({"num_workers": 1}, "1 worker"),
        ({"num_workers": 3, "num_learners": 2}, "2 learners and 3 workers"),
        ({"num_workers": 0, "num_learners": 2}, "2 learners and the environments"),
    ],
)
def test_phase_names_the_processes_that_are_created(keys: dict[str, int], named: str) -> None:
    assert trainable.processes_of(PPOConfig.model_validate(keys)) == named


def test_phase_is_reported_once(tmp_path: Path) -> None:
    watch = PhaseWatch()
    assert watch.is_due()
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "creating 2 workers")
    assert watch.news(tmp_path) == "creating 2 workers"
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "waiting for the first result")
    assert watch.news(tmp_path) == "waiting for the first result"
    end_phases(tmp_path)
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "waiting for the first result")
    assert watch.news(tmp_path) == "waiting for the first result"
    write_phase(tmp_path / "removed", "nobody is stopped by a directory that is gone")


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ({"episode_reward_mean": 475}, "episode_reward_mean 486.7 reached 475"),
        ({"timesteps_total": 2_000_000}, "timesteps_total reached 2,000,000"),
        ({"timesteps_total": 3_000_000, "episode_reward_mean": 480.5}, "episode_reward_mean 486.7 reached 480.5"),
        ({"episode_reward_mean": 500, "episode_len_mean": 1, "missing": 0}, None),
    ],
)
def test_reason_of_the_end_of_a_trial(stop: dict[str, float], reason: str | None) -> None:
    row = {"episode_reward_mean": 486.74, "timesteps_total": 2_000_123, "episode_len_mean": float("nan")}
    found = reached(stop, row)
    assert (None if found is None else str(found)) == reason


def test_phase_is_never_read_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_phase(tmp_path, "loading PyTorch")
    read: list[str | None] = []
    write_text = Path.write_text

    def write_slowly(path: Path, text: str, **options: Any) -> int:
        written = write_text(path, "", **options)
        read.append(read_phase(tmp_path))
        return written + write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", write_slowly)
    write_phase(tmp_path, "creating 2 workers")
    assert (read, read_phase(tmp_path)) == (["loading PyTorch"], "creating 2 workers")
