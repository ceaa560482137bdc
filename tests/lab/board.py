"""Boards for tests: servers of each kind, fragments of joined actors with their inbox, and a task with its trainer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from rlexp.agents.workers import PlayedTrial
from rlexp.board.actor.actor import JoinedActor
from rlexp.board.client.run import SubmittedTask, task_of
from rlexp.board.messages.address import parse_address, parse_queue_address
from rlexp.board.messages.basics import Task
from rlexp.board.messages.credentials import ActorKeys, TrainerKeys, password_keys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import Newer, blob_name, seal_fragment, seal_weights
from rlexp.board.servers import open_board, queue_opener
from rlexp.board.servers.board import (
    Beat,
    Board,
    Carrier,
    Lead,
    News,
    Seat,
    SeatHolder,
    TaskStatus,
    TaskSummary,
    TrainerBeat,
)
from rlexp.board.task import SeatSpecs, describe_trial, read_description
from rlexp.board.trainer.admission import AdmissionRules
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import RESULT, BoardState
from rlexp.board.trainer.row_rules import ColumnRule
from rlexp.config.keys.board import BoardConfig
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.user_code import NO_MODULES
from rlexp.config.load import load_plan
from rlexp.config.yaml.reader import to_yaml
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.rollout.worker import RolloutWorker
from rlexp.runs.checkpoints import checkpoint_directory, pack_checkpoint, write_checkpoint
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.brokers import RedisServer
from tests.lab.memory_board import MemoryBoard, MemoryServer

SMALL_APEX: dict[str, Any] = {
    "num_workers": 0,
    "sample_batch_size": 20,
    "hiddens": [8],
    "learning_starts": 60,
    "buffer_size": 1000,
    "train_batch_size": 8,
    "timesteps_per_iteration": 100,
    "min_iter_time_s": 0,
    "seed": 1,
    "model": {"fcnet_hiddens": [8]},
    "board": {"actors": 2, "weights_period_s": 0.05, "beat_s": 0.2},
}
"""Keys of a trial that learns from two joined actors alone."""
TASK = "task-1"
KEYS = password_keys("secret", TASK)
EPOCH = 7
LEASE_S = 600.0
WAIT_S = 60.0
Found = TypeVar("Found")
MAX_BYTES = 1 << 20
RULES = AdmissionRules(
    columns={
        "obs": ColumnRule(np.dtype(np.float32), (2,), -1.0, 100.0),
        "actions": ColumnRule(np.dtype(np.int64), (), 0, 3),
    },
    max_rows=20,
    max_env_steps=20,
)


def rows_of(first: int, count: int = 4, **columns: Array) -> SampleBatch:
    """Return rows that are numbered from ``first`` on."""
    numbers = np.arange(first, first + count, dtype=np.float32)
    obs = np.stack([numbers, numbers], axis=1)
    return SampleBatch({"obs": obs, "actions": np.zeros(count, np.int64), **columns})


def info_of(rows: SampleBatch, **changes: object) -> SampleInfo:
    """Return a report about ``rows`` in which one episode ended."""
    episodes = Episodes(np.array([1.5]), np.array([3]), np.array([True]))
    values = {
        "worker_index": 0,
        "num_rows": rows.count,
        "num_env_steps": rows.count,
        "episodes": episodes,
        "weights_version": 3,
        "time": SampleTime(1.0, 0.25, 0.5, 0.125),
    }
    return SampleInfo(**(values | changes))  # type: ignore[arg-type]


def sealed(
    number: int, rows: SampleBatch | None = None, seat: int = 0, epoch: int = EPOCH, keys: ActorKeys = KEYS
) -> list[bytes]:
    """Return the messages of fragment ``number``."""
    rows = rows_of(4 * number) if rows is None else rows
    return seal_fragment(Header(TASK, seat, epoch, number, actor=keys.actor), rows, info_of(rows), keys.key, MAX_BYTES)


def inbox(window: int = 4, max_strikes: int = 3, keys: TrainerKeys = KEYS) -> Inbox:
    """Return an inbox of two seats, whose workers have the indices 5 and 6."""
    config = BoardConfig(actors=2, max_strikes=max_strikes, window=window, max_fragment_mb=MAX_BYTES / 1e6)
    return Inbox(TASK, keys, RULES, config, first_index=5)


def state_of(*epochs: int, num_beats: int = 1) -> BoardState:
    """Return what a board says of seats that are held in ``epochs``."""
    seats = tuple(SeatHolder(seat, epoch, f"actor-{seat}", 10.0) for seat, epoch in enumerate(epochs))
    return BoardState(num_beats=num_beats, seats=seats, is_connected=True)


def first_numbers(opened: list[tuple[SampleBatch, SampleInfo]]) -> list[int]:
    """Return by which fragment each of ``opened`` was sent."""
    return [int(rows["obs"][0, 0]) // 4 for rows, _ in opened]


def trial_of(env: str, config: CommonConfig) -> PlayedTrial:
    """Return a trial of ``config`` in ``env``."""
    env_config = env_config_of(env, config, NO_MODULES)
    return PlayedTrial(env_config, 3, *spaces_of(env_config))


def worker_of(env: str, config: CommonConfig, version: int = 0) -> RolloutWorker:
    """Return the worker of a joined actor, with random weights of a network as the trainer has it."""
    task = Task(TASK, "small", 2, describe_trial(config, trial_of(env, config)))
    specs = SeatSpecs(read_description(task))
    worker = RolloutWorker(specs.spec(Seat(TASK, 0, EPOCH, "actor-0", 15.0)))
    rng = np.random.default_rng(0)
    shapes = specs.weights_shapes.items()
    worker.set_weights(version, {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes})
    return worker


def played(config: CommonConfig, env: str = "CartPole-v1", count: int = 4) -> list[tuple[Any, SampleInfo]]:
    """Return the first fragments of a joined actor."""
    worker = worker_of(env, config)
    try:
        return [worker.sample(0) for _ in range(count)]
    finally:
        worker.stop()


class Clock:
    """The real clock, and what a test adds to it."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.added_s


