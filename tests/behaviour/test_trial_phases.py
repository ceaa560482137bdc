"""A trial says what it does until its first result, and why it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlexp.runs.phase_file import PhaseWatch, end_phases, write_phase
from rlexp.tuning import trainable
from rlexp.tuning.stop_condition import reached
from tests.behaviour.inline_trials import assigned, rows_of


def test_trial_reports_phases_until_its_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def write_and_keep(directory: Path, text: str) -> None:
        said.append(text)
        write_phase(directory, text)
        assert (directory / ".phase").read_text() == text

    monkeypatch.setattr(trainable, "write_phase", write_and_keep)
    with assigned(tmp_path, stop={"training_iteration": 2}, checkpoint_freq=1) as assignment:
        rows_of(assignment, monkeypatch, at_most=1)
        assert said == ["loading PyTorch", "creating the environments", "waiting for the first result"]
        assert not (assignment.directory / ".phase").exists()
        said.clear()
        rows_of(assignment, monkeypatch)
    assert said[1] == "reading checkpoint_000001"


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


def test_phase_that_is_being_written_is_not_reported(tmp_path: Path) -> None:
    watch = PhaseWatch()
    write_phase(tmp_path, "creating 2 workers")
    assert watch.news(tmp_path) == "creating 2 workers"
    (tmp_path / ".phase").write_text("")
    assert watch.news(tmp_path) is None
    write_phase(tmp_path, "creating 2 workers")
    assert watch.news(tmp_path) is None


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
    assert reached(stop, row) == reason
