"""The process of a tracker that fails: its library is silent, it is killed, or the command is.

Which checkpoints and videos of a trial a tracker gets, whatever the library.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rlexp.errors import UsageError
from rlexp.processes.family import PREFIX, SESSION
from rlexp.runs.checkpoints import checkpoint_directory, write_checkpoint
from rlexp.runs.record import Status
from rlexp.trackers import trackers
from rlexp.trackers import trackers as tracker_process
from rlexp.trackers.client import TrackedRow, TrackedTrial, TrialState
from rlexp.trackers.serving import OpenTrial
from rlexp.trackers.trackers import Trackers
from tests.lab.trials import Notes, needs_mlflow, needs_wandb, one_trial, result_row, tracked_scene, wandb_logs

pytestmark = pytest.mark.usefixtures("no_account")
REPOSITORY = Path(__file__).parents[3]
ORPHAN = """
import sys, time
from pathlib import Path
from tests.lab.trials import one_trial, result_row, tracked_scene

folder = Path(sys.argv[1])
trial = one_trial(folder, {"wandb": {"mode": "offline"}})
with tracked_scene(folder, (trial,)) as scene:
    scene.recorder(trial).record(result_row(1, 1.0))
    print("recorded", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def processes_of_trackers() -> list[psutil.Process]:
    """Return the processes of trackers, and those that their libraries have started, of all commands."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.environ().get(SESSION, "")).name.startswith(f"{PREFIX}tracker-"):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@needs_mlflow
def test_a_silent_server_delays_neither_rows_nor_the_end_of_a_run(
    tmp_path: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", silent_server)
    monkeypatch.setattr(tracker_process, "MAX_WAITING", 10)
    trial = one_trial(tmp_path, "mlflow")
    with tracked_scene(tmp_path, (trial,)) as scene:
        recorder = scene.recorder(trial)
        began_s = time.monotonic()
        for iteration in range(1, 1000):
            recorder.record(result_row(iteration, 1.0))
        recorder.end(Status.TERMINATED, None)
        assert time.monotonic() - began_s < 5
        notes = scene.trackers.drain_notes() + scene.trackers.finish(1.0)
        mine = [process for process in processes_of_trackers() if process.ppid() == os.getpid()]
        assert time.monotonic() - began_s < 10
    assert mine
    assert not any(process.is_running() for process in mine)
    assert any("rows are left out there, not in the run's files" in note for note in notes)
    assert any("mlflow has not finished in time" in note for note in notes)


@pytest.mark.slow
@needs_wandb
def test_a_server_that_does_not_answer_lets_wandb_record_offline(
    tmp_path: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    trial = one_trial(tmp_path, "wandb")
    with tracked_scene(tmp_path, (trial,)) as scene:
        recorder = scene.recorder(trial)
        recorder.record(result_row(1, 1.0))
        recorder.end(Status.TERMINATED, None)
        notes = scene.trackers.finish()
        (log,) = wandb_logs(scene.directory.path)
    assert [row["timesteps_total"] for row in log.history] == [100]
    assert len(notes) == 1
    assert "is recorded offline" in notes[0]
    assert scene.notes.texts == [f"tracks with wandb: project rlexp, entity of the account, at {silent_server}"]


@needs_wandb
def test_a_killed_tracker_is_noted_and_rows_go_on_to_the_files(tmp_path: Path) -> None:
    trial = one_trial(tmp_path, {"wandb": {"mode": "offline"}})
    with tracked_scene(tmp_path, (trial,)) as scene:
        recorder = scene.recorder(trial)
        recorder.record(result_row(1, 1.0))
        for process in processes_of_trackers():
            if process.ppid() == os.getpid():
                process.kill()
        deadline_s = time.monotonic() + 20
        notes: list[str] = []
        while not notes and time.monotonic() < deadline_s:
            notes = scene.trackers.drain_notes()
            time.sleep(0.05)
        recorder.record(result_row(2, 1.0))
        recorder.end(Status.TERMINATED, None)
        assert scene.trackers.finish() == []
        lines = (scene.directory.trial_directory(trial) / "result.json").read_text().splitlines()
    assert len(lines) == 2
    assert notes == ["the process of wandb was killed by SIGKILL: nothing more is recorded there, the run goes on"]


@needs_wandb
def test_a_killed_command_leaves_no_process_of_a_tracker(tmp_path: Path) -> None:
    before = {process.pid for process in processes_of_trackers()}
    command = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    with command, command.stdout as output:
        assert output.readline() == "recorded\n"
        deadline_s = time.monotonic() + 30
        while not wandb_logs(tmp_path / "out" / "run") and time.monotonic() < deadline_s:
            time.sleep(0.1)
        children = [process for process in processes_of_trackers() if process.pid not in before]
        assert len(children) >= 2, "the process of the tracker and wandb-core"
        command.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=40)
    assert not alive
    (log,) = wandb_logs(tmp_path / "out" / "run")
    assert (log.summary["status"], log.exit_code) == ("INTERRUPTED", 1)


def test_a_missing_library_is_refused_before_anything_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "is_installed", lambda name: False)
    with pytest.raises(UsageError, match="track: wandb is not installed") as error:
        Trackers.started((one_trial(tmp_path, "wandb"),), tmp_path / "out", Notes().on_note)
    assert error.value.hint == "pip install 'rlexp[wandb]'"
    assert not (tmp_path / "out").exists()


def test_nothing_is_started_for_trials_that_no_tracker_records(tmp_path: Path) -> None:
    trial = one_trial(tmp_path, {"to": [], "wandb": {"mode": "offline"}})
    with Trackers.started((trial,), tmp_path, Notes().on_note) as started:
        assert not [process for process in processes_of_trackers() if process.ppid() == os.getpid()]
        assert started.finish() == []


class NamedFiles:
    """A tracker, and its only run, that keeps the names of what it gets."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def places(self, options: Sequence[Mapping[str, Any]]) -> list[str]:
        return []

    def begin(self, trial: TrackedTrial, state: TrialState) -> NamedFiles:
        state.id = "the-run"
        return self

    def update(self, trial: TrackedTrial) -> None: ...

    def record(self, row: TrackedRow) -> None: ...

    def send_checkpoint(self, path: Path) -> None:
        self.sent.append(path.name)

    def send_video(self, path: Path, steps: int) -> None:
        self.sent.append(path.name)

    def end(self, status: Status | None, summary: Mapping[str, float]) -> None: ...


def trial_in(folder: Path) -> TrackedTrial:
    options = {"artifacts": ["checkpoints", "videos"]}
    return TrackedTrial("t", "r", "DQN", "CartPole-v1", str(folder), str(folder), {}, {}, options, {}, None)


def write(folder: Path, iteration: int, weight: float) -> None:
    path = checkpoint_directory(folder, iteration)
    shutil.rmtree(path, ignore_errors=True)
    write_checkpoint(path, {"weights": {"w": np.array([weight])}}, {"iteration": iteration}, {})


def test_a_checkpoint_is_sent_again_only_where_it_was_written_anew(tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "episode.mp4").write_bytes(b"video")
    client, row = NamedFiles(), TrackedRow("t", 100, 0.0, {})
    opened = OpenTrial("wandb", trial_in(tmp_path), client)
    write(tmp_path, 1, 0.5)
    write(tmp_path, 2, 0.5)
    opened.record(row)
    opened.record(row)
    first = ["checkpoint_000001", "checkpoint_000002", "episode.mp4"]
    assert client.sent == first
    write(tmp_path, 2, 0.75)  # after a restart from checkpoint_000001
    opened.record(row)
    opened.record(row)
    assert client.sent == [*first, "checkpoint_000002"]
    resumed = OpenTrial("wandb", trial_in(tmp_path), client)
    resumed.end(Status.TERMINATED, None)
    assert client.sent == [*first, "checkpoint_000002"], "a later command knows what was sent"


def test_a_checkpoint_that_is_removed_meanwhile_is_no_error(tmp_path: Path) -> None:
    client = NamedFiles()
    opened = OpenTrial("wandb", trial_in(tmp_path), client)
    checkpoint_directory(tmp_path, 1).mkdir()  # its files are gone already
    opened.record(TrackedRow("t", 100, 0.0, {}))
    assert client.sent == []
