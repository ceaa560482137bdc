"""The NumPy form of a Q-network says what the torch form says."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models import QNetworkConfig, torso_config_of
from rlexp.models.dense import ACTIVATIONS, NumpyQNetwork, has_numpy_form
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import ACTIVATIONS as TORCH_ACTIVATIONS
from tests.networks import PLAIN_HEAD


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


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("hiddens", [(), (6,), (6, 5), (7, 6, 5)])
@pytest.mark.parametrize("fcnet_hiddens", [(), (8,), (8, 5)])
def test_has_the_values_of_torch(dueling: bool, hiddens: tuple[int, ...], fcnet_hiddens: tuple[int, ...]) -> None:
    expected, found = both(config_of(hiddens, dueling, fcnet_hiddens=fcnet_hiddens), observations())
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fcnet_hiddens", [(), (8, 5)])
def test_numpy_and_torch_see_byte_vectors_around_zero(fcnet_hiddens: tuple[int, ...]) -> None:
    plain = config_of(fcnet_hiddens=fcnet_hiddens)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 3), dtype=np.uint8)
    centered = (pixels.astype(np.float32) - 128) / 128
    expected, _ = both(plain, centered)
    for found in both(dataclasses.replace(plain, sees_byte_vectors=True), pixels):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


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
@pytest.mark.parametrize("hiddens", [(), (7, 6)])
@pytest.mark.parametrize("fcnet_hiddens", [(), (8,)])
@pytest.mark.parametrize("head", [{}, ATOMS, {"noisy": True}, {"noisy": True, **ATOMS}])
def test_has_the_outputs_of_torch_without_noise(
    shares: bool, dueling: bool, hiddens: tuple[int, ...], fcnet_hiddens: tuple[int, ...], head: dict[str, Any]
) -> None:
    config = config_of(hiddens, dueling, fcnet_hiddens=fcnet_hiddens)
    config = dataclasses.replace(config, head=dataclasses.replace(config.head, **head))
    network, found = make_torch_network(config).eval(), NumpyQNetwork(config)
    (found.share if shares else found.load)(arrays_of(network))
    np.testing.assert_allclose(found.outputs(observations()), outputs_of(network, observations()), rtol=1e-5, atol=1e-6)


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
