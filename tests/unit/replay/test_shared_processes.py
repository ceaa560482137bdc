"""Rows in shared memory between processes: never torn, whoever writes on or dies in the middle of it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import pytest

from rlexp.errors import ResourceError
from rlexp.processes.shared_memory import Segment
from rlexp.replay import ReplayConfig, ReplayShard
from rlexp.replay.shared import RingSizes, SharedReplay
from rlexp.replay.shared.rows import SharedRows, SharedRowWriter
from rlexp.sample_batch import WrittenRows
from tests.memory_users import users_of
from tests.unit.replay.row_writing import check_whole, checked_rows, own_a_segment, write_for_ever

SPAWN = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0
SIZES = RingSizes(capacity=300, num_rings=2, headroom=100)
"""Little room, so that slots are written over all the time."""
CONFIG = ReplayConfig(
    capacity=300,
    learning_starts=1,
    train_batch_size=512,
    prioritized=True,
    alpha=0.6,
    beta=0.4,
    eps=1e-6,
    storage="frames",
)


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``target(*args, connection)`` in a process of its own, which does not outlive the block."""
    here, there = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    child.start()
    try:
        yield child, here
    finally:
        child.kill()
        child.join(PATIENCE_S)
        here.close()
        there.close()


def received(connection: Connection) -> Any:
    assert connection.poll(PATIENCE_S)
    return connection.recv()


class Reader:
    """A shard that finds out itself what was written, and checks every row it draws."""

    def __init__(self, rows: SharedRows) -> None:
        self.rows = rows
        self.shard = ReplayShard(CONFIG, 0, rows)

    def work(self, like: WrittenRows, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline
            self.take_in(like)
            batch = self.shard.replay()
            if batch is not None:
                check_whole(batch)

    def take_in(self, like: WrittenRows) -> None:
        for written in self.rows.unread(like.columns, like.has_td_errors):
            self.shard.add_batch(written)


def kill_9(child: BaseProcess) -> None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL


def test_shared_rows_are_never_torn() -> None:
    replay = SharedReplay(1, SIZES)
    reader = Reader(replay.rows(0))
    with (
        process(write_for_ever, replay.writer(0, 0), 1) as (_, first),
        process(write_for_ever, replay.writer(1, 0), 2) as (_, second),
    ):
        like = received(first)
        received(second)
        reader.work(like, until=lambda: reader.rows.num_added > 50_000)
    assert reader.shard.stats().num_sampled > 100 * SIZES.capacity


@pytest.mark.parametrize("seed", range(3))
def test_shared_rows_survive_a_killed_writer(seed: int) -> None:
    replay = SharedReplay(1, SIZES)
    reader = Reader(replay.rows(0))
    with process(write_for_ever, replay.writer(0, 0), seed) as (writer, told):
        like = received(told)
        reader.work(like, until=lambda: reader.rows.num_added > 2_000)
        kill_9(writer)
    reader.take_in(like)
    before, sampled = reader.rows.num_added, reader.shard.stats().num_sampled
    reader.work(like, until=lambda: reader.shard.stats().num_sampled > sampled + 10 * CONFIG.train_batch_size)
    assert reader.rows.num_added == before
    with process(write_for_ever, replay.writer(0, 0), seed + 10):
        reader.work(like, until=lambda: reader.rows.num_added > before + 2_000)


def test_shared_memory_is_freed_at_the_end() -> None:
    before = set(os.listdir("/dev/shm"))
    segment = Segment.create()
    rows, name = SharedRows(segment, SIZES), segment.handle.name
    with process(write_for_ever, SharedRowWriter([segment.handle], SIZES, 0, 0), 0) as (writer, told):
        received(told)
        assert any(f"/proc/{writer.pid}/" in place for place in users_of(name))
        kill_9(writer)
    assert users_of(name)
    assert all(f"/proc/{os.getpid()}/" in place for place in users_of(name))
    rows.close()
    del rows
    gc.collect()
    assert users_of(name) == []
    assert set(os.listdir("/dev/shm")) <= before


def test_shared_memory_is_freed_after_a_killed_learner() -> None:
    rows = checked_rows(10, np.random.default_rng(0))
    with process(own_a_segment, SIZES) as (owner, told):
        handle = received(told)
        writer = SharedRowWriter([handle], SIZES, 0, 0)
        writer.write(rows)
        kill_9(owner)
    writer.write(rows)  # to nobody any more, but safely
    assert users_of(handle.name)
    with pytest.raises(ResourceError, match="cannot reach the memory"):
        SharedRowWriter([handle], SIZES, 1, 0).write(rows)
    del writer
    gc.collect()
    assert users_of(handle.name) == []
