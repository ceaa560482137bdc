"""Trials in Weights & Biases, offline, and in MLflow: the real libraries, and what they have written."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlexp.errors import UsageError
from rlexp.files import read_json
from rlexp.runs.checkpoints import checkpoint_directory, write_checkpoint
from rlexp.runs.record import Status
from rlexp.trackers.trackers import Trackers
from tests.lab.trials import (
    Notes,
    WandbLog,
    needs_mlflow,
    needs_wandb,
    one_trial,
    recorded_numbers,
    result_row,
    tracked_scene,
    trials_of,
    wandb_logs,
)

pytestmark = pytest.mark.usefixtures("no_account")
OFFLINE: dict[str, Any] = {"mode": "offline"}


def numbers(log: WandbLog) -> list[dict[str, float]]:
    """Return the history without what wandb adds to each row."""
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in log.history]


@needs_wandb
@pytest.mark.key("track.to", "track.wandb.project", "track.wandb.entity")
@pytest.mark.key("track.wandb.group", "track.wandb.tags", "track.wandb.mode")
def test_wandb_has_the_rows_of_result_json_by_env_steps(tmp_path: Path) -> None:
    options = {"project": "cartpoles", "entity": "our-team", "group": "first tries", "tags": ["quick"], **OFFLINE}
    trial = one_trial(tmp_path, {"wandb": options}, lr=0.25, env_config={"api_key": "hidden"})
    with tracked_scene(tmp_path, (trial,)) as scene:
        scene.record(trial, [(1, 10.0), (2, 20.0), (3, 30.0)], Status.PRUNED, 25.0)
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
    assert (log.exit_code, log.summary["status"], log.summary["score"]) == (0, "PRUNED", 25.0)
    assert log.summary["best_episode_reward_mean"] == 30.0


@needs_wandb
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


@needs_wandb
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


@needs_wandb
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


@needs_wandb
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


@needs_wandb
def test_wandb_without_an_account_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    trial = one_trial(tmp_path, "wandb")
    with pytest.raises(UsageError, match="wandb has no account") as error:
        Trackers.started((trial,), tmp_path, Notes().on_note)
    assert "WANDB_MODE=offline" in str(error.value.hint)


READER = """
import json, sys
from mlflow import MlflowClient

client = MlflowClient(tracking_uri=sys.argv[1])
runs = []
for experiment in client.search_experiments():
    for run in client.search_runs([experiment.experiment_id]):
        names, id = run.data.metrics, run.info.run_id
        history = {name: [[one.step, one.value] for one in client.get_metric_history(id, name)] for name in names}
        files = [file.path for folder in ("checkpoints", "videos") for file in client.list_artifacts(id, folder)]
        runs.append({"experiment": experiment.name, "id": id, "name": run.info.run_name, "status": run.info.status,
                     "params": run.data.params, "tags": run.data.tags, "history": history, "files": files})
print(json.dumps(runs))
"""


def runs_in(uri: str) -> list[dict[str, Any]]:
    """Return what MLflow has; it is read in another process, as its import warns and takes seconds."""
    done = subprocess.run([sys.executable, "-c", READER, uri], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of files, which needs no database."""
    uri = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return uri


@needs_mlflow
@pytest.mark.key("track.to", "track.mlflow.experiment", "track.mlflow.tags")
def test_mlflow_has_the_rows_of_result_json_by_env_steps(tmp_path: Path, store: str) -> None:
    options = {"experiment": "cartpoles", "tags": {"purpose": "a first try"}}
    trial = one_trial(tmp_path, {"mlflow": options}, lr=0.25, env_config={"api_key": "hidden"})
    with tracked_scene(tmp_path, (trial,)) as scene:
        scene.record(trial, [(1, 10.0), (2, 20.0), (3, 30.0)], Status.PRUNED, 25.0)
        folder = scene.directory.trial_directory(trial)
    (run,) = runs_in(store)
    expected = recorded_numbers(folder)
    assert len(expected) == 3
    for name in expected[0]:
        assert run["history"][name] == [[row["timesteps_total"], row[name]] for row in expected]
    assert (run["experiment"], run["name"], run["status"]) == ("cartpoles", trial.name, "FINISHED")
    assert run["history"]["best_episode_reward_mean"] == [[300, 30.0]]
    assert run["history"]["score"] == [[300, 25.0]]
    assert (run["params"]["lr"], run["params"]["env_config.api_key"]) == ("0.25", "***")
    assert run["tags"]["purpose"] == "a first try"
    assert run["tags"]["rlexp.run"] == "run"


@needs_mlflow
@pytest.mark.key("track.mlflow.artifacts")
def test_mlflow_continues_the_same_run_with_changed_keys_and_sends_each_checkpoint_once(
    tmp_path: Path, store: str
) -> None:
    track = {"mlflow": {"artifacts": ["checkpoints", "videos"]}}
    before, after = one_trial(tmp_path, track, num_workers=0), one_trial(tmp_path, track, num_workers=1)
    with tracked_scene(tmp_path, (before,)) as scene:
        folder = scene.directory.trial_directory(before)
        write_checkpoint(checkpoint_directory(folder, 1), {}, {}, {})
        folder.joinpath("videos").mkdir()
        folder.joinpath("videos", "evaluation_000001.mp4").write_bytes(b"video")
        scene.record(before, [(1, 1.0), (2, 2.0), (1, 1.0)], Status.STOPPED)
    run_id = read_json(folder / "mlflow.json")["id"]
    with tracked_scene(tmp_path, (after,), resumes=True) as scene:
        write_checkpoint(checkpoint_directory(folder, 3), {}, {}, {})
        scene.record(after, [(3, 3.0)], Status.ERROR)
    (run,) = runs_in(store)
    assert (run["id"], run["status"]) == (run_id, "FAILED")
    assert sorted(step for step, _ in run["history"]["episode_reward_mean"]) == [100, 100, 200, 300]
    assert run["params"]["num_workers"] == "0", "parameters of MLflow do not change"
    assert run["tags"]["changed.num_workers"] == "1"
    assert [Path(file).name for file in run["files"]] == [
        "checkpoint_000001",
        "checkpoint_000003",
        "evaluation_000001.mp4",
    ]


@needs_mlflow
@pytest.mark.slow
def test_mlflow_without_a_server_uses_a_database_beside_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    trial = one_trial(tmp_path, "mlflow")
    with tracked_scene(tmp_path, (trial,)) as scene:
        recorder = scene.recorder(trial)
        recorder.record(result_row(1, 1.0))
        assert scene.trackers.finish() == []
    database = tmp_path / "out" / "mlflow.db"
    assert scene.notes.texts == [f"tracks with mlflow: experiment rlexp, in sqlite:///{database}"]
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name, status FROM runs").fetchall() == [(trial.name, "KILLED")]
        query = "SELECT step, value FROM metrics WHERE key = 'episode_reward_mean'"
        assert connection.execute(query).fetchall() == [(100, 1.0)]
