"""How much of a GPU a learner takes, and in which precision it computes; without a GPU, by what torch is asked."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.torch import trained_network
from rlexp.agents.torch.device import (
    BatchStaging,
    LateNumbers,
    Precision,
    continue_generator,
    emulation,
    free_device_bytes,
    learner_device,
    on_device,
    use_precision,
)
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.dqn import NETWORK, make_batch, make_learner, read_only
from tests.lab.ppo import make_learner as make_ppo_learner
from tests.unit.agents.apex.test_apex_agent import make_agent

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


GIB = 2**30


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let torch see a GPU of 10 GiB, of which 8 are free and 1 is reserved; return the fractions that it is given."""
    given: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", given.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (8 * GIB, 10 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: GIB)
    return given


def test_a_learner_takes_its_fraction_of_the_memory_of_a_gpu(fractions: list[float]) -> None:
    assert [learner_device(num_gpus) for num_gpus in (0.25, 1.0, 0.0, 2.0)] == ["cuda", "cuda", "cpu", "cuda"]
    assert fractions == [0.25, 1.0, 1.0]


@pytest.mark.usefixtures("fractions")
@pytest.mark.parametrize(("num_gpus", "free"), [(0.0, None), (0.5, 4 * GIB), (1.0, 8 * GIB)])
def test_free_bytes_are_those_of_the_fraction(num_gpus: float, free: int | None) -> None:
    assert free_device_bytes(num_gpus) == free


def test_on_a_cpu_no_setting_of_the_process_changes() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    use_precision("tf32", torch.device("cpu"))
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize(("precision", "chosen"), [("tf32", "tf32"), ("float32", "ieee"), ("bfloat16", "ieee")])
def test_on_a_gpu_tf32_is_used_only_where_it_is_asked_for(
    precision: Precision, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    products, convolutions = SimpleNamespace(), SimpleNamespace()
    monkeypatch.setattr(torch.backends.cuda, "matmul", products)
    monkeypatch.setattr(torch.backends.cudnn, "conv", convolutions)
    use_precision(precision, torch.device("cuda"))
    assert (products.fp32_precision, convolutions.fp32_precision) == (chosen, chosen)


@pytest.mark.parametrize(
    ("capabilities", "is_slow"),
    [
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, False),
        ({"architecture": "aarch64"}, False),
        ({}, False),
    ],
)
def test_a_cpu_without_the_instructions_for_bfloat16_is_reported(
    capabilities: dict[str, object], is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    said = emulation("bfloat16", "cpu")
    assert (said is not None) == is_slow
    assert said is None or "neither avx512_bf16 nor amx_bf16" in said
    assert emulation("float32", "cpu") is None
    assert emulation("bfloat16", "cuda") is None


def test_bfloat16_stays_near_float32_and_lowers_the_loss() -> None:
    exact, rounded = make_learner(lr=1e-2), make_learner(lr=1e-2, precision="bfloat16")
    losses = []
    for _ in range(50):
        expected, found = (learner.learn_on_batch(make_batch()) for learner in (exact, rounded))
        assert np.abs(np.asarray(found.td_errors) - np.asarray(expected.td_errors)).mean() < 0.2
        losses.append(found.stats["loss"])
    assert losses[-1] < 0.9 * losses[0]
    assert all(array.dtype == np.float32 for array in rounded.get_weights().values())


class GeneratorOnGPU:
    """The form of a CUDA generator's state, 8 bytes of seed and 8 of offset; it draws nothing."""

    def __init__(self) -> None:
        self.state = torch.zeros(16, dtype=torch.uint8)

    def get_state(self) -> torch.Tensor:
        return self.state

    def set_state(self, state: torch.Tensor) -> None:
        assert state.numel() == 16
        self.state = state

    def manual_seed(self, seed: int) -> None:
        self.state = torch.tensor(np.frombuffer(seed.to_bytes(8, "little") + bytes(8), np.uint8).copy())


def seeded(seed: int) -> Array:
    return torch.Generator().manual_seed(seed).get_state().numpy()


def test_state_of_a_gpus_generator_seeds_one_of_a_cpu() -> None:
    on_gpu = GeneratorOnGPU()
    drawn = []
    for seed in (1, 1, 2):
        on_gpu.manual_seed(seed)
        generator = torch.Generator()
        assert not continue_generator(generator, on_gpu.get_state().numpy())
        drawn.append(torch.rand(3, generator=generator).tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_state_of_a_cpus_generator_seeds_one_of_a_gpu() -> None:
    found = []
    for seed in (1, 1, 2):
        generator: Any = GeneratorOnGPU()
        assert not continue_generator(generator, seeded(seed))
        found.append(generator.get_state().tolist())
    assert found[0] == found[1] != found[2]
    other: Any = GeneratorOnGPU()
    assert continue_generator(other, np.array(found[0], np.uint8))
    assert other.get_state().tolist() == found[0]


def test_generator_on_the_same_device_continues() -> None:
    generator = torch.Generator().manual_seed(4)
    state = generator.get_state().numpy().copy()
    expected = torch.rand(3, generator=generator)
    assert continue_generator(generator, state)
    assert torch.equal(torch.rand(3, generator=generator), expected)


@pytest.mark.parametrize("state", [np.zeros(5, np.uint8), np.zeros(16), np.zeros((2, 8), np.uint8)])
def test_other_bytes_are_no_state(state: Array) -> None:
    with pytest.raises(ValueError, match="not the state of a random generator"):
        continue_generator(torch.Generator(), state)


@pytest.mark.parametrize("noisy", [True, False])
def test_noise_after_a_change_of_device_is_noted_where_there_is_noise(noisy: bool) -> None:
    network, notes = replace(NETWORK, head=replace(NETWORK.head, noisy=noisy)), list[str]()
    config = DQNLearnerConfig(PiecewiseSchedule(((0, 1e-3),)), 1e-8, None, True, 10, False, "cpu")
    learner = DQNLearner(network, config, 3, notes.append)
    learner.load_state_dict(learner.state_dict())
    assert notes == []
    learner.load_state_dict({**learner.state_dict(), "noise_rng": GeneratorOnGPU().get_state().numpy()})
    assert [note.endswith("the checkpoint was written on a GPU") for note in notes] == [True] * noisy
    learner.learn_on_batch(make_batch())


def test_ppo_computes_in_float32_after_a_trial_in_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(trained_network, "use_precision", lambda *precision: asked.append(precision))
    make_ppo_learner()
    assert asked == [("float32", torch.device("cpu"))]


def test_late_numbers_come_in_order() -> None:
    first, second = LateNumbers(torch.tensor([1.0, 2.0]), torch.tensor([3.0])).read()
    assert (first.tolist(), second.tolist()) == ([1.0, 2.0], [3.0])


@pytest.mark.usefixtures("warnings_each_time")
def test_an_array_on_a_device_is_a_copy() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    array.flags.writeable = False
    there = on_device(array, torch.device("cpu"))
    there += 1
    assert there.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_an_agent_says_that_its_precision_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    said = {}
    for precision in ("float32", "bfloat16"):
        agent = make_agent(learner_precision=precision)
        said[precision] = [event for event in agent.drain_events() if "learner_precision" in event]
        agent.stop()
    assert said == {"float32": [], "bfloat16": [emulation("bfloat16", "cpu")]}
