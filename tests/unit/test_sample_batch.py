from __future__ import annotations

import itertools
import pickle
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from rlexp.sample_batch import ACTIONS, OBS, REWARDS, Array, SampleBatch, has_frames, num_frames, side_by_side
from rlexp.schedules import LinearSchedule, derive_seed


def make_batch(start: int = 0, count: int = 4) -> SampleBatch:
    rows = np.arange(start, start + count)
    return SampleBatch({OBS: np.stack([rows, -rows], axis=1).astype(np.float32), ACTIONS: rows})


def test_counts_and_names_its_columns() -> None:
    batch = make_batch(count=3)
    assert (len(batch), batch.count, list(batch)) == (3, 3, [OBS, ACTIONS])
    assert OBS in batch
    assert REWARDS not in batch
    assert batch.nbytes == 3 * 2 * 4 + 3 * 8


def test_repr_gives_types_and_shapes() -> None:
    assert repr(make_batch(count=3)) == "SampleBatch(obs float32[3, 2], actions int64[3])"


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"different lengths.*'actions': 2"):
        SampleBatch({OBS: np.zeros((3, 2)), ACTIONS: np.zeros(2)})


def test_no_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        SampleBatch({})


def test_columns_are_added_to_a_new_batch_only() -> None:
    batch = make_batch()
    richer = batch.with_columns(**{REWARDS: np.ones(4), ACTIONS: np.zeros(4)})
    assert REWARDS not in batch
    assert batch[ACTIONS].tolist() == [0, 1, 2, 3]
    assert richer[REWARDS].tolist() == [1, 1, 1, 1]
    assert richer[ACTIONS].tolist() == [0, 0, 0, 0]
    assert richer[OBS] is batch[OBS]


def test_a_slice_is_a_view_of_the_rows() -> None:
    batch = make_batch()
    part = batch.slice(1, 3)
    assert part[ACTIONS].tolist() == [1, 2]
    assert part[OBS].tolist() == [[1, -1], [2, -2]]
    assert np.shares_memory(part[OBS], batch[OBS])


def test_concat_joins_rows_in_order() -> None:
    joined = SampleBatch.concat(make_batch(start, count) for start, count in ((0, 2), (2, 0), (2, 3)))
    assert joined[ACTIONS].tolist() == [0, 1, 2, 3, 4]
    assert joined[OBS].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3], [4, -4]]
    assert joined[OBS].dtype == np.float32


def test_concat_of_one_batch_copies_nothing() -> None:
    batch = make_batch()
    assert SampleBatch.concat([batch])[OBS] is batch[OBS]


def test_concat_keeps_memory_order() -> None:
    """Frame by frame, where stacks are made of frames."""
    frames = np.arange(2 * 3 * 5 * 4, dtype=np.uint8).reshape(2, 3, 5, 4)
    batch = SampleBatch({OBS: frames.transpose(0, 2, 3, 1)})
    joined = SampleBatch.concat([batch, batch])[OBS]
    assert np.array_equal(joined, np.concatenate([batch[OBS], batch[OBS]]))
    assert joined.transpose(0, 3, 1, 2).flags.c_contiguous


def test_concat_of_an_iterator_and_its_number_of_rows_holds_one_batch_at_a_time() -> None:
    alive: list[weakref.ref[Array]] = []

    def batches() -> Iterator[SampleBatch]:
        for start in range(0, 12, 4):
            assert [reference for reference in alive[:-1] if reference() is not None] == []
            batch = make_batch(start)
            alive.append(weakref.ref(batch[OBS]))
            yield batch
            del batch

    assert SampleBatch.concat(batches(), 12)[ACTIONS].tolist() == list(range(12))


def test_concat_of_different_columns_is_refused() -> None:
    with pytest.raises(KeyError, match=ACTIONS):
        SampleBatch.concat([make_batch(), SampleBatch({OBS: np.zeros((4, 2))})])


def test_read_only_columns_are_accepted() -> None:
    batch = make_batch()
    for column in batch.columns.values():
        column.setflags(write=False)
    batch.slice(0, 1).with_columns(**{REWARDS: np.ones(1)})
    assert SampleBatch.concat([batch, batch]).count == 8


