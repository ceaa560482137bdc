from __future__ import annotations

import numpy as np
import pytest
import torch

from rlexp.agents.torch.device import BatchStaging
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from tests.unit.agents.batches import make_batch, read_only

CPU = torch.device("cpu")


def test_tensors_hold_the_columns_asked_for_with_their_types() -> None:
    batch = make_batch()
    rows = BatchStaging((OBS, ACTIONS), CPU).load(batch)
    assert set(rows) == {OBS, ACTIONS}
    for name, tensor in rows.items():
        assert np.array_equal(tensor.numpy(), batch[name])
        assert tensor.numpy().dtype == batch[name].dtype


def test_on_a_cpu_columns_stay_where_they_are() -> None:
    batch = make_batch()
    loaded = BatchStaging((OBS,), CPU).load(batch)[OBS]
    assert loaded.data_ptr() == batch[OBS].ctypes.data


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_columns_are_copied_since_torch_could_write_into_them() -> None:
    batch = SampleBatch(read_only(make_batch().columns))
    loaded = BatchStaging((OBS,), CPU).load(batch)[OBS]
    assert np.array_equal(loaded.numpy(), batch[OBS])
    loaded.zero_()
    assert batch[OBS].any()


def test_images_kept_frame_by_frame_are_put_together() -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 6, 5, 5), np.uint8)  # [stacked, rows, height, width]
    stacks = frames.transpose(1, 2, 3, 0)
    loaded = BatchStaging((OBS,), CPU).load(SampleBatch({OBS: stacks}))[OBS]
    assert np.array_equal(loaded.numpy(), stacks)
    assert loaded.is_contiguous()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_every_batch_from_the_same_pinned_memory() -> None:
    staging = BatchStaging((OBS,), torch.device("cuda"))
    for seed in (0, 1):
        loaded = staging.load(make_batch(seed=seed))[OBS]
        assert np.array_equal(loaded.cpu().numpy(), make_batch(seed=seed)[OBS])
        assert loaded.device.type == "cuda"


def test_batches_of_another_size_or_type_get_their_own() -> None:
    staging = BatchStaging((OBS,), CPU)
    for obs in (np.zeros((4, 3), np.float32), np.ones((2, 3), np.float32), np.full((2, 3), 7, np.uint8)):
        loaded = staging.load(SampleBatch({OBS: obs}))[OBS]
        assert np.array_equal(loaded.numpy(), obs)
        assert loaded.numpy().dtype == obs.dtype
