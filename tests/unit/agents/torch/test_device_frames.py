"""Replay on the learner's device holds and returns what frame storage in memory does; here the device is the CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.torch.device import DeviceBatch
from rlexp.agents.torch.device_frames import DeviceFrameStorage, check_frames_fit, device_rows
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import CheckpointError, ResourceError
from rlexp.models.network_config import QNetworkConfig, torso_config_of
from rlexp.replay import ReplayConfig, ReplayShard
from rlexp.replay.storage.frame_pool import PackedFrames
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, FrameRows, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.checkpoints import in_memory
from tests.lab.dqn import PLAIN_HEAD
from tests.lab.rollout import stacked_rows

CPU = torch.device("cpu")
CAPACITY, BATCH_SIZE, NUM_UPDATES = 64, 16, 100
IMAGE = (16, 16, 4)
REPLAY = ReplayConfig(CAPACITY, 16, BATCH_SIZE, prioritized=True, alpha=0.6, eps=1e-6, storage="frames")
NETWORK = QNetworkConfig(IMAGE, num_actions=3, torso=torso_config_of(DQNConfig()), head=PLAIN_HEAD)


@cache
def played(first: int, count: int) -> FrameRows:
    """Return ``count`` transitions of one env from its step ``first`` on, as a worker sends them."""
    rng = np.random.default_rng(first)
    numbers = range(first, first + count + 4)
    frames = np.stack([np.random.default_rng(each).integers(256, size=(16, 16, 1), dtype=np.uint8) for each in numbers])
    columns: dict[str, Array] = {
        ACTIONS: rng.integers(3, size=count),
        REWARDS: rng.standard_normal(count).astype(np.float32),
        DISCOUNTS: np.full(count, 0.97, np.float32),
    }
    return stacked_rows(first, frames, columns, stacked=4)


def new_learner(device: str = "cpu") -> DQNLearner:
    lr = PiecewiseSchedule(((0, 1e-3),))
    config = DQNLearnerConfig(lr, 1e-8, 40.0, True, 20 * BATCH_SIZE, True, device)
    return DQNLearner(NETWORK, config, seed=0)


def replay_shard(device: str) -> ReplayShard:
    return ReplayShard(REPLAY, 0, device_rows(CAPACITY, device, CAPACITY))


def observations(batch: SampleBatch) -> dict[str, Array]:
    if isinstance(batch, DeviceBatch):
        return {name: tensor.cpu().numpy() for name, tensor in batch.tensors.items()}
    return {name: batch[name] for name in (OBS, NEW_OBS)}


def test_it_returns_the_rows_that_frame_storage_returns() -> None:
    here, there = FrameStorage(CAPACITY), DeviceFrameStorage(CAPACITY, CPU, num_expected=4)
    for start in (0, 20, 40, 8):  # more frames than expected, then over older rows
        for storage in (here, there):
            storage.write(start, played(start * 3, 20))
    slots = np.array([0, 59, 12, 12, 33])
    expected, found = here.read(slots), there.read(slots)
    assert isinstance(found, DeviceBatch)
    assert set(found.columns) | set(found.tensors) == set(expected.columns)
    for name, array in observations(found).items():
        assert array.tolist() == expected[name].tolist()
    assert all(np.array_equal(found[name], expected[name]) for name in (ACTIONS, REWARDS, DISCOUNTS))
    assert there.nbytes == here.nbytes


def test_its_state_is_that_of_frame_storage_and_is_loaded_by_either() -> None:
    here, there = FrameStorage(CAPACITY), DeviceFrameStorage(CAPACITY, CPU, num_expected=50)
    for storage in (here, there):
        storage.write(0, played(0, 30))
    states = [in_memory(storage.state(30)) for storage in (here, there)]
    assert {name: array.tobytes() for name, array in states[0].items()} == {
        name: array.tobytes() for name, array in states[1].items()
    }
    loaded: list[Any] = [FrameStorage(CAPACITY), DeviceFrameStorage(CAPACITY, CPU, num_expected=1)]
    for storage in loaded:
        storage.load(states[1], 30)
    batches = [storage.read(np.arange(30)) for storage in (*loaded, there)]
    assert len({observations(batch)[NEW_OBS].tobytes() for batch in batches}) == 1


def test_compressed_frames_are_refused() -> None:
    compressed = FrameStorage(CAPACITY, PackedFrames)
    compressed.write(0, played(0, 20))
    with pytest.raises(CheckpointError, match="plain frames"):
        DeviceFrameStorage(CAPACITY, CPU, num_expected=9).load(in_memory(compressed.state(20)), 20)


def test_rows_without_frames_are_kept_as_they_are() -> None:
    storage = DeviceFrameStorage(CAPACITY, CPU, num_expected=9)
    rows = SampleBatch({OBS: np.ones((3, 2), np.float32), NEW_OBS: np.zeros((3, 2), np.float32)})
    storage.write(0, rows)
    assert storage.read(np.arange(3))[OBS].tolist() == rows[OBS].tolist()


def test_closed_twice_it_can_be_filled_again() -> None:
    storage = DeviceFrameStorage(CAPACITY, CPU, num_expected=9)
    storage.write(0, played(0, 20))
    storage.close()
    storage.close()
    assert storage.nbytes == 0
    storage.write(0, played(0, 20))
    assert len(storage.read(np.arange(20))) == 20


def learned(shard: ReplayShard, learner: DQNLearner) -> list[Array]:
    """Learn from a shard that gets a fragment before each update, and return the TD errors of every update."""
    errors = []
    for update in range(NUM_UPDATES):
        shard.add_batch(played(20 * update, 20))
        batch = shard.replay(0.4)
        assert batch is not None
        found = learner.learn_on_batch(batch).td_errors
        assert found is not None
        shard.update_priorities(batch["keys"], found)
        errors.append(found)
    return errors


def largest_differences(device: str) -> tuple[float, float]:
    """Return the largest difference of a TD error, and of a weight at the end, to a learner with replay in memory."""
    local, there = new_learner(), new_learner(device)
    there.load_state_dict(local.state_dict())
    expected = learned(ReplayShard(REPLAY, seed=0), local)
    found = learned(replay_shard(device), there)
    weights = there.get_weights()
    of_weights = max(np.abs(weights[name] - array).max() for name, array in local.get_weights().items())
    return np.abs(np.array(found) - np.array(expected)).max(), of_weights


def test_a_learner_learns_what_it_learns_from_replay_in_memory() -> None:
    assert max(largest_differences("cpu")) <= 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_cuda_it_learns_what_a_cpu_learns_from_replay_in_memory() -> None:
    of_errors, _ = largest_differences("cuda")  # Adam enlarges the rounding of gradients near 0
    assert of_errors <= 1e-3


@pytest.mark.parametrize("free", [None, 10 * 2**30])
def test_frames_that_fit_are_let_through(free: int | None) -> None:
    check_frames_fit(8 * 2**30, free, 1000)


def test_frames_that_do_not_fit_name_a_size_that_does() -> None:
    with pytest.raises(
        ResourceError, match=r"would need 20\.0 GiB of the GPU's memory for frames, 10\.0 GiB"
    ) as caught:
        check_frames_fit(20 * 2**30, 10 * 2**30, 1000)
    assert caught.value.hint == "-o config.buffer_size=450"
