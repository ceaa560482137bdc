"""The gradients of a network that is computed layer by layer, against those of autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from rlexp.agents.ppo.dense_network import (
    AutogradNetwork,
    DifferentiableNetwork,
    LayeredNetwork,
    can_be_layered,
    differentiable,
)
from rlexp.agents.torch.flat_adam import FlatParameters
from rlexp.models import ActorCriticConfig, TorsoConfig
from rlexp.models.networks import ActorCritic

TORSO = TorsoConfig((16, 8), "tanh", None, "relu", (), "relu", zero_mean=False)
NETWORK = ActorCriticConfig((5,), num_inputs=6, num_free_log_std=0, torso=TORSO, shares_torso=False)
CONFIGS = {
    "two torsos": NETWORK,
    "one torso": replace(NETWORK, shares_torso=True),
    "free deviations": replace(NETWORK, num_free_log_std=3),
    "relu, layers behind": replace(
        NETWORK, torso=replace(TORSO, fcnet_activation="relu", post_fcnet_hiddens=(7,), post_fcnet_activation="tanh")
    ),
    "linear": replace(NETWORK, torso=replace(TORSO, fcnet_activation="linear")),
    "no layers": replace(NETWORK, torso=replace(TORSO, fcnet_hiddens=())),
    "no layers, one torso": replace(NETWORK, torso=replace(TORSO, fcnet_hiddens=()), shares_torso=True),
    "bytes": replace(NETWORK, sees_byte_vectors=True),
}


def gradient_of(
    make: Callable[[ActorCritic], DifferentiableNetwork], module: ActorCritic, parameters: FlatParameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs for some observations, as one tensor, and the gradient of some function of them."""
    gradient = parameters.make_gradient()
    network = make(module)
    generator = torch.Generator().manual_seed(1)
    obs = torch.randint(0, 256, (9, 5), generator=generator, dtype=torch.uint8)
    of_inputs, of_values = torch.randn(9, 6, generator=generator), torch.randn(9, generator=generator)
    inputs, values = network.forward(obs)
    network.backward(of_inputs, of_values)
    return torch.cat([inputs, values.unsqueeze(1)], dim=1), gradient


@pytest.mark.parametrize("config", CONFIGS.values(), ids=tuple(CONFIGS))
def test_layer_by_layer_equals_autograd(config: ActorCriticConfig) -> None:
    torch.manual_seed(0)
    module = ActorCritic(config)
    parameters = FlatParameters(module)
    parameters.make_gradient()
    assert isinstance(differentiable(module), LayeredNetwork)
    outputs, gradient = gradient_of(LayeredNetwork, module, parameters)
    expected_outputs, expected = gradient_of(AutogradNetwork, module, parameters)
    torch.testing.assert_close(outputs, expected_outputs)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-4)
    assert gradient.abs().max() > 1.0


def test_activations_that_need_their_input_and_images_are_left_to_autograd() -> None:
    swish = ActorCritic(replace(NETWORK, torso=replace(TORSO, fcnet_activation="swish")))
    image = ActorCritic(replace(NETWORK, observation_shape=(42, 42, 1)))
    assert not can_be_layered(swish)
    assert not can_be_layered(image)
    assert isinstance(differentiable(swish), AutogradNetwork)
