"""Q-networks: every head works on every stack of convolutions, from bytes on."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.fields import ConvFilter
from rlexp.config.keys.model import ModelConfig
from rlexp.models.network_config import HeadConfig, QNetworkConfig, TorsoConfig, torso_config_of
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import ACTIVATIONS, VectorTorso, mlp
from tests.lab.dqn import PLAIN_HEAD

NATURE = ((32, (8, 8), 4), (64, (4, 4), 2), (64, (3, 3), 1))
"""Mnih et al. 2015."""
NUM_ACTIONS = 6


def network(side: int, filters: tuple[ConvFilter, ...] | None, **head: Any) -> QNetwork:
    torch.manual_seed(0)
    plain = {"hiddens": (16,), "dueling": False, "noisy": False, "sigma0": 0.5, "num_atoms": 1}
    torso = TorsoConfig((), "relu", filters, "relu", (), "relu", zero_mean=False)
    head_config = HeadConfig(**{**plain, **head}, v_min=-10.0, v_max=10.0)
    return QNetwork(QNetworkConfig((side, side, 4), NUM_ACTIONS, torso, head_config))


@pytest.mark.parametrize("head", [{}, {"dueling": True}, {"noisy": True}, {"num_atoms": 51}, {"hiddens": ()}])
@pytest.mark.parametrize(("side", "filters"), [(84, None), (42, None), (84, NATURE), (42, ((8, (4, 4), 4),))])
def test_values_come_of_bytes_and_every_layer_learns(
    side: int, filters: tuple[ConvFilter, ...] | None, head: dict[str, Any]
) -> None:
    net = network(side, filters, **head)
    net.resample_noise(torch.Generator().manual_seed(0))
    images = torch.randint(0, 256, (3, side, side, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    values = net(images)
    assert values.shape == (3, NUM_ACTIONS)
    torch.testing.assert_close(net(images.to(torch.float32) / 255), values)
    assert not torch.allclose(values[0], values[1])
    values.square().sum().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name


def test_the_networks_for_84_and_42_pixels_end_alike() -> None:
    assert [network(side, None).torso.num_features for side in (84, 42)] == [256, 256]
    assert network(84, NATURE).torso.num_features == 64 * 9 * 9  # padded, as RLlib's; 7 * 7 without


def torso_of(**keys: Any) -> TorsoConfig:
    return torso_config_of(DQNConfig(model=ModelConfig(**keys)))


CONFIG = QNetworkConfig(observation_shape=(3,), num_actions=4, torso=torso_of(fcnet_hiddens=(8, 5)), head=PLAIN_HEAD)


def make_network(torso: TorsoConfig = CONFIG.torso, **head: Any) -> QNetwork:
    torch.manual_seed(0)
    return QNetwork(dataclasses.replace(CONFIG, torso=torso, head=dataclasses.replace(PLAIN_HEAD, **head)))


def observations() -> Tensor:
    return torch.randn((7, 3), generator=torch.Generator().manual_seed(1))


def test_dueling_adds_centred_advantages_to_the_value() -> None:
    network, obs = make_network(), observations()
    assert network.value_head is not None
    value, advantages = network.value_head(network.torso(obs)), network.advantage_head(network.torso(obs))
    for row in range(7):
        mean = sum(advantages[row].tolist()) / 4
        for action in range(4):
            expected = value[row].item() + advantages[row, action].item() - mean
            assert network(obs)[row, action].item() == pytest.approx(expected, abs=1e-6)


def test_without_dueling_there_is_no_value_head() -> None:
    network, obs = make_network(dueling=False), observations()
    assert network.value_head is None
    assert torch.equal(network(obs), network.advantage_head(network.torso(obs)))


def test_layers_have_the_sizes_and_activations_asked_for() -> None:
    network = make_network(torso=torso_of(fcnet_hiddens=(8, 5), fcnet_activation="swish"))
    sizes = [(layer.in_features, layer.out_features) for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert sizes == [(3, 8), (8, 5), (5, 8), (8, 4), (5, 8), (8, 1)]
    assert isinstance(network.torso, VectorTorso)
    assert [type(layer) for layer in network.torso][1::2] == [nn.SiLU, nn.SiLU]
    assert [type(layer) for layer in network.advantage_head] == [nn.Linear, nn.ReLU, nn.Linear]


def test_every_activation_of_the_config_has_a_module() -> None:
    from typing import get_args

    from rlexp.config.keys.model import ModelConfig

    names = get_args(ModelConfig.model_fields["fcnet_activation"].annotation)
    assert set(names) <= set(ACTIVATIONS)


def test_a_torso_without_layers_changes_nothing() -> None:
    obs = observations()
    assert mlp((3,), "relu")(obs) is obs


def noise_of(network: QNetwork) -> list[Tensor]:
    return [part for layer in network.named_noisy_layers().values() for part in (layer.noise_in, layer.noise_out)]


@pytest.mark.parametrize("change", ["none", "moved", "copied"])
def test_noise_of_all_layers_is_drawn_at_once_wherever_the_network_goes(change: str) -> None:
    network = make_network(noisy=True, dueling=True, hiddens=(6,))
    views = noise_of(network)
    if change == "moved":
        network = network.to(torch.float64)
    elif change == "copied":
        network = copy.deepcopy(network)
    network.resample_noise(torch.Generator().manual_seed(2))
    noise = noise_of(network)
    dtype = torch.float64 if change == "moved" else torch.float32
    drawn = torch.empty(sum(map(len, noise)), dtype=dtype).normal_(generator=torch.Generator().manual_seed(2))
    assert torch.equal(torch.cat(noise), drawn.sign() * drawn.abs().sqrt())
    assert len(noise) == 8
    assert change != "none" or torch.equal(torch.cat(views), torch.cat(noise))  # who holds them sees the new noise
