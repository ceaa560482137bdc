"""Which checkpoints and videos of a trial a tracker gets, whatever the library."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.runs.checkpoints import checkpoint_directory, write_checkpoint
from rlexp.runs.record import Status
from rlexp.trackers.client import TrackedRow, TrackedTrial, TrialState
from rlexp.trackers.serving import OpenTrial


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
