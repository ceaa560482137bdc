from __future__ import annotations

import numpy as np
import pytest

from rlexp.sample_batch import ACTIONS, OBS, REWARDS, SampleBatch


def make_batch(start: int = 0, count: int = 4) -> SampleBatch:
    rows = np.arange(start, start + count)
    return SampleBatch({OBS: np.stack([rows, -rows], axis=1).astype(np.float32), ACTIONS: rows})


def test_counts_and_names_its_columns() -> None:
    batch = make_batch(count=3)
    assert (len(batch), batch.count, list(batch)) == (3, 3, [OBS, ACTIONS])
    assert OBS in batch
    assert REWARDS not in batch
    assert batch.nbytes == 3 * 2 * 4 + 3 * 8


def test_its_text_gives_types_and_shapes_but_no_contents() -> None:
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


def test_a_column_of_another_length_cannot_be_added() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        make_batch().with_columns(**{REWARDS: np.ones(5)})


def test_a_slice_is_a_view_of_the_rows() -> None:
    batch = make_batch()
    part = batch.slice(1, 3)
    assert part[ACTIONS].tolist() == [1, 2]
    assert part[OBS].tolist() == [[1, -1], [2, -2]]
    assert np.shares_memory(part[OBS], batch[OBS])


def test_taken_rows_are_copies_in_the_order_asked_for() -> None:
    batch = make_batch()
    taken = batch.take(np.array([3, 0, 3]))
    assert taken[ACTIONS].tolist() == [3, 0, 3]
    assert taken[OBS].tolist() == [[3, -3], [0, 0], [3, -3]]
    assert not np.shares_memory(taken[OBS], batch[OBS])


def test_concat_joins_rows_in_order() -> None:
    joined = SampleBatch.concat(make_batch(start, count) for start, count in ((0, 2), (2, 0), (2, 3)))
    assert joined[ACTIONS].tolist() == [0, 1, 2, 3, 4]
    assert joined[OBS].tolist() == [[0, 0], [1, -1], [2, -2], [3, -3], [4, -4]]
    assert joined[OBS].dtype == np.float32


def test_concat_of_one_batch_copies_nothing() -> None:
    batch = make_batch()
    assert SampleBatch.concat([batch])[OBS] is batch[OBS]


def test_read_only_columns_serve_for_everything() -> None:
    batch = make_batch()
    for column in batch.columns.values():
        column.setflags(write=False)
    batch.slice(0, 2).take(np.array([1])).with_columns(**{REWARDS: np.ones(1)})
    assert SampleBatch.concat([batch, batch]).count == 8
