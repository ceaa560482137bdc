"""Rows that workers write and replay samples in place are those of a slow obvious model, and never torn."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.errors import CheckpointError, ResourceError
from rlexp.processes.shared_memory import Segment
from rlexp.replay.shard import ReplayShard
from rlexp.replay.shared_rows import RingSizes, SharedReplay, SharedRows, SharedRowWriter
from rlexp.replay.storage.array import ArrayStorage
from rlexp.sample_batch import (
    ACTIONS,
    IMPORTANCE_WEIGHTS,
    KEYS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    SampleBatch,
    WrittenRows,
)
from tests.lab.checkpoints import in_memory
from tests.lab.doubles import REPLAY
from tests.lab.rollout import PATIENCE_S, kill_9, process, received, users_of

SIZES = RingSizes(capacity=300, num_rings=2, headroom=100)
"""Little room, so that slots are written over all the time."""
CONFIG = replace(REPLAY, capacity=300, train_batch_size=512)


LONGEST_BATCH = 60


def checked_rows(count: int, rng: np.random.Generator) -> SampleBatch:
    """Random rows, each with the sum of all its numbers; two columns are narrow and two are wide."""
    obs = rng.integers(0, 1000, (count, 25))
    new_obs = rng.integers(0, 1000, (count, 100)).astype(np.float32)
    actions = rng.integers(0, 1000, count)
    return SampleBatch({OBS: obs, NEW_OBS: new_obs, ACTIONS: actions, REWARDS: row_sums(obs, new_obs, actions)})


def row_sums(obs: Array, new_obs: Array, actions: Array) -> Array:
    return np.asarray(obs.sum(axis=1) + new_obs.sum(axis=1) + actions, np.float64)


def check_whole(batch: SampleBatch) -> None:
    np.testing.assert_array_equal(batch[REWARDS], row_sums(batch[OBS], batch[NEW_OBS], batch[ACTIONS]))


def write_for_ever(writer: SharedRowWriter, seed: int, told: Connection) -> None:
    """Write batches of any length as fast as there is room; tell of the first only."""
    rng = np.random.default_rng(seed)
    told.send(writer.write(checked_rows(LONGEST_BATCH, rng)))
    while True:
        writer.write(checked_rows(int(rng.integers(1, LONGEST_BATCH + 1)), rng))


def own_a_segment(sizes: RingSizes, told: Connection) -> None:
    """Be the learner's process: make the memory, let others in, and wait for the end."""
    segment = Segment.create()
    rows = SharedRows(segment, sizes)
    told.send(segment.handle)
    told.recv()
    rows.close()


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
            batch = self.shard.replay(0.4)
            if batch is not None:
                check_whole(batch)

    def take_in(self, like: WrittenRows) -> None:
        for written in self.rows.unread(like.columns, like.has_td_errors):
            self.shard.add_batch(written)


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


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
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


RINGS_CONFIG = replace(REPLAY, train_batch_size=64, alpha=1.0, eps=1.0)
WIDE = 40
"""Numbers in an observation, so many that its column lies apart from the others."""


def numbered(first: int, count: int, td_error: float | None = 0.0) -> SampleBatch:
    """Rows that say in every column which one they are; the reward is 10 for those that are not held yet."""
    numbers = np.arange(first, first + count)
    columns: dict[str, Array] = {OBS: np.repeat(numbers[:, None], WIDE, axis=1).astype(np.float32), ACTIONS: numbers}
    if td_error is not None:
        columns[TD_ERRORS] = np.full(count, td_error, np.float32)
    return SampleBatch(columns)


class Bench:
    """A shard, and a writer for each of its rings."""

    def __init__(self, sizes: RingSizes, prioritized: bool = True) -> None:
        self.segment = Segment.create()
        self.sizes = sizes
        self.rows = SharedRows(self.segment, sizes)
        self.shard = ReplayShard(replace(RINGS_CONFIG, prioritized=prioritized), 0, self.rows)
        self.writers = [SharedRowWriter([self.segment.handle], sizes, ring, ring) for ring in range(sizes.num_rings)]

    def sampled(self) -> SampleBatch:
        batch = self.shard.replay(0.0)
        assert batch is not None
        return batch


