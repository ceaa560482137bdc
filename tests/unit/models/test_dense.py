"""The NumPy form of a Q-network says what the torch form says.

Products by torch and by NumPy are the same, of layers on both sides of the limit between them.

The shapes that weights must have are those of the network, whichever library computes it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models.dense import ACTIVATIONS, NumpyQNetwork
from rlexp.models.dense_gradients import ArrayLayer, LargeArrayLayer, is_dense
from rlexp.models.network_config import (
    HeadConfig,
    MemoryConfig,
    QNetworkConfig,
    TorsoConfig,
    has_numpy_form,
    parameter_shapes,
    torso_config_of,
)
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import ACTIVATIONS as TORCH_ACTIVATIONS
from tests.lab.dqn import PLAIN_HEAD

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]
SHAPES = [(64, 256, 256), (32, 300, 60), (1, 128, 128), (5, 3, 2)]
"""Rows, inputs and outputs."""
both_kinds = pytest.mark.parametrize("kind", [ArrayLayer, LargeArrayLayer])


class LayerBench:
    """A layer with random weights, the same for both kinds, its input and the gradient of its outputs."""

    def __init__(self, shape: Shape, kind: type[ArrayLayer]) -> None:
        rng, (rows, fan_in, fan_out) = np.random.default_rng(1), shape
        drawn = (
            rng.normal(size=each).astype(np.float32) for each in ((fan_out, fan_in), (rows, fan_in), (rows, fan_out))
        )
        self.weight, self.x, self._of_outputs = drawn
        self.of_weight = np.full_like(self.weight, 7.0)  # nothing of it may be left
        bias = np.zeros(fan_out, np.float32)
        self._layer = kind(self.weight, bias, self.of_weight, bias.copy(), "linear")

    def passed(self) -> tuple[Array, Array, Array]:
        """Return the outputs, the gradient of the input, and a copy of that of the weights."""
        outputs = self._layer.forward(self.x)
        of_input = self._layer.backward(self.x, outputs, self._of_outputs.copy(), with_input=True)
        return outputs, of_input, self.of_weight.copy()

    def exact(self) -> tuple[Array, Array, Array]:
        """Return the same, in double precision."""
        x, weight, of_outputs = (each.astype(np.float64) for each in (self.x, self.weight, self._of_outputs))
        return x @ weight.T, of_outputs @ weight, of_outputs.T @ x


@both_kinds
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_double_precision(shape: Shape, kind: type[ArrayLayer]) -> None:
    bench = LayerBench(shape, kind)
    for found, expected in zip(bench.passed(), bench.exact(), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@both_kinds
def test_products_follow_weights_that_change_where_they_are(kind: type[ArrayLayer]) -> None:
    bench = LayerBench(SHAPES[0], kind)
    outputs, of_input, _ = bench.passed()
    bench.weight *= 2
    twice = bench.passed()
    np.testing.assert_array_equal(twice[0], 2 * outputs)
    np.testing.assert_array_equal(twice[1], 2 * of_input)


@both_kinds
def test_rows_that_cannot_be_written_to_are_read_without_a_warning(kind: type[ArrayLayer]) -> None:
    bench = LayerBench(SHAPES[0], kind)
    expected = bench.passed()
    bench.x.flags.writeable = False
    for found, each in zip(bench.passed(), expected, strict=True):
        np.testing.assert_array_equal(found, each)


def config_of(hiddens: tuple[int, ...] = (8,), dueling: bool = True, **model: Any) -> QNetworkConfig:
    torso = torso_config_of(DQNConfig(model=ModelConfig(**model)))
    return QNetworkConfig((3,), 4, torso, dataclasses.replace(PLAIN_HEAD, hiddens=hiddens, dueling=dueling))


def both(config: QNetworkConfig, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values [B, A] of both forms, with the same random weights and biases."""
    torch.manual_seed(0)
    network = QNetwork(config)
    numpy_network = NumpyQNetwork(config)
    numpy_network.load({name: tensor.numpy().copy() for name, tensor in network.state_dict().items()})
    with torch.inference_mode():
        return network(torch.from_numpy(obs)).numpy(), numpy_network.outputs(obs)


def observations(rows: int = 16) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32) * 3


