"""Every storage returns what was written; frame storage keeps it in less memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay import ReplayShard
from rlexp.replay.rows import RowRing
from rlexp.replay.storage import STORAGES
from rlexp.replay.storage.array import ArrayStorage
from rlexp.replay.storage.frame_pool import PackedFrames, PlainFrames
from rlexp.replay.storage.frames import FrameStorage, MakeMemory
from rlexp.sample_batch import (
    ACTIONS,
    FRAME_IDS,
    NEW_FRAME_IDS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    FrameRows,
    SampleBatch,
)
from tests.lab.checkpoints import in_memory
from tests.lab.rollout import assert_same_batch
from tests.unit.replay.test_replay_shard import CONFIG

CAPACITY = 8
FRAME = (16, 16, 1)
STACKED = 4
every_storage = pytest.mark.parametrize("storage_name", STORAGES)


def frame(number: int) -> Array:
    """A frame that compresses a little, and that no other number has."""
    return np.resize(np.array([number % 256, number // 256, number % 7], np.uint8), FRAME)


def stack(newest: int) -> list[int]:
    """The numbers of the frames that an env shows, of which ``newest`` is the newest and 0 the first."""
    return [max(newest - age, 0) for age in range(STACKED - 1, -1, -1)]


def sent(first: int, obs: Sequence[Sequence[int]], new_obs: Sequence[Sequence[int]]) -> FrameRows:
    """Rows ``first``, ``first`` + 1, ... whose observations are made of frames of these numbers; read-only."""
    numbers = np.unique(np.array([*obs, *new_obs], np.int64))
    actions = np.arange(first, first + len(obs))
    columns: dict[str, Array] = {
        FRAME_IDS: numbers.searchsorted(np.reshape(obs, (len(obs), STACKED))),
        ACTIONS: actions,
        REWARDS: actions.astype(np.float32),
        NEW_FRAME_IDS: numbers.searchsorted(np.reshape(new_obs, (len(obs), STACKED))),
    }
    frames = np.array([frame(number) for number in numbers.tolist()], np.uint8).reshape(-1, *FRAME)
    for column in (*columns.values(), frames, numbers):
        column.flags.writeable = False
    return FrameRows(SampleBatch(columns), frames, numbers)


def played(first: int, count: int, n_step: int = 3) -> FrameRows:
    """``count`` rows of one env from its step ``first`` on."""
    steps = range(first, first + count)
    return sent(first, [stack(step) for step in steps], [stack(step + n_step) for step in steps])


def whole(rows: FrameRows) -> SampleBatch:
    """The same rows with whole observations, put together one by one."""
    observations = {
        ids: [np.concatenate([rows.frames[place] for place in places], axis=-1) for places in rows.rows[ids]]
        for ids in (FRAME_IDS, NEW_FRAME_IDS)
    }
    obs, new_obs = (np.array(column, np.uint8).reshape(-1, *FRAME[:2], STACKED) for column in observations.values())
    return rows.rows.exchange({FRAME_IDS: (OBS, obs), NEW_FRAME_IDS: (NEW_OBS, new_obs)})


class PlainRing:
    """The slow, obvious model: whole observations, by slot."""

    def __init__(self) -> None:
        self._storage = ArrayStorage(CAPACITY)
        self.num_added = 0

    def add(self, batch: SampleBatch) -> None:
        for row in range(len(batch)):
            self._storage.write(self.num_added % CAPACITY, batch.slice(row, row + 1))
            self.num_added += 1

    def held(self) -> SampleBatch:
        return self._storage.read(np.arange(min(self.num_added, CAPACITY)))


numbers = st.integers(0, 40)
any_stack = st.lists(numbers, min_size=STACKED, max_size=STACKED)
any_rows = st.lists(st.tuples(any_stack, any_stack), max_size=2 * CAPACITY)
"""Rows of stacks that have nothing to do with each other; frames come again long after they were overwritten."""


@every_storage
@settings(deadline=None)
@given(
    batches=st.lists(any_rows, max_size=5), through_a_checkpoint=st.booleans(), whole_batches=st.sets(st.integers(0, 4))
)
def test_storage_returns_unrelated_stacks_unchanged(
    storage_name: str,
    batches: list[list[tuple[list[int], list[int]]]],
    through_a_checkpoint: bool,
    whole_batches: set[int],
) -> None:
    ring, model = RowRing(CAPACITY, STORAGES[storage_name](CAPACITY)), PlainRing()
    for index, rows in enumerate(batches):
        batch = sent(model.num_added, [obs for obs, _ in rows], [new_obs for _, new_obs in rows])
        ring.write(whole(batch) if index in whole_batches else batch)
        model.add(whole(batch))
        if through_a_checkpoint:
            state = in_memory(ring.state())
            ring = RowRing(CAPACITY, STORAGES[storage_name](CAPACITY))
            ring.load(state)
        if model.num_added:
            assert_same_batch(ring.read(np.arange(ring.size)), model.held().with_columns(keys=expected_keys(ring)))


def expected_keys(ring: RowRing) -> Array:
    return np.array([max(key for key in range(ring.num_added) if key % CAPACITY == slot) for slot in range(ring.size)])


@every_storage
@settings(deadline=None)
@given(
    counts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=30),
    n_step=st.integers(1, 5),
    lost=st.sets(st.integers(0, 29)),
)
def test_storage_returns_streams_unchanged(
    storage_name: str, counts: list[tuple[int, int]], n_step: int, lost: set[int]
) -> None:
    """Fragments of three envs follow each other in any order; some go to another shard."""
    ring, model, steps = RowRing(CAPACITY, STORAGES[storage_name](CAPACITY)), PlainRing(), [0, 1000, 2000]
    for index, (env, count) in enumerate(counts):
        batch = played(steps[env], count, n_step)
        steps[env] += count
        if index not in lost:
            ring.write(batch)
            model.add(whole(batch))
    if model.num_added:
        assert_same_batch(ring.read(np.arange(ring.size)), model.held().with_columns(keys=expected_keys(ring)))


@every_storage
def test_storage_read_batches_do_not_change(storage_name: str) -> None:
    storage = STORAGES[storage_name](CAPACITY)
    storage.write(0, played(10, CAPACITY))
    kept = storage.read(np.tile(np.arange(CAPACITY), 200))
    for first in (100, 200):
        storage.write(0, played(first, CAPACITY))
        storage.read(np.tile(np.arange(CAPACITY), 200))
    expected = whole(played(10, CAPACITY))
    assert_same_batch(kept.slice(0, CAPACITY), expected)
    assert_same_batch(kept.slice(199 * CAPACITY, 200 * CAPACITY), expected)


def bytes_beside_frames(capacity: int) -> int:
    """Bytes of all columns, with a frame's id four times in an observation's place."""
    plain = ArrayStorage(capacity)
    ids = np.zeros((1, STACKED), np.int32)
    plain.write(0, played(0, 1).rows.with_columns(**{FRAME_IDS: ids, NEW_FRAME_IDS: ids}))
    return plain.nbytes


def test_frame_storage_keeps_each_frame_once_while_referenced() -> None:
    capacity, frame_bytes = 100, 16 * 16
    storage = FrameStorage(capacity)
    ring = RowRing(capacity, storage)
    for first in range(0, 1000, 10):
        ring.write(played(first, 10))
    num_frames = (storage.nbytes - bytes_beside_frames(capacity)) / (frame_bytes + 8 + 4)
    # 100 rows show as many frames as their newest observations are, and 3 before and 3 after those. A pool that
    # was too small grew by what was lacking or by a thirty-second.
    assert 106 <= num_frames <= 106 + 10


def test_frame_storage_keeps_all_frames_of_its_own_rows() -> None:
    """Of a worker that deals its fragments to two shards, each has all that its own rows show."""
    storage = FrameStorage(100)
    ring = RowRing(100, storage)
    for first in range(0, 200, 20):
        ring.write(played(first, 10))
    num_frames = (storage.nbytes - bytes_beside_frames(100)) / (16 * 16 + 8 + 4)
    assert num_frames == 13 + 9 * 16  # the first rows show the first frame again and again
    assert_same_batch(ring.read(np.array([99])).slice(0, 1), whole(played(189, 1)).with_columns(keys=np.array([99])))


def test_frame_storage_nbytes_estimates_full_size() -> None:
    ring = RowRing(1000, FrameStorage(1000, PackedFrames))
    assert ring.nbytes == 0
    for first in range(0, 200, 20):
        ring.write(played(first, 20))
    foretold = ring.nbytes
    for first in range(200, 3000, 20):
        ring.write(played(first, 20))
    assert ring.nbytes == pytest.approx(foretold, rel=0.1)


def test_frame_storage_compression_saves_memory() -> None:
    plain, compressed = (FrameStorage(100, memory) for memory in (PlainFrames, PackedFrames))
    for storage in (plain, compressed):
        storage.write(0, played(0, 100))
    assert compressed.nbytes - bytes_beside_frames(100) < (plain.nbytes - bytes_beside_frames(100)) / 2


def test_frame_storage_keeps_incompressible_frames() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (CAPACITY, 16, 16, STACKED), np.uint8)
    batch = SampleBatch({OBS: noise, NEW_OBS: noise[::-1]})
    storage = FrameStorage(CAPACITY, PackedFrames)
    storage.write(0, batch)
    assert_same_batch(storage.read(np.arange(CAPACITY)), batch)


@pytest.mark.parametrize(
    "observations",
    [
        np.arange(6 * 20 * 20 * 3, dtype=np.uint8).reshape(6, 20, 20, 3),
        np.linspace(-1, 1, 6 * 12 * 12 * 4, dtype=np.float32).reshape(6, 12, 12, 4),
        np.arange(6 * 300, dtype=np.float32).reshape(6, 300),
        np.arange(6 * 4 * 20 * 20, dtype=np.uint8).reshape(6, 4, 20, 20),
        np.where(np.arange(6 * 300) % 7, np.nan, -0.0).reshape(6, 300),
        np.zeros((6, 32, 32, 1), np.uint8),
    ],
    ids=["colours", "float stacks", "vectors", "channels first", "odd floats", "one frame"],
)
@every_storage
def test_storage_returns_observations_of_any_shape(storage_name: str, observations: Array) -> None:
    batch = SampleBatch({OBS: observations, ACTIONS: np.arange(6), NEW_OBS: observations[::-1]})
    storage = STORAGES[storage_name](CAPACITY)
    storage.write(0, batch)
    read = storage.read(np.array([5, 0, 5]))
    for name in (OBS, NEW_OBS):
        assert read[name].tobytes() == batch[name][[5, 0, 5]].tobytes()
        assert read[name].dtype == observations.dtype


@every_storage
def test_storage_keeps_small_observations_plain(storage_name: str) -> None:
    plain, storage = ArrayStorage(CAPACITY), STORAGES[storage_name](CAPACITY)
    batch = SampleBatch({OBS: np.zeros((2, 255), np.float32), NEW_OBS: np.ones((2, 255), np.float32)})
    for each in (plain, storage):
        each.write(0, batch)
    assert storage.nbytes == plain.nbytes
    assert_same_batch(storage.read(np.arange(2)), batch)


def with_frames(rows: FrameRows, frames: Array) -> FrameRows:
    return FrameRows(rows.rows, frames, rows.numbers)


@pytest.mark.parametrize(
    "wrong",
    [
        SampleBatch({ACTIONS: np.arange(2)}),
        with_frames(played(0, 2), np.zeros((6, 16, 17, 1), np.uint8)),
        with_frames(played(0, 2), np.zeros((6, *FRAME), np.int8)),
        FrameRows(
            played(0, 2).rows.with_columns(**{REWARDS: np.zeros(2)}), np.zeros((6, *FRAME), np.uint8), np.arange(6)
        ),
        FrameRows(played(0, 2).rows.with_columns(more=np.zeros(2)), np.zeros((6, *FRAME), np.uint8), np.arange(6)),
        FrameRows(
            played(0, 2).rows.with_columns(**dict.fromkeys((FRAME_IDS, NEW_FRAME_IDS), np.zeros((2, 3), int))),
            np.zeros((6, *FRAME), np.uint8),
            np.arange(6),
        ),
        SampleBatch({OBS: np.zeros((2, 4), np.float32), ACTIONS: np.arange(2), NEW_OBS: np.zeros((2, 4), np.float32)}),
    ],
    ids=["no observations", "other shape", "other dtype", "other rewards", "more", "fewer frames", "small ones"],
)
def test_frame_storage_refuses_other_columns_without_writing(wrong: SampleBatch | FrameRows) -> None:
    storage = FrameStorage(CAPACITY)
    storage.write(0, played(0, CAPACITY))
    with pytest.raises(ValueError, match="column"):
        storage.write(0, wrong)
    assert_same_batch(storage.read(np.arange(CAPACITY)), whole(played(0, CAPACITY)))


@every_storage
def test_storage_close_is_idempotent(storage_name: str) -> None:
    storage = STORAGES[storage_name](CAPACITY)
    storage.write(0, played(0, CAPACITY))
    storage.close()
    storage.close()
    assert storage.nbytes == 0
    storage.write(0, played(5, 2))
    assert_same_batch(storage.read(np.arange(2)), whole(played(5, 2)))


@every_storage
def test_storage_loads_whole_observations(storage_name: str) -> None:
    source, target = ArrayStorage(CAPACITY), STORAGES[storage_name](CAPACITY)
    source.write(0, whole(played(0, CAPACITY)))
    target.load(in_memory(source.state(CAPACITY)), CAPACITY)
    assert_same_batch(target.read(np.arange(CAPACITY)), whole(played(0, CAPACITY)))
    as_sent = STORAGES[storage_name](CAPACITY)
    as_sent.write(0, played(0, CAPACITY))
    assert target.nbytes == as_sent.nbytes


def test_frame_storage_state_has_referenced_frames_only() -> None:
    storage = FrameStorage(CAPACITY)
    for first in (0, 100, 200):
        storage.write(0, played(first, CAPACITY))
    assert len(in_memory(storage.state(CAPACITY))["frames"]) == CAPACITY + 6


@pytest.mark.parametrize(("saved", "loading"), [(PlainFrames, PackedFrames), (PackedFrames, PlainFrames)])
def test_frame_storage_refuses_state_of_other_compression(saved: MakeMemory, loading: MakeMemory) -> None:
    source = FrameStorage(CAPACITY, saved)
    source.write(0, played(0, 4))
    with pytest.raises(CheckpointError, match=r"compress|plain"):
        FrameStorage(CAPACITY, loading).load(in_memory(source.state(4)), 4)


@pytest.mark.parametrize("part", ["frames.sizes", "frames.packed", "obs"])
def test_frame_storage_refuses_incomplete_state(part: str) -> None:
    storage = FrameStorage(CAPACITY, PackedFrames)
    storage.write(0, played(0, 4))
    state = in_memory(storage.state(4))
    state[part] = state[part][:-1]
    with pytest.raises(CheckpointError):
        FrameStorage(CAPACITY, PackedFrames).load(state, 4)
    del state[part]
    with pytest.raises(CheckpointError):
        FrameStorage(CAPACITY, PackedFrames).load(state, 4)


@pytest.mark.parametrize("make_memory", [PlainFrames, PackedFrames])
def test_rows_with_one_column_of_frames_are_kept_and_restored(make_memory: MakeMemory) -> None:
    def without_new(rows: FrameRows) -> FrameRows:
        columns = {name: column for name, column in rows.rows.columns.items() if name != NEW_FRAME_IDS}
        return replace(rows, rows=SampleBatch(columns))

    storage, again = FrameStorage(CAPACITY, make_memory), FrameStorage(CAPACITY, make_memory)
    for start in (0, 0, 4):
        storage.write(start, without_new(played(5 * start, 4)))
    again.load(in_memory(storage.state(8)), 8)
    for held in (storage, again):
        assert_same_batch(held.read(np.arange(4, 8)), without_new(played(20, 4)).stacks())


def test_frame_storage_refuses_state_with_unknown_ids() -> None:
    storage = FrameStorage(CAPACITY)
    storage.write(0, played(0, 4))
    for wrong in (-1, 1000):
        state = in_memory(storage.state(4))
        state[OBS][1, 2] = wrong
        with pytest.raises(CheckpointError, match="frames"):
            FrameStorage(CAPACITY).load(state, 4)


def test_shard_batches_do_not_depend_on_storage() -> None:
    plain, framed, packed = (
        ReplayShard(replace(CONFIG, storage=storage), seed=3) for storage in ("frames", "frames", "compressed_frames")
    )
    for first in range(0, 150, 10):
        batch = played(first, 10)
        errors = {TD_ERRORS: np.arange(10, dtype=np.float32)}
        plain.add_batch(whole(batch).with_columns(**errors))
        for shard in (framed, packed):
            shard.add_batch(FrameRows(batch.rows.with_columns(**errors), batch.frames, batch.numbers))
    restored = ReplayShard(replace(CONFIG, storage="compressed_frames"), seed=0)
    restored.load(in_memory(packed.state()))
    expected = plain.replay(0.5)
    assert expected is not None
    for shard in (framed, packed, restored):
        drawn = shard.replay(0.5)
        assert drawn is not None
        assert_same_batch(drawn, expected)