def eventually(holds: Callable[[], Found | None]) -> Found:
    """Return the first answer that is true: threads and the clocks of servers decide when."""
    ends_at = time.monotonic() + WAIT_S
    while not (found := holds()):
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.005)
    return found


def led(board: Board, task: Task, member: str = "trainer") -> Lead:
    """Announce a task and take the right to train it."""
    board.announce(task)
    return taken(board, member, task_id=task.id)


def taken(board: Board, member: str = "trainer", lease_s: float = LEASE_S, task_id: str = "t1") -> Lead:
    """Take the right to train a task, which is free."""
    lead = board.lead(task_id, member, lease_s)
    assert lead is not None
    return lead


def claimed(board: Board, member: str = "actor", lease_s: float = LEASE_S, task_id: str = "t1") -> Seat:
    """Take a seat of a task that has a free one."""
    seat = board.claim(task_id, member, lease_s)
    assert seat is not None
    return seat


def kept(board: Board, seat: Seat, messages: Sequence[bytes] = ()) -> Beat:
    """Return the answer to a beat from a seat that is held."""
    beat = board.beat(seat, messages)
    assert isinstance(beat, Beat)
    return beat


def published(board: Board, lead: Lead, news: News | None = None) -> TrainerBeat:
    """Return the answer to the trainer's news, who has the right to train."""
    beat = board.publish(lead, news or News())
    assert isinstance(beat, TrainerBeat)
    return beat


def listed(board: Board) -> TaskSummary:
    """Return the line of the only task on a board."""
    (summary,) = board.tasks()
    return summary


class BoardPlace(Protocol):
    def board(self) -> Board:
        """Return another board of this server."""

    def lose_data(self) -> None:
        """Do what a server does that restarts without its data."""

    def close(self) -> None:
        """Close every board."""


class MemoryPlace:
    def __init__(self) -> None:
        self.server = MemoryServer()

    def board(self) -> Board:
        return MemoryBoard(self.server)

    def lose_data(self) -> None:
        self.server.lose_data()

    def close(self) -> None:
        pass


