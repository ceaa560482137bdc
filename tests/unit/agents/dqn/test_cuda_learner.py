"""A learner on a GPU computes what one on a CPU does, and waits for the GPU only where it reads a result late."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.dqn.learner import DQNLearner, DQNUpdate
from rlexp.agents.torch.device import BatchStaging, CapturedWork, Tensors
from rlexp.sample_batch import OBS, Array
from tests.lab.dqn import make_batch, make_learner
from tests.unit.agents.torch.test_device_frames import new_learner, observations, played, replay_shard

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature"),
]

NUM_UPDATES = 100


@pytest.fixture
def waits_are_errors() -> Iterator[None]:
    """Let every wait of the host for the GPU raise, but for that for an event."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def learned(learner: DQNLearner, num_pending: int) -> list[Array]:
    pending: list[DQNUpdate] = []
    errors = []
    for number in range(NUM_UPDATES):
        pending.append(learner.submit(make_batch(number)))
        if len(pending) > num_pending:
            errors.append(np.asarray(pending.pop(0).result().td_errors))
    return errors + [np.asarray(update.result().td_errors) for update in pending]


def test_cuda_updates_in_a_pipeline_equal_those_of_a_cpu() -> None:
    on_cpu, on_gpu = make_learner(), make_learner(device="cuda")
    on_gpu.load_state_dict(on_cpu.state_dict())
    assert on_gpu.max_pending_updates == 2
    expected, found = learned(on_cpu, 0), learned(on_gpu, on_gpu.max_pending_updates)
    assert np.abs(np.array(found) - np.array(expected)).max() <= 1e-4
    weights = on_gpu.get_weights()
    for name, array in on_cpu.get_weights().items():
        assert np.abs(weights[name] - array).max() <= 1e-4


@pytest.mark.usefixtures("waits_are_errors")
def test_cuda_updates_wait_only_for_the_event_of_a_late_result() -> None:
    learner = make_learner(device="cuda")
    learned(learner, 2)  # memory and kernels are made in the first updates
    torch.cuda.set_sync_debug_mode("error")
    assert len(learned(learner, 2)) == NUM_UPDATES


@pytest.mark.usefixtures("waits_are_errors")
def test_cuda_replay_gathers_batches_without_a_wait() -> None:
    shard, learner = replay_shard("cuda"), new_learner("cuda")
    for first in (0, 20, 40):
        shard.add_batch(played(first, 20))
        batch = shard.replay(0.4)
        assert batch is not None
        learner.learn_on_batch(batch)
        torch.cuda.set_sync_debug_mode("error")


def test_cuda_replay_gathers_what_replay_in_memory_does() -> None:
    batches = []
    for shard in (replay_shard("cuda"), replay_shard("cpu")):
        shard.add_batch(played(0, 40))
        batches.append(shard.replay(0.4))
    on_gpu, on_cpu = batches
    assert on_gpu is not None
    assert on_cpu is not None
    expected = observations(on_cpu)
    for name, array in observations(on_gpu).items():
        assert np.array_equal(array, expected[name])


def test_cuda_graphs_compute_what_single_operations_do_also_when_the_shape_changes() -> None:
    def work(tensors: Tensors) -> tuple[Tensor]:
        return (tensors[OBS].square().sum(dim=1),)

    captured = CapturedWork(work, [], torch.device("cuda"), pytest.fail)
    for seed in range(12):
        rows = torch.rand((32 if seed % 3 else 16, 3), generator=torch.Generator().manual_seed(seed)).cuda()
        assert torch.equal(captured({OBS: rows})[0], work({OBS: rows})[0])


def test_cuda_work_that_cannot_be_captured_goes_on_without_a_graph() -> None:
    def work(tensors: Tensors) -> tuple[Tensor]:
        return (tensors[OBS] * tensors[OBS].sum().item(),)

    notes: list[str] = []
    captured = CapturedWork(work, [], torch.device("cuda"), notes.append)
    for seed in range(8):
        rows = torch.rand((4, 3), generator=torch.Generator().manual_seed(seed)).cuda()
        assert torch.equal(captured({OBS: rows})[0], work({OBS: rows})[0])
    assert len(notes) == 1
    assert "CUDA graphs failed" in notes[0]


def test_cuda_slots_hold_their_batches_until_they_are_used_again() -> None:
    staging = BatchStaging((OBS,), torch.device("cuda"), num_slots=3)
    for first in range(0, 12, 3):
        loaded = [staging.load(make_batch(seed))[OBS] for seed in range(first, first + 3)]
        for seed, tensor in enumerate(loaded, first):
            assert np.array_equal(tensor.cpu().numpy(), make_batch(seed)[OBS])
