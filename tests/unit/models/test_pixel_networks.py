"""Every head works on every stack of convolutions, from bytes on."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlexp.config.keys.fields import ConvFilter
from rlexp.models import HeadConfig, QNetworkConfig, TorsoConfig
from rlexp.models.networks import QNetwork

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
