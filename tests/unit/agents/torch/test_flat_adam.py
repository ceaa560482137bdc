"""The learner's one tensor for all parameters, against an Adam and a clipping of the single parameters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.loss import row_losses
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters, SubnormalsAsZero, are_zero
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models.network_config import QNetworkConfig, torso_config_of
from rlexp.models.networks import QNetwork
from rlexp.policy import Weights
from rlexp.sample_batch import IMPORTANCE_WEIGHTS, NEW_OBS, OBS, Array, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.dqn import BATCH_SIZE, NETWORK, make_batch

SEED, LR, MAX_NORM, TARGET_PERIOD = 3, 1e-3, 0.15, 7
IMAGES = replace(
    NETWORK,
    observation_shape=(10, 10, 2),
    torso=torso_config_of(DQNConfig(model=ModelConfig(conv_filters=((4, (3, 3), 2), (8, (5, 5), 1))))),
)
NETWORKS = {
    "vectors": NETWORK,
    "images": IMAGES,
    "noisy": replace(NETWORK, head=replace(NETWORK.head, noisy=True)),
    "distributional": replace(NETWORK, head=replace(NETWORK.head, num_atoms=11)),
}


class SingleParameters:
    """What the learner does, parameter by parameter and with what torch has for it."""

    def __init__(self, config: QNetworkConfig, weights: Weights) -> None:
        self.network, self.target = QNetwork(config), QNetwork(config)
        for network in (self.network, self.target):
            network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        self.adam = torch.optim.Adam(self.network.parameters(), lr=LR)
        self.noise = torch.Generator().manual_seed(SEED)
        self.norms: list[float] = []
        self.mean_weight = np.empty(0, np.float32)

    def learn_on_batch(self, batch: SampleBatch) -> None:
        self.mean_weight = batch[IMPORTANCE_WEIGHTS].mean(keepdims=True)
        rows = {name: torch.tensor(column) for name, column in batch.columns.items()}
        for network in (self.network, self.target):
            network.resample_noise(self.noise)
        self.adam.zero_grad()
        losses = row_losses(self.network, self.target, rows, double_q=True).losses
        (rows[IMPORTANCE_WEIGHTS] * losses).mean().backward()  # type: ignore[no-untyped-call]
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_NORM)))
        self.adam.step()
        if len(self.norms) % TARGET_PERIOD == 0:
            self.target.load_state_dict(self.network.state_dict())

    def state(self) -> dict[str, Array]:
        """Return a checkpoint as learners wrote it that had an Adam of the single parameters."""
        steps = len(self.norms) * BATCH_SIZE
        counters = [0, steps, steps - steps % (TARGET_PERIOD * BATCH_SIZE), len(self.norms), 0]
        state = {
            "noise_rng": self.noise.get_state().numpy(),
            "counters": np.array(counters),
            "mean_importance_weight": self.mean_weight,
        }
        for prefix, network in (("network", self.network), ("target", self.target)):
            state |= {f"{prefix}.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
        for index, moments in self.adam.state_dict()["state"].items():
            state |= {f"adam.{index}.{name}": tensor.numpy() for name, tensor in moments.items()}
        return {name: array.copy() for name, array in state.items()}


def make_flat(config: QNetworkConfig) -> DQNLearner:
    schedule = PiecewiseSchedule(((0, LR),))
    return DQNLearner(
        config, DQNLearnerConfig(schedule, 1e-8, MAX_NORM, True, TARGET_PERIOD * BATCH_SIZE, True, "cpu"), SEED
    )


def make_pair(kind: str) -> tuple[DQNLearner, SingleParameters]:
    flat = make_flat(NETWORKS[kind])
    return flat, SingleParameters(NETWORKS[kind], flat.get_weights())


def batch_of(kind: str, seed: int) -> SampleBatch:
    batch = make_batch(seed)
    if kind != "images":
        return batch
    obs = np.random.default_rng(seed).integers(256, size=(2, BATCH_SIZE, *IMAGES.observation_shape), dtype=np.uint8)
    return batch.with_columns(**{OBS: obs[0], NEW_OBS: obs[1]})


def assert_equal_networks(flat: DQNLearner, single: SingleParameters) -> None:
    state = flat.state_dict()
    for name, expected in single.state().items():
        if name.startswith(("network.", "target.")):
            assert state[name] == pytest.approx(expected, abs=1e-6), name


@pytest.mark.parametrize("kind", NETWORKS)
def test_it_learns_what_single_parameters_learn(kind: str) -> None:
    flat, single = make_pair(kind)
    first = flat.get_weights()
    for seed in range(20):
        norm = flat.learn_on_batch(batch_of(kind, seed)).stats["grad_norm"]
        single.learn_on_batch(batch_of(kind, seed))
        assert norm == pytest.approx(single.norms[-1], rel=1e-3)
    assert min(single.norms) < MAX_NORM < max(single.norms)
    assert_equal_networks(flat, single)
    assert all((first[name] != array).any() for name, array in flat.get_weights().items())


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("updates", [0, 9])
def test_it_goes_on_from_the_checkpoint_of_single_parameters(kind: str, updates: int) -> None:
    _, single = make_pair(kind)
    for seed in range(updates):
        single.learn_on_batch(batch_of(kind, seed))
    flat = make_flat(NETWORKS[kind])
    flat.learn_on_batch(batch_of(kind, 99))
    flat.load_state_dict(single.state())
    for seed in range(updates, updates + 6):
        flat.learn_on_batch(batch_of(kind, seed))
        single.learn_on_batch(batch_of(kind, seed))
    assert flat.num_updates == updates + 6
    assert_equal_networks(flat, single)


@pytest.mark.parametrize("kind", NETWORKS)
def test_its_checkpoint_is_that_of_single_parameters(kind: str) -> None:
    flat, single = make_pair(kind)
    for seed in range(3):
        flat.learn_on_batch(batch_of(kind, seed))
        single.learn_on_batch(batch_of(kind, seed))
    found, expected = flat.state_dict(), single.state()
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        name: (array.shape, array.dtype) for name, array in expected.items()
    }
    for name in (name for name in expected if name.startswith("adam.")):
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-7), name


def test_parameters_keep_their_values_and_layouts_but_share_one_memory() -> None:
    network = QNetwork(IMAGES)
    before = {name: (parameter.detach().clone(), parameter.stride()) for name, parameter in network.named_parameters()}
    parameters = FlatParameters(network)
    for name, parameter in network.named_parameters():
        assert torch.equal(parameter, before[name][0])
        assert parameter.stride() == before[name][1]
    images = [parameter for parameter in network.parameters() if parameter.dim() == 4]
    assert images
    assert all(parameter.is_contiguous(memory_format=torch.channels_last) for parameter in images)
    parameters.values.fill_(2.0)
    assert all((parameter == 2.0).all() for parameter in network.parameters())
    assert len(parameters.values) == sum(parameter.numel() for parameter in network.parameters())


def test_backward_adds_to_one_gradient() -> None:
    network = QNetwork(IMAGES)
    gradient = FlatParameters(network).make_gradient()
    for _ in range(2):
        network(torch.ones(1, *IMAGES.observation_shape)).sum().backward()
    parameters = list(network.parameters())
    assert all(parameter.grad is not None and parameter.grad.stride() == parameter.stride() for parameter in parameters)
    expected = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    assert gradient.abs().sum() > 0
    assert gradient.sum() == pytest.approx(float(expected.sum()), rel=1e-4)
    gradient.zero_()
    assert all((parameter.grad == 0).all() for parameter in parameters if parameter.grad is not None)


def test_arrays_are_dense_copies() -> None:
    network = QNetwork(IMAGES)
    parameters = FlatParameters(network)
    arrays = parameters.arrays()
    parameters.values.zero_()
    assert list(arrays) == list(network.state_dict())
    assert all(array.flags.c_contiguous for array in arrays.values())
    assert any(array.any() for array in arrays.values())


def keeps_subnormals() -> bool:
    """Return whether this processor lacks what sets subnormal numbers to 0."""
    return not torch.set_flush_denormal(False)


def adam_with_gradient(norm: float, max_norm: float | None) -> tuple[FlatAdam, FlatParameters]:
    torch.manual_seed(5)
    parameters = FlatParameters(torch.nn.Linear(7, 5))
    adam = FlatAdam(parameters, 1e-8, max_norm)
    gradient = torch.randn(len(parameters.values))
    adam.gradient.copy_(gradient * (norm / gradient.norm()))
    return adam, parameters


@pytest.mark.parametrize("norm", [0.0, 0.1, 0.5 - 2e-6, 0.5, 0.5 + 1e-6, 3.0, np.nan])
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize("has_name", [True, False])
def test_gradients_are_scaled_down_to_the_largest_norm_to_the_last_bit(
    norm: float, max_norm: float | None, has_name: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_name:  # as in a torch without the name
        monkeypatch.setattr("rlexp.agents.torch.flat_adam.FUSED_ADAM", None)
    adam, parameters = adam_with_gradient(norm, max_norm)
    expected, gradient = parameters.values.clone(), adam.gradient.clone()
    means = [torch.zeros_like(gradient) for _ in range(2)]
    scale = None if max_norm is None else ((gradient.norm() + 1e-6) / max_norm).clamp(min=1.0)
    torch._fused_adam_(
        [expected],
        [gradient],
        [means[0]],
        [means[1]],
        [],
        [torch.tensor(1.0)],
        lr=LR,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
        grad_scale=scale,
    )
    adam.step(LR)
    np.testing.assert_array_equal(parameters.values, expected)


@pytest.mark.parametrize("epsilon", [1e-8, 0.1, 10.0])
def test_the_share_of_a_step_that_epsilon_leaves_is_that_of_the_way_weights_go(epsilon: float) -> None:
    def mean_way(epsilon: float) -> tuple[float, float | None]:
        network = nn.Linear(3, 2)
        parameters = FlatParameters(network)
        adam = FlatAdam(parameters, epsilon, None)
        assert adam.step_share() is None
        for factor in (1.0, 0.3, 2.0):
            before = parameters.values.clone()
            adam.gradient.copy_(factor * torch.tensor([0.0, 0.01, 0.1, 0.5, 1.0, -2.0, 0.02, -0.2]))
            adam.step(LR)
        return float((parameters.values - before).abs().mean()), adam.step_share()

    (way, share), (whole_way, _) = mean_way(epsilon), mean_way(1e-30)
    assert share == pytest.approx(way / whole_way, rel=1e-3)


def test_means_of_the_gradient_do_not_stay_subnormal() -> None:
    adam, parameters = adam_with_gradient(1.0, None)
    for _ in range(1000):  # 0.9^1000 is 1.7e-46
        adam.step(LR)
        adam.zero_grad()
    weights = parameters.values.clone()
    assert bool(adam.state_dict()["0.exp_avg"].any()) == keeps_subnormals()
    adam.step(LR)
    assert torch.equal(parameters.values, weights)
    assert not are_zero()


@pytest.mark.skipif(keeps_subnormals(), reason="this processor has no such mode")
def test_subnormal_numbers_are_zero_only_inside() -> None:
    subnormals = SubnormalsAsZero()
    with subnormals:
        assert are_zero()
        with SubnormalsAsZero():
            pass
        assert are_zero()
    assert not are_zero()