def check_repeated(batch: SampleBatch) -> None:
    np.testing.assert_array_equal(batch[OBS], np.repeat(batch[ACTIONS][:, None], WIDE, axis=1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), prioritized=st.booleans())
def test_shared_rows_hold_newest_rows_of_each_ring(data: st.DataObject, prioritized: bool) -> None:
    """Whatever the order of writing and telling: what is held is what a list for each ring would hold."""
    num_rings = data.draw(st.integers(1, 4))
    sizes = RingSizes(data.draw(st.integers(num_rings, 40)), num_rings, headroom=data.draw(st.integers(1, 30)))
    bench, shares = Bench(sizes, prioritized), sizes.shares().tolist()
    written: list[list[int]] = [[] for _ in range(num_rings)]
    taken_in = [0] * num_rings
    untold: list[list[Any]] = [[] for _ in range(num_rings)]
    identity = 0
    for _ in range(data.draw(st.integers(1, 25))):
        ring = data.draw(st.integers(0, num_rings - 1))
        room = sizes.headroom - (len(written[ring]) - taken_in[ring])
        if room and data.draw(st.booleans()):
            count = data.draw(st.integers(1, room))
            untold[ring].append(bench.writers[ring].write(numbered(identity, count)))
            written[ring] += range(identity, identity + count)
            identity += count
        elif untold[ring]:
            told = untold[ring].pop(data.draw(st.integers(0, len(untold[ring]) - 1)))  # any, also a later one first
            end = max(taken_in[ring], told.first + told.count)
            assert bench.shard.add_batch(told) == end - taken_in[ring]
            taken_in[ring] = end
        held = [
            row for own, n, share in zip(written, taken_in, shares, strict=True) for row in own[max(n - share, 0) : n]
        ]
        assert (bench.rows.size, bench.rows.num_added) == (len(held), sum(taken_in))
        if held:
            batch = bench.sampled()
            check_repeated(batch)
            assert set(batch[ACTIONS].tolist()) <= set(held)
            keys = batch[KEYS]
            assert [written[key % num_rings][key // num_rings] for key in keys.tolist()] == batch[ACTIONS].tolist()
            assert bench.shard.update_priorities(keys, np.ones(len(keys))) == 0
        everything = bench.rows.read(bench.rows.nth(np.arange(len(held)))) if held else None
        assert ([] if everything is None else everything[ACTIONS].tolist()) == held


def test_shared_rows_draw_exactly_the_rows_held() -> None:
    for prioritized in (True, False):
        bench = Bench(RingSizes(capacity=10, num_rings=3, headroom=7), prioritized)
        for turn in range(30):
            bench.shard.add_batch(bench.writers[turn % 3].write(numbered(10 * turn, 7)))
        drawn = {row for _ in range(20) for row in bench.sampled()[ACTIONS].tolist()}
        # Shares of 3, 3 and 4 of the last rows of turns 27, 28 and 29.
        assert drawn == {274, 275, 276, 284, 285, 286, 293, 294, 295, 296}
        assert bench.shard.stats().size == bench.shard.stats().capacity == 10


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (0.0, -3.0, 0.8),  # |0| + 1 against |-3| + 1 (the config's eps is 1): four of five draws
        (3.0, None, 0.5),  # without one, the highest priority so far
    ],
)
def test_shared_rows_bring_first_td_errors(first: float, second: float | None, share: float) -> None:
    bench = Bench(RingSizes(capacity=100, num_rings=2, headroom=50))
    bench.shard.add_batch(bench.writers[0].write(numbered(0, 40, first)))
    bench.shard.add_batch(bench.writers[1].write(numbered(40, 40, second)))
    drawn = np.concatenate([bench.sampled()[ACTIONS] for _ in range(200)])
    assert TD_ERRORS not in bench.sampled()
    assert np.mean(drawn >= 40) == pytest.approx(share, abs=0.02)