def test_pickle_keeps_memory_order() -> None:
    """Frame by frame, where stacks are made of frames: nothing is copied on the way, and nothing after it."""
    frames = np.arange(2 * 3 * 5 * 4, dtype=np.uint8).reshape(2, 3, 5, 4)
    batch = SampleBatch({OBS: frames.transpose(0, 2, 3, 1), ACTIONS: np.arange(2), REWARDS: np.zeros((2, 0))})
    buffers: list[pickle.PickleBuffer] = []
    word = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) >= frames.nbytes
    arrived = pickle.loads(word, buffers=buffers)  # noqa: S301 (as Ray does)
    assert list(arrived) == list(batch)
    assert arrived[OBS].strides == batch[OBS].strides
    assert np.shares_memory(arrived[OBS], frames)
    for name in batch:
        np.testing.assert_array_equal(arrived[name], batch[name])


def test_pickle_of_strided_rows() -> None:
    batch = SampleBatch({OBS: np.arange(12).reshape(6, 2)[::2], ACTIONS: np.arange(3)[::-1]})
    arrived = pickle.loads(pickle.dumps(batch, protocol=5))  # noqa: S301 (as Ray does)
    for name in batch:
        np.testing.assert_array_equal(arrived[name], batch[name])


@pytest.mark.parametrize(("shape", "count"), [((3, 5, 1), 4), ((3, 5, 4), 1), ((7,), 1), ((3, 5, 2), 3)])
def test_observations_are_their_frames_side_by_side(shape: tuple[int, ...], count: int) -> None:
    frames = np.random.default_rng(0).random((6, count, *shape))
    expected = np.array([np.concatenate(list(row), axis=-1) for row in frames])
    np.testing.assert_array_equal(side_by_side(frames), expected)


@pytest.mark.parametrize(
    ("shape", "count"), [((84, 84, 4), 4), ((84, 84, 1), 1), ((64, 64, 12), 12), ((4, 84, 84), 1), ((4000,), 1)]
)
def test_each_channel_of_an_image_is_a_frame(shape: tuple[int, ...], count: int) -> None:
    assert has_frames(shape, np.dtype(np.uint8))
    assert num_frames(shape) == count


def test_small_observations_have_no_frames() -> None:
    assert not has_frames((128,), np.dtype(np.uint8))
    assert not has_frames((), np.dtype(np.float32))
    assert has_frames((128,), np.dtype(np.float64))


@pytest.mark.parametrize(
    ("t", "value"), [(0, 1.0), (1, 0.91), (5, 0.55), (9, 0.19), (10, 0.1), (11, 0.1), (10**12, 0.1)]
)
def test_falls_linearly_then_stays(t: int, value: float) -> None:
    assert LinearSchedule(initial=1.0, final=0.1, timesteps=10).value(t) == pytest.approx(value)


def test_rises_where_the_final_value_is_higher() -> None:
    assert LinearSchedule(initial=0.4, final=1.0, timesteps=4).value(1) == pytest.approx(0.55)


@pytest.mark.parametrize("timesteps", [0, -1])
def test_without_time_it_is_at_its_end_at_once(timesteps: int) -> None:
    assert LinearSchedule(initial=1.0, final=0.1, timesteps=timesteps).value(0) == pytest.approx(0.1)


def test_the_same_stream_has_the_same_seed_on_every_machine() -> None:
    # Written down once: a change here makes every recorded experiment another one.
    assert derive_seed(0, "learner") == 242458952
    assert derive_seed(42, "worker", 3, "env") == 1957126330


def test_streams_differ_by_seed_by_name_and_by_index() -> None:
    names = [(), ("learner",), ("worker", 0, "env"), ("worker", 0, "exploration"), ("worker", 1, "env"), ("replay", 1)]
    seeds = [derive_seed(seed, *name) for seed, name in itertools.product(range(50), names)]
    assert len(set(seeds)) == len(seeds)


def test_parts_of_a_name_do_not_run_together() -> None:
    assert derive_seed(1, 2) != derive_seed(12)
    assert derive_seed(1, "worker", 11) != derive_seed(1, "worker1", 1)


def test_seeds_fill_31_bits_evenly() -> None:
    seeds = np.array([derive_seed(0, "worker", index) for index in range(4000)])
    assert seeds.min() >= 0
    assert seeds.max() < 2**31
    # Each bit is set in half of them: 2000, with a standard deviation of 31.6.
    bits = (seeds[:, None] >> np.arange(31)) & 1
    assert np.abs(bits.sum(axis=0) - 2000).max() < 5 * 31.6
