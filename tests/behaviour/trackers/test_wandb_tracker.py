"""Trials in Weights & Biases: the real library, offline, and what it has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.errors import UsageError
from rlexp.runs.checkpoints import checkpoint_directory, write_checkpoint
from rlexp.runs.record import Status
from rlexp.trackers.trackers import Trackers
from tests.lab.trials import (
    Notes,
    WandbLog,
    needs_wandb,
    one_trial,
    recorded_numbers,
    result_row,
    tracked_scene,
    trials_of,
    wandb_logs,
)

pytestmark = [needs_wandb, pytest.mark.usefixtures("no_account")]
OFFLINE: dict[str, Any] = {"mode": "offline"}


def numbers(log: WandbLog) -> list[dict[str, float]]:
    """Return the history without what wandb adds to each row."""
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in log.history]


@pytest.mark.key("track.to", "track.wandb.project", "track.wandb.entity")
@pytest.mark.key("track.wandb.group", "track.wandb.tags", "track.wandb.mode")
def test_wandb_has_the_rows_of_result_json_by_env_steps(tmp_path: Path) -> None:
    options = {"project": "cartpoles", "entity": "our-team", "group": "first tries", "tags": ["quick"], **OFFLINE}
    trial = one_trial(tmp_path, {"wandb": options}, lr=0.25, env_config={"api_key": "hidden"})
    with tracked_scene(tmp_path, (trial,)) as scene:
        scene.record(trial, [(1, 10.0), (2, 20.0), (3, 30.0)], Status.TERMINATED, 25.0)
        folder = scene.directory.trial_directory(trial)
        (log,) = wandb_logs(scene.directory.path)
    assert scene.notes.texts == ["tracks with wandb: project cartpoles, offline, nothing is sent"]
    assert numbers(log) == recorded_numbers(folder)
    assert len(numbers(log)) == 3
    assert log.step_metrics["*"] == "timesteps_total"
    assert (log.name, log.project, log.group) == (trial.name, "cartpoles", "first tries")
    assert log.entity == "our-team"
    assert log.tags == (trial.experiment.run, trial.experiment.env[:64], "quick")
    assert log.config["lr"] == 0.25
    assert log.config["env_config"] == {"api_key": "***"}
    assert (log.exit_code, log.summary["status"], log.summary["score"]) == (0, "TERMINATED", 25.0)
    assert log.summary["best_episode_reward_mean"] == 30.0


def test_settings_in_the_current_folder_do_not_say_where_wandb_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "wandb").mkdir(parents=True)
    settings = "[default]\nentity = stranger\nbase_url = http://127.0.0.1:9\n"
    (tmp_path / "here" / "wandb" / "settings").write_text(settings)
    monkeypatch.chdir(tmp_path / "here")
    trial = one_trial(tmp_path, {"wandb": OFFLINE})
    with tracked_scene(tmp_path, (trial,)) as scene:
        scene.recorder(trial).record(result_row(1, 10.0))
        assert scene.trackers.finish() == []
        (log,) = wandb_logs(scene.directory.path)
    assert log.entity != "stranger"


def test_wandb_continues_the_same_run_after_a_resume_and_takes_repeated_steps(tmp_path: Path) -> None:
    trial = one_trial(tmp_path, {"wandb": OFFLINE})
    with tracked_scene(tmp_path, (trial,)) as scene:
        # The trial was restarted from the checkpoint of iteration 1.
        scene.record(trial, [(1, 1.0), (2, 2.0), (3, 3.0), (2, 2.0), (3, 3.0)], Status.STOPPED)
    with tracked_scene(tmp_path, (trial,), resumes=True) as scene:
        scene.record(trial, [(3, 3.0), (4, -1.0)], Status.ERROR)
        first, second = wandb_logs(scene.directory.path)
    assert first.id == second.id
    assert [row["timesteps_total"] for row in first.history] == [100, 200, 300, 200, 300]
    assert [row["timesteps_total"] for row in second.history] == [300, 400]
    assert [row["_step"] for row in first.history + second.history] == list(range(7))
    assert second.summary["best_episode_reward_mean"] == 3.0
    assert (first.exit_code, second.exit_code) == (0, 1)
    links = [path for path in scene.directory.path.rglob("*") if path.is_symlink()]
    assert not links, "resume refuses a run with links"


@pytest.mark.key("track.wandb.artifacts")
@pytest.mark.parametrize("artifacts", [[], ["checkpoints", "videos"]])
def test_wandb_gets_checkpoints_and_videos_only_where_asked(artifacts: list[str], tmp_path: Path) -> None:
    trial = one_trial(tmp_path, {"wandb": {**OFFLINE, "artifacts": artifacts}})
    with tracked_scene(tmp_path, (trial,)) as scene:
        folder = scene.directory.trial_directory(trial)
        write_checkpoint(checkpoint_directory(folder, 1), {}, {}, {})
        folder.joinpath("videos").mkdir()
        folder.joinpath("videos", "evaluation_000001.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
        scene.record(trial, [(1, 1.0), (2, 1.0)], Status.TERMINATED)
        (log,) = wandb_logs(scene.directory.path)
    videos = [row for row in log.history if any(key.startswith("video") for key in row)]
    sent = [kind for name, kind in log.artifacts if name.startswith(trial.name)]
    assert len(videos) == len(sent) == (1 if artifacts else 0)


def test_trials_of_one_run_are_one_group_of_wandb(tmp_path: Path) -> None:
    trials = trials_of(tmp_path, {"lr": {"grid_search": [0.1, 0.2]}}, track={"wandb": OFFLINE})
    with tracked_scene(tmp_path, trials) as scene:
        recorders = [scene.recorder(trial) for trial in trials]
        for recorder in recorders:
            recorder.record(result_row(1, 1.0))
        recorders[0].end(Status.TERMINATED, None)  # the other one is ended with the run
        assert scene.trackers.finish() == []
        logs = wandb_logs(scene.directory.path)
    assert {log.name: log.config["varied"] for log in logs} == {trial.name: dict(trial.varied) for trial in trials}
    assert {log.group for log in logs} == {"run"}
    assert {log.name: log.summary["status"] for log in logs} == {
        trials[0].name: "TERMINATED",
        trials[1].name: "STOPPED",
    }


def test_wandb_without_an_account_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    trial = one_trial(tmp_path, "wandb")
    with pytest.raises(UsageError, match="wandb has no account") as error:
        Trackers.started((trial,), tmp_path, Notes().on_note)
    assert "WANDB_MODE=offline" in str(error.value.hint)