class RedisPlace:
    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._boards: list[Board] = []
        self._server.command("FLUSHALL")

    def board(self) -> Board:
        self._boards.append(open_board(parse_address(self._server.url)))
        return self._boards[-1]

    def lose_data(self) -> None:
        self._server.command("FLUSHALL")
        self._server.command("SCRIPT", "FLUSH")

    def close(self) -> None:
        for board in self._boards:
            board.close()
            board.close()


class QueuePlace:
    """A queue that no other test uses, on a server beside the board."""

    def __init__(self, url: str) -> None:
        self._address = parse_queue_address(url)
        self._task_id = f"task-{secrets.token_hex(4)}"
        self._ends: list[Carrier] = []

    def end(self) -> Carrier:
        """Return another end of the queue."""
        self._ends.append(queue_opener(self._address)(self._task_id))
        return self._ends[-1]

    def close(self) -> None:
        for end in self._ends:
            end.close()


KEY = b"k" * 32
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


def task_with(config: dict[str, Any] | None = None, **keys: Any) -> Task:
    """Return a task that somebody submitted, of one small experiment that has ``keys`` beside ``config``."""
    entry = {"run": "APEX", "env": "CartPole-v1", **keys, "config": {"num_workers": 0, **(config or {})}}
    return Task("t1", "small", 1, file=to_yaml({"small": entry}))


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


def zero_weights(num_observations: int = 4) -> dict[str, Array]:
    """Return weights of EXPERIMENT's network."""
    shapes = {"torso.0": (4, num_observations), "advantage_head.0": (4, 4), "advantage_head.2": (2, 4)}
    shapes |= {"value_head.0": (4, 4), "value_head.2": (1, 4)}
    made: dict[str, Array] = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return made | {f"{name}.bias": np.zeros(shape[0], np.float32) for name, shape in shapes.items()}


class ToldTrainer:
    """Trains a task on a board, at once."""

    def __init__(self, board: Board, task: Task, member: str = "colab-1", lead: Lead | None = None) -> None:
        """``lead`` None: take it as ``member``."""
        self.board, self.task = board, task
        self.lead = lead or taken(board, member, task_id=task.id)
        board.announce(Task(task.id, task.name, task.num_seats, {"protocol": 1}, task.file))

    def put_rows(self, *rows: dict[str, Any] | str) -> None:
        texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        assert self.board.put_rows(self.lead, texts)

    def publish(self, weights_version: int = -1, **figures: Any) -> None:
        published(self.board, self.lead, News(weights_version, {}, figures))

    def put_weights(self, version: int, key: bytes = KEY) -> None:
        """Put weights of the experiment's network there that are all zero."""
        newer = Newer(version, zero_weights(), None, 100)
        blob = seal_weights(self.task.id, self.lead.epoch, newer, TrainerKeys(key, key))
        assert self.board.put_blob(self.lead, blob_name(version), blob)

    def put_result(self, folder: Path, iteration: int, key: bytes = KEY, **metadata: Any) -> None:
        arrays = {"weights": {"torso.0.weight": np.ones((4, 4), np.float32)}}
        directory = checkpoint_directory(folder, iteration)
        packed = pack_checkpoint(write_checkpoint(directory, arrays, {"iteration": iteration}, metadata), key)
        assert self.board.put_blob(self.lead, RESULT, packed)

    def finish(self, status: TaskStatus = TaskStatus.ENDED, reason: str = "") -> None:
        self.board.finish(self.lead, status, reason)


def joined(board: Board, member: str, task_id: str, keys: TrainerKeys) -> JoinedActor:
    """Return an actor that has a seat of a task, as soon as there is one."""
    task = eventually(lambda: board.describe(task_id))
    description = read_description(task)
    specs = SeatSpecs(description)
    seat = eventually(lambda: board.claim(task_id, member, LEASE_S))
    shapes = specs.weights_shapes
    return JoinedActor(board, seat, description.board, keys, lambda seat: RolloutWorker(specs.spec(seat)), shapes)
