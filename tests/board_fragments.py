"""Fragments as joined actors send them, and what a trainer needs to open them."""

import numpy as np

from rlexp.board.messages.credentials import ActorKeys, SharedKeys, TrainerKeys
from rlexp.board.messages.envelope import Header
from rlexp.board.messages.payloads import seal_fragment
from rlexp.board.servers.board import SeatHolder
from rlexp.board.trainer.admission import AdmissionRules, ColumnRule, Strikes
from rlexp.board.trainer.inbox import Inbox
from rlexp.board.trainer.link import BoardState
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.fragment import SampleInfo, SampleTime
from rlexp.sample_batch import Array, SampleBatch

TASK = "task-1"
KEYS = SharedKeys.of("secret", TASK)
EPOCH = 7
MAX_BYTES = 1 << 20
RULES = AdmissionRules(
    columns={"obs": ColumnRule("f", (2,), -1.0, 100.0, itemsize=4), "actions": ColumnRule("i", (), 0, 3)},
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
    return Inbox(TASK, keys, RULES, Strikes(max_strikes), 2, 5, window, MAX_BYTES)


def state_of(*epochs: int, num_beats: int = 1) -> BoardState:
    """Return what a board says of seats that are held in ``epochs``."""
    seats = tuple(SeatHolder(seat, epoch, f"actor-{seat}", 10.0) for seat, epoch in enumerate(epochs))
    return BoardState(num_beats=num_beats, seats=seats, is_connected=True)


def first_numbers(opened: list[tuple[SampleBatch, SampleInfo]]) -> list[int]:
    """Return by which fragment each of ``opened`` was sent."""
    return [int(rows["obs"][0, 0]) // 4 for rows, _ in opened]
