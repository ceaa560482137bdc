from __future__ import annotations

import numpy as np
import torch

from rlexp.agents.staging import BatchStaging
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from tests.unit.agents.batches import make_batch

CPU = torch.device("cpu")


def test_tensors_hold_the_columns_asked_for_with_their_types() -> None:
    batch = make_batch()
    rows = BatchStaging((OBS, ACTIONS), CPU).load(batch)
    assert set(rows) == {OBS, ACTIONS}
    for name, tensor in rows.items():
        assert np.array_equal(tensor.numpy(), batch[name])
        assert tensor.numpy().dtype == batch[name].dtype


def test_the_next_batch_goes_into_the_same_memory() -> None:
    staging = BatchStaging((OBS,), CPU)
    first = staging.load(make_batch(seed=0))[OBS]
    second = staging.load(make_batch(seed=1))[OBS]
    assert first.data_ptr() == second.data_ptr()
    assert np.array_equal(second.numpy(), make_batch(seed=1)[OBS])


def test_batches_of_another_size_or_type_get_their_own() -> None:
    staging = BatchStaging((OBS,), CPU)
    for obs in (np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32), np.full((2, 3), 7, np.uint8)):
        loaded = staging.load(SampleBatch({OBS: obs}))[OBS]
        assert np.array_equal(loaded.numpy(), obs)
        assert loaded.numpy().dtype == obs.dtype


def test_the_batch_is_neither_changed_nor_kept() -> None:
    obs = np.ones((4, 3), np.float32)
    loaded = BatchStaging((OBS,), CPU).load(SampleBatch({OBS: obs}))[OBS]
    loaded.zero_()
    assert (obs == 1).all()
