"""A submitted CartPole trial, and a trainer of it that does only what a test tells it to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rlexp.board.client.run import SubmittedTask, task_of
from rlexp.board.messages.credentials import SharedKeys
from rlexp.board.messages.payloads import Newer, blob_name, seal_weights
from rlexp.board.messages.tasks import Task
from rlexp.board.servers.board import Board, Fenced, News, TaskStatus
from rlexp.board.trainer.link import RESULT
from rlexp.config.load import load_plan
from rlexp.runs.checkpoints import checkpoint_directory, pack_checkpoint, write_checkpoint
from rlexp.sample_batch import Array

KEY = b"k" * 32
LONG_S = 60.0
EXPERIMENT = """
cartpole:
  run: APEX
  env: CartPole-v1
  stop: {timesteps_total: 2000}
  config:
    num_workers: 0
    seed: 3
    hiddens: [4]
    model: {fcnet_hiddens: [4]}
    board: {actors: 3}
"""


def submitted_task(folder: Path, text: str = EXPERIMENT, *overrides: str) -> SubmittedTask:
    path = folder / "experiment-of-test.yaml"
    path.write_text(text, encoding="utf-8")
    return task_of(load_plan([path], overrides))


def result_row(iteration: int, **changed: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "timesteps_total": 100 * iteration,
        "timesteps_this_iter": 100,
        "time_total_s": float(iteration),
        "episode_reward_mean": 10.0 + iteration,
        "done": False,
        "timestamp": 1_000_000 + iteration,
        "trial_name": "of the trainer",
        "info": {"num_updates": 500 * iteration},
    } | changed


class ToldTrainer:
    """Trains a task on a board, at once."""

    def __init__(self, board: Board, task: Task, member: str = "colab-1") -> None:
        self.board, self.task = board, task
        lead = board.lead(task.id, member, LONG_S)
        assert lead is not None
        self.lead = lead
        board.announce(Task(task.id, task.name, task.num_seats, {"protocol": 1}, task.file))

    def put_rows(self, *rows: dict[str, Any] | str) -> None:
        texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        assert self.board.put_rows(self.lead, texts)

    def publish(self, weights_version: int = -1, **figures: Any) -> None:
        assert not isinstance(self.board.publish(self.lead, News(weights_version, {}, figures)), Fenced)

    def put_weights(self, version: int, key: bytes = KEY) -> None:
        """Put weights of the experiment's network there that are all zero."""
        shapes = {"torso.0": (4, 4), "advantage_head.0": (4, 4), "advantage_head.2": (2, 4)}
        shapes |= {"value_head.0": (4, 4), "value_head.2": (1, 4)}
        weights: dict[str, Array] = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
        weights |= {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in shapes.items()}
        blob = seal_weights(self.task.id, self.lead.epoch, Newer(version, weights, None, 100), SharedKeys(key))
        assert self.board.put_blob(self.lead, blob_name(version), blob)

    def put_result(self, folder: Path, iteration: int, key: bytes = KEY, **metadata: Any) -> None:
        arrays = {"weights": {"torso.0.weight": np.ones((4, 4), np.float32)}}
        directory = checkpoint_directory(folder, iteration)
        packed = pack_checkpoint(write_checkpoint(directory, arrays, {"iteration": iteration}, metadata), key)
        assert self.board.put_blob(self.lead, RESULT, packed)

    def finish(self, status: TaskStatus = TaskStatus.ENDED, reason: str = "") -> None:
        self.board.finish(self.lead, status, reason)