@pytest.mark.parametrize("fcnet_hiddens", [(), (8, 5)])
def test_numpy_and_torch_see_byte_vectors_around_zero(fcnet_hiddens: tuple[int, ...]) -> None:
    plain = config_of(fcnet_hiddens=fcnet_hiddens)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 3), dtype=np.uint8)
    centered = (pixels.astype(np.float32) - 128) / 128
    expected, _ = both(plain, centered)
    for found in both(dataclasses.replace(plain, sees_byte_vectors=True), pixels):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def shaken(network: nn.Module) -> dict[str, np.ndarray]:
    """Return the weights of a network, moved at random: those of LayerNorm would all be 1 or 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("sees_byte_vectors", [False, True])
@pytest.mark.parametrize("hiddens", [(), (6,)])
def test_numpy_normalises_layers_as_torch_does(hiddens: tuple[int, ...], sees_byte_vectors: bool) -> None:
    config = dataclasses.replace(
        config_of(hiddens, fcnet_hiddens=(8, 5), post_fcnet_hiddens=(7,), layer_norm=True),
        sees_byte_vectors=sees_byte_vectors,
    )
    network, live, copied = QNetwork(config), NumpyQNetwork(config), NumpyQNetwork(config)
    weights = shaken(network)
    live.share(weights)
    copied.load(weights)
    obs = np.random.default_rng(0).integers(0, 256, (16, 3), np.uint8) if sees_byte_vectors else observations()
    with torch.inference_mode():
        expected = network(torch.from_numpy(obs)).numpy()
    for found in (live.outputs(obs), copied.outputs(obs)):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert parameter_shapes(config) == {name: weight.shape for name, weight in weights.items()}


def test_slopes_of_normalised_layers_are_not_known_by_hand() -> None:
    assert is_dense(config_of())
    assert not is_dense(config_of(layer_norm=True))


@pytest.mark.parametrize("activation", sorted(TORCH_ACTIVATIONS))
def test_has_every_activation(activation: str) -> None:
    config = config_of(
        fcnet_hiddens=(8, 5),
        fcnet_activation=activation,
        post_fcnet_hiddens=(6,),
        post_fcnet_activation=activation,
    )
    expected, found = both(config, observations() * 50)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert ACTIVATIONS.keys() == TORCH_ACTIVATIONS.keys()


def test_leaves_its_input_alone() -> None:
    obs = observations()
    both(config_of((), fcnet_hiddens=()), obs)
    assert obs.tolist() == observations().tolist()


def test_sees_observations_of_any_number_type() -> None:
    obs = np.arange(12, dtype=np.int64).reshape(4, 3)
    expected, found = both(config_of(), obs)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


ATOMS = {"num_atoms": 5, "v_min": -2.0, "v_max": 3.0}


def make_torch_network(config: QNetworkConfig) -> QNetwork:
    torch.manual_seed(0)
    return QNetwork(config)


def arrays_of(network: QNetwork) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def outputs_of(network: QNetwork, obs: np.ndarray) -> np.ndarray:
    """Return what a network's heads compute: values [B, A], or logits [B, A, K]."""
    with torch.inference_mode():
        outputs = network.outputs(torch.from_numpy(obs)).numpy()
    return outputs[:, :, 0] if network.num_atoms == 1 else outputs


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("hiddens", [(), (6,), (7, 6, 5)])
@pytest.mark.parametrize("fcnet_hiddens", [(), (8,), (8, 5)])
@pytest.mark.parametrize("head", [{}, ATOMS, {"noisy": True}, {"noisy": True, **ATOMS}])
def test_has_the_outputs_of_torch_without_noise(
    shares: bool, dueling: bool, hiddens: tuple[int, ...], fcnet_hiddens: tuple[int, ...], head: dict[str, Any]
) -> None:
    config = config_of(hiddens, dueling, fcnet_hiddens=fcnet_hiddens)
    config = dataclasses.replace(config, head=dataclasses.replace(config.head, **head))
    network, found = make_torch_network(config).eval(), NumpyQNetwork(config)
    (found.share if shares else found.load)(arrays_of(network))
    outputs = found.outputs(observations())
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, outputs_of(network, observations()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("head", [{}, ATOMS])
def test_noise_is_that_of_torch(dueling: bool, head: dict[str, Any]) -> None:
    config = config_of((7, 6), dueling)
    config = dataclasses.replace(config, head=dataclasses.replace(config.head, noisy=True, **head))
    network, found = make_torch_network(config).train(), NumpyQNetwork(config, is_noisy=True)
    found.load(arrays_of(network))
    network.resample_noise(torch.Generator().manual_seed(1))
    noise = [each for layer in network.named_noisy_layers().values() for each in (layer.noise_in, layer.noise_out)]
    factors = torch.cat(noise).numpy()
    found.resample_noise(StreamOf(factors * np.abs(factors)))  # type: ignore[arg-type]
    np.testing.assert_allclose(found.outputs(observations()), outputs_of(network, observations()), rtol=1e-5, atol=1e-5)


class StreamOf:
    """A random generator that returns given numbers."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers

    def standard_normal(self, size: int, dtype: type[np.float32]) -> np.ndarray:
        assert size == len(self._numbers)
        return self._numbers.astype(dtype)


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("sees_byte_vectors", [True, False])
def test_live_weights_act_as_they_are_now(noisy: bool, sees_byte_vectors: bool) -> None:
    config = dataclasses.replace(config_of(), sees_byte_vectors=sees_byte_vectors)
    config = dataclasses.replace(config, head=dataclasses.replace(config.head, noisy=noisy))
    network = make_torch_network(config).eval()
    shared, copied = NumpyQNetwork(config), NumpyQNetwork(config)
    shared.share(arrays_of(network))
    copied.load(arrays_of(network))
    obs = np.random.default_rng(0).integers(0, 256, (16, 3), dtype=np.uint8)
    before = copied.outputs(obs)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    copy_of_newest = NumpyQNetwork(config)
    copy_of_newest.load(arrays_of(network))
    np.testing.assert_array_equal(copied.outputs(obs), before)
    np.testing.assert_allclose(shared.outputs(obs), copy_of_newest.outputs(obs), rtol=1e-4, atol=1e-4)
    assert np.abs(shared.outputs(obs) - before).max() > 0.1
    shared.load(arrays_of(network))
    np.testing.assert_array_equal(shared.outputs(obs), copy_of_newest.outputs(obs))


def test_draws_other_noise_each_time() -> None:
    config = dataclasses.replace(config_of(), head=dataclasses.replace(PLAIN_HEAD, noisy=True))
    network = NumpyQNetwork(config, is_noisy=True)
    network.load(arrays_of(make_torch_network(config)))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(2):
        network.resample_noise(rng)
        drawn.append(network.outputs(observations()))
        assert (network.outputs(observations()) == drawn[-1]).all()
    assert np.abs(drawn[0] - drawn[1]).max() > 1e-3


def test_refuses_what_only_torch_can_do() -> None:
    images = dataclasses.replace(config_of(), observation_shape=(84, 84, 4))
    assert not has_numpy_form(images)
    with pytest.raises(ValueError, match="NumPy form"):
        NumpyQNetwork(images)


TORSO = TorsoConfig((16, 8), "tanh", None, "relu", (4,), "relu", True)
HEAD = HeadConfig((6, 5), dueling=True, noisy=False, sigma0=0.5, num_atoms=1, v_min=-10.0, v_max=10.0)
DUELING = QNetworkConfig((3,), 2, TORSO, HEAD)
BARE = replace(TORSO, fcnet_hiddens=(), post_fcnet_hiddens=())


@pytest.mark.parametrize(
    ("config", "is_numpy"),
    [
        (DUELING, True),
        (replace(DUELING, head=replace(HEAD, dueling=False)), True),
        (replace(DUELING, head=replace(HEAD, hiddens=())), True),
        (replace(DUELING, torso=BARE), True),
        (replace(DUELING, head=replace(HEAD, noisy=True)), True),
        (replace(DUELING, head=replace(HEAD, num_atoms=51)), True),
        (replace(DUELING, memory=MemoryConfig(5, 0)), True),
        (replace(DUELING, memory=MemoryConfig(5, 3), torso=BARE), True),
        (replace(DUELING, observation_shape=(42, 42, 4)), False),
    ],
    ids=["dueling", "plain", "no-hiddens", "no-torso", "noisy", "atoms", "LSTM", "LSTM alone", "image"],
)
def test_shapes_are_those_of_the_network(config: QNetworkConfig, is_numpy: bool) -> None:
    assert has_numpy_form(config) is is_numpy
    parameters = QNetwork(config).state_dict()
    assert parameter_shapes(config) == {name: tuple(tensor.shape) for name, tensor in parameters.items()}