def test_shared_rows_drop_stale_keys() -> None:
    bench = Bench(RingSizes(capacity=8, num_rings=2, headroom=4))
    for turn in range(2):
        bench.shard.add_batch(bench.writers[turn].write(numbered(4 * turn, 4, td_error=9.0)))
    old = bench.sampled()[KEYS]
    for _ in range(3):  # ring 0 alone goes on, over the slots of its old rows
        bench.shard.add_batch(bench.writers[0].write(numbered(100, 4)))
    of_ring_0 = int(np.count_nonzero(old % 2 == 0))
    assert 0 < of_ring_0 < len(old)
    assert bench.shard.update_priorities(old, np.full(len(old), 1e6)) == of_ring_0
    assert bench.shard.update_priorities(np.array([-1, 10**9, -7]), np.ones(3)) == 3
    assert set(bench.sampled()[ACTIONS].tolist()) <= {4, 5, 6, 7}  # their new priority hit nobody in ring 0


def test_shared_rows_refuse_rows_that_were_not_written() -> None:
    bench = Bench(RingSizes(capacity=10, num_rings=1, headroom=5))
    told = bench.writers[0].write(numbered(0, 3))
    with pytest.raises(ValueError, match="up to 4 of ring 0 were announced, but 3 were written"):
        bench.shard.add_batch(replace(told, count=4))
    assert bench.rows.size == 0
    bench.shard.add_batch(told)
    assert bench.rows.size == 3


def test_shared_rows_refuse_other_columns() -> None:
    bench = Bench(RingSizes(capacity=10, num_rings=2, headroom=5))
    bench.shard.add_batch(bench.writers[0].write(numbered(0, 3)))
    other = SampleBatch({OBS: np.zeros((1, 2), np.float32), ACTIONS: np.zeros(1, np.int64)})
    with pytest.raises(ValueError, match=r"obs.*\[2\].*\[40\]"):
        bench.shard.add_batch(bench.writers[1].write(other))
    with pytest.raises(ValueError, match="columns"):
        bench.writers[0].write(SampleBatch({REWARDS: np.zeros(1)}))
    assert bench.rows.size == 3


def test_shared_rows_ignore_order_of_columns() -> None:
    bench = Bench(RingSizes(capacity=10, num_rings=2, headroom=5))
    rows = numbered(0, 5)
    turned = SampleBatch({name: rows[name] for name in reversed(list(rows))})
    for writer, batch in zip(bench.writers, (rows, turned), strict=True):
        bench.shard.add_batch(writer.write(batch))
        check_repeated(bench.sampled())
    assert bench.rows.size == 10


def test_ring_ignores_incomplete_batch_of_dead_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(RingSizes(capacity=20, num_rings=1, headroom=10))
    told = bench.writers[0].write(numbered(0, 5))
    bench.shard.add_batch(told)
    write = ArrayStorage.write

    def write_and_die(storage: ArrayStorage, start: int, batch: SampleBatch) -> None:
        write(storage, start, batch.slice(0, 3))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ArrayStorage, "write", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            bench.writers[0].write(numbered(5, 4))
    assert bench.rows.unread(told.columns, told.has_td_errors) == []
    with pytest.raises(ValueError, match="up to 6 of ring 0 were announced, but 5 were written"):
        bench.shard.add_batch(replace(told, first=5, count=1))


