"""Trials in MLflow: the real library with a store of files or a database, and what its own client reads there."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rlexp.files import read_json
from rlexp.runs.checkpoints import checkpoint_directory, write_checkpoint
from rlexp.runs.record import Status
from tests.lab.trials import needs_mlflow, one_trial, recorded_numbers, result_row, tracked_scene

pytestmark = needs_mlflow
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


@pytest.mark.key("track.to", "track.mlflow.experiment", "track.mlflow.tags")
def test_mlflow_has_the_rows_of_result_json_by_env_steps(tmp_path: Path, store: str) -> None:
    options = {"experiment": "cartpoles", "tags": {"purpose": "a first try"}}
    trial = one_trial(tmp_path, {"mlflow": options}, lr=0.25, env_config={"api_key": "hidden"})
    with tracked_scene(tmp_path, (trial,)) as scene:
        scene.record(trial, [(1, 10.0), (2, 20.0), (3, 30.0)], Status.TERMINATED, 25.0)
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
