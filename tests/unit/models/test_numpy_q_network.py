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
from rlexp.models.numpy_layers import ACTIVATIONS
from rlexp.models.numpy_q_network import NumpyQNetwork, can_be
from rlexp.models.q_network import QNetwork
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


@pytest.mark.parametrize(
    "config",
    [
        dataclasses.replace(config_of(), observation_shape=(84, 84, 4)),
        dataclasses.replace(config_of(), head=dataclasses.replace(PLAIN_HEAD, noisy=True)),
        dataclasses.replace(config_of(), head=dataclasses.replace(PLAIN_HEAD, num_atoms=51)),
    ],
)
def test_refuses_what_only_torch_can_do(config: QNetworkConfig) -> None:
    assert not can_be(config)
    with pytest.raises(ValueError, match="NumPy form"):
        NumpyQNetwork(config)