def test_shared_row_writer_chooses_shards_by_seed() -> None:
    sizes = RingSizes(capacity=1000, num_rings=2, headroom=500)
    segments = [Segment.create() for _ in range(3)]
    handles = [segment.handle for segment in segments]
    writers = [SharedRowWriter(handles, sizes, ring, seed) for ring, seed in ((0, 1), (1, 1))]
    dealt = [[writer.write(numbered(0, 1)).shard for _ in range(50)] for writer in writers]
    assert dealt[0] == dealt[1]
    assert set(dealt[0]) == {0, 1, 2}


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("counts", [(3, 1), (10, 25), (40, 40)])
def test_shared_rows_loaded_state_accepts_new_rows(prioritized: bool, counts: Sequence[int]) -> None:
    sizes = RingSizes(capacity=21, num_rings=2, headroom=40)
    original = Bench(sizes, prioritized)
    for ring, count in enumerate(counts):
        original.shard.add_batch(original.writers[ring].write(numbered(100 * ring, count, td_error=float(ring))))
    original.shard.update_priorities(original.sampled()[KEYS], np.arange(64.0))
    state = in_memory(original.shard.state())
    held = original.rows.read(original.rows.nth(np.arange(original.rows.size)))[ACTIONS].tolist()
    copy = Bench(RingSizes(capacity=21, num_rings=3, headroom=40), prioritized)  # another number of workers
    copy.shard.load(state)
    again = in_memory(copy.shard.state())
    for name in state:
        np.testing.assert_array_equal(again[name], state[name])
    assert copy.rows.read(copy.rows.nth(np.arange(len(held))))[ACTIONS].tolist() == held
    check_repeated(copy.sampled())
    for writer in copy.writers:
        copy.shard.add_batch(writer.write(numbered(1000, 7)))
    assert copy.rows.size == min(len(held) + 21, 21)
    assert set(copy.sampled()[ACTIONS].tolist()) <= set(range(1000, 1007)) | set(held)


def test_shared_rows_exchange_states_with_own_rows() -> None:
    shared = Bench(RingSizes(capacity=20, num_rings=2, headroom=20))
    for ring in range(2):
        shared.shard.add_batch(shared.writers[ring].write(numbered(100 * ring, 15, td_error=3.0)))
    plain = ReplayShard(replace(RINGS_CONFIG, capacity=20), 0)
    plain.load(in_memory(shared.shard.state()))
    plain.add_batch(numbered(200, 5))
    back = Bench(RingSizes(capacity=20, num_rings=2, headroom=20))
    back.shard.load(in_memory(plain.state()))
    rows = back.rows.read(back.rows.nth(np.arange(20)))
    check_repeated(rows)
    assert len(set(rows[ACTIONS].tolist())) == 20
    assert set(range(200, 205)) <= set(rows[ACTIONS].tolist()) <= {*range(15), *range(100, 115), *range(200, 205)}
    assert back.rows.num_added == plain.stats().num_added


def test_shared_rows_load_empty_state() -> None:
    sizes = RingSizes(capacity=20, num_rings=2, headroom=20)
    bench = Bench(sizes)
    bench.shard.load(in_memory(Bench(sizes).shard.state()))
    bench.shard.add_batch(bench.writers[0].write(numbered(0, 3)))
    assert bench.rows.size == 3


def test_shared_rows_refuse_state_of_other_capacity() -> None:
    bench = Bench(RingSizes(capacity=20, num_rings=2, headroom=20))
    state = in_memory(bench.shard.state())
    with pytest.raises(CheckpointError, match="capacity 20 does not fit into 10"):
        Bench(RingSizes(capacity=10, num_rings=2, headroom=20)).shard.load(state)
    with pytest.raises(CheckpointError, match="should hold 3 rows"):
        bench.shard.load({**state, "num_added": 3})
    bench.writers[0].write(numbered(0, 1))
    with pytest.raises(CheckpointError, match="before workers write"):
        bench.shard.load(state)


def test_shared_rows_nbytes_and_close() -> None:
    bench = Bench(RingSizes(capacity=20, num_rings=2, headroom=20), prioritized=False)
    assert bench.shard.stats().nbytes == 0
    bench.shard.add_batch(bench.writers[0].write(numbered(0, 3)))
    check_repeated(bench.sampled())
    assert bench.shard.stats().nbytes == 60 * (WIDE * 4 + 8 + 4)
    bench.shard.close()
    bench.shard.close()
    assert bench.shard.stats().nbytes == 0


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_ring_sizes_refuse_zero(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        RingSizes(*sizes)


def test_ring_sizes_with_more_rings_than_rows() -> None:
    bench = Bench(RingSizes(capacity=2, num_rings=3, headroom=4))
    for ring in range(3):
        assert bench.shard.add_batch(bench.writers[ring].write(numbered(10 * ring, 4))) == 4
    assert bench.rows.size == 2
    assert set(bench.sampled()[ACTIONS].tolist()) == {13, 23}
    assert bench.sampled()[IMPORTANCE_WEIGHTS].tolist() == [1.0] * 64
