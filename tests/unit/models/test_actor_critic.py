"""The networks of agents with a policy: first weights, and NumPy forms that compute what the torch forms compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rlexp.agents.torch.flat_adam import FlatParameters
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.models.dense import NumpyActorCritic
from rlexp.models.layered import (
    AutogradNetwork,
    CriticsForm,
    DifferentiableNetwork,
    LayeredCritics,
    LayeredPolicy,
    PolicyForm,
    differentiable,
    fastest_critics,
    fastest_policy,
)
from rlexp.models.network_config import (
    ActorCriticConfig,
    LayersConfig,
    MemoryConfig,
    PolicyAndCriticsConfig,
    TorsoConfig,
    has_numpy_form,
    parameter_shapes,
    torso_config_of,
)
from rlexp.models.networks import ActorCritic, CriticNetworks, PolicyNetwork
from rlexp.models.torch_distributions import draw_squashed

NUM_INPUTS = 4
separate_or_shared = pytest.mark.parametrize("shares_torso", [False, True], ids=["separate", "shared"])


def config_of(shares_torso: bool = False, num_free_log_std: int = 0, **model: Any) -> ActorCriticConfig:
    torso = torso_config_of(DQNConfig(model=ModelConfig(**{"fcnet_hiddens": (8,), **model})))
    return ActorCriticConfig((3,), NUM_INPUTS, num_free_log_std, torso, shares_torso)


def network_of(config: ActorCriticConfig) -> ActorCritic:
    """Return a network whose weights and biases are all random, also those that are small or 0 at first."""
    torch.manual_seed(0)
    network = ActorCritic(config)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network


def outputs(config: ActorCriticConfig, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [B, K] of the distributions and values [B] that torch computes."""
    with torch.inference_mode():
        inputs, values = network_of(config)(torch.from_numpy(obs))
    return inputs.numpy(), values.numpy()


def assert_numpy_agrees(config: ActorCriticConfig, obs: np.ndarray) -> None:
    expected_inputs, expected_values = outputs(config, obs)
    network = NumpyActorCritic(config)
    network.load({name: tensor.numpy().copy() for name, tensor in network_of(config).state_dict().items()})
    inputs, values = network.outputs(obs)
    assert (inputs.shape, values.shape) == ((len(obs), NUM_INPUTS), (len(obs),))
    assert inputs.dtype == values.dtype == np.float32
    np.testing.assert_allclose(inputs, expected_inputs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(values, expected_values, rtol=1e-4, atol=1e-4)


def observations(rows: int = 16) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)


@separate_or_shared
@pytest.mark.parametrize("num_free_log_std", [0, 2])
@pytest.mark.parametrize("post_fcnet_hiddens", [(), (6,)])
@pytest.mark.parametrize("fcnet_hiddens", [(), (8,), (8, 5)])
def test_numpy_computes_what_torch_does(
    shares_torso: bool, num_free_log_std: int, fcnet_hiddens: tuple[int, ...], post_fcnet_hiddens: tuple[int, ...]
) -> None:
    layers = {"fcnet_hiddens": fcnet_hiddens, "post_fcnet_hiddens": post_fcnet_hiddens}
    assert_numpy_agrees(config_of(shares_torso, num_free_log_std, **layers), observations())


@separate_or_shared
@pytest.mark.parametrize("post_fcnet_hiddens", [(), (6,)])
def test_numpy_normalises_layers_as_torch_does(shares_torso: bool, post_fcnet_hiddens: tuple[int, ...]) -> None:
    config = config_of(shares_torso, fcnet_hiddens=(8, 5), post_fcnet_hiddens=post_fcnet_hiddens, layer_norm=True)
    assert_numpy_agrees(config, observations())
    assert isinstance(differentiable_of(config), AutogradNetwork)


def differentiable_of(config: ActorCriticConfig) -> DifferentiableNetwork:
    network = ActorCritic(config)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return differentiable(network)


@separate_or_shared
@pytest.mark.parametrize("fcnet_hiddens", [(), (8, 5)])
def test_both_forms_see_byte_vectors_around_zero(shares_torso: bool, fcnet_hiddens: tuple[int, ...]) -> None:
    plain = config_of(shares_torso, fcnet_hiddens=fcnet_hiddens)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 3), dtype=np.uint8)
    seeing = replace(plain, sees_byte_vectors=True)
    centered = outputs(plain, (pixels.astype(np.float32) - 128) / 128)
    for found, expected in zip(outputs(seeing, pixels), centered, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert_numpy_agrees(seeing, pixels)


def test_images_have_no_numpy_form() -> None:
    config = replace(config_of(), observation_shape=(84, 84, 4))
    assert not has_numpy_form(config)
    with pytest.raises(ValueError, match="NumPy form"):
        NumpyActorCritic(config)


@separate_or_shared
def test_values_depend_on_the_policys_torso_only_where_it_is_shared(shares_torso: bool) -> None:
    network = network_of(config_of(shares_torso))
    _, values = network(torch.from_numpy(observations()))
    values.sum().backward()
    gradients = [parameter.grad for parameter in network.policy_torso.parameters()]
    assert all((gradient is not None) == shares_torso for gradient in gradients)


@separate_or_shared
@pytest.mark.parametrize("sees_images", [True, False])
def test_first_weights_are_orthogonal(shares_torso: bool, sees_images: bool) -> None:
    torch.manual_seed(0)
    config = config_of(shares_torso, fcnet_hiddens=(64, 32))
    network = ActorCritic(replace(config, observation_shape=(42, 42, 4)) if sees_images else config)
    gains: dict[nn.Module, float] = {network.policy_head: 0.01, network.value_head: 1.0}
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    assert len(layers) >= 4
    for layer in layers:
        gain, weight = gains.get(layer, 2**0.5), layer.weight.flatten(1)
        fan_out, fan_in = weight.shape
        rows = weight if fan_out <= fan_in else weight.t()
        torch.testing.assert_close(rows @ rows.t(), gain**2 * torch.eye(len(rows)), rtol=1e-4, atol=1e-5)
        assert layer.bias is not None
        assert not layer.bias.any()


def test_first_deviations_that_are_parameters_are_one() -> None:
    network = ActorCritic(config_of(num_free_log_std=2))
    inputs, _ = network(torch.from_numpy(observations()))
    assert not inputs[:, 2:].any()
    assert inputs[:, :2].all()


@pytest.mark.parametrize("memory", [None, MemoryConfig(5, 3)], ids=["layers", "LSTM"])
@pytest.mark.parametrize("shares_torso", [False, True])
def test_shapes_are_those_of_the_network(shares_torso: bool, memory: MemoryConfig | None) -> None:
    config = replace(config_of(shares_torso or memory is not None), memory=memory)
    parameters = ActorCritic(config).state_dict()
    assert parameter_shapes(config) == {name: tuple(tensor.shape) for name, tensor in parameters.items()}


TORSO = TorsoConfig((), "tanh", None, "relu", (), "relu", zero_mean=False)
LAYERS = LayersConfig((16, 8), "relu")
CONFIG = PolicyAndCriticsConfig(
    (5,), 4, TORSO, LAYERS, replace(LAYERS, activation="tanh"), num_critics=2, num_numbers=2
)
CONFIGS = {
    "no torso": CONFIG,
    "torso": replace(CONFIG, torso=replace(TORSO, fcnet_hiddens=(7,))),
    "wide": replace(CONFIG, observation_shape=(40,)),
    "no layers": replace(CONFIG, policy=LayersConfig((), "relu"), critic=LayersConfig((), "relu")),
    "one critic": replace(CONFIG, num_critics=1),
    "discrete": replace(CONFIG, num_numbers=0),
    "bytes": replace(CONFIG, sees_byte_vectors=True),
}
FORMS = ("layers", "autograd")


@pytest.mark.parametrize("config", CONFIGS.values(), ids=tuple(CONFIGS))
def test_a_policys_layers_equal_autograd(config: PolicyAndCriticsConfig) -> None:
    obs = torch.randint(0, 9, (9, *config.observation_shape), dtype=torch.uint8)
    found = []
    for form in FORMS:
        torch.manual_seed(0)
        network = PolicyNetwork(config)
        gradient = FlatParameters(network).make_gradient()
        policy, leaves = fastest_policy(network)
        assert isinstance(policy, LayeredPolicy)
        used: PolicyForm = policy if form == "layers" else network
        inputs = used(obs)
        loss = inputs.square().sum()
        torch.autograd.backward(loss, inputs=leaves if form == "layers" else list(network.parameters()))
        found.append((inputs, gradient))
    torch.testing.assert_close(*found)
    assert found[0][1].any()


@pytest.mark.parametrize("of_actions", [False, True], ids=["of parameters", "of actions"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=tuple(CONFIGS))
def test_critics_layers_equal_autograd(config: PolicyAndCriticsConfig, of_actions: bool) -> None:
    """Gradients are of the actions alone if they have one."""
    if of_actions and not config.num_numbers:
        pytest.skip("discrete actions have no gradient")
    obs = torch.randint(0, 9, (9, *config.observation_shape), dtype=torch.uint8)
    found = []
    for form in FORMS:
        torch.manual_seed(0)
        networks = CriticNetworks(config)
        gradient = FlatParameters(networks).make_gradient()
        assert isinstance(fastest_critics(networks), LayeredCritics)
        critics: CriticsForm = fastest_critics(networks) if form == "layers" else networks
        actions = torch.rand(9, 2, requires_grad=of_actions) if config.num_numbers else None
        values = critics(obs, actions)
        loss = values.square().sum()
        if actions is not None:
            first = critics.first(obs, actions)
            torch.testing.assert_close(first, values[0])
            loss = loss + first.sum()
        if of_actions:
            assert actions is not None
            torch.autograd.backward(loss, inputs=[actions])
            found.append((values, actions.grad))
            assert not gradient.any()
        else:
            loss.backward()
            found.append((values, gradient))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert found[0][1] is not None
    assert found[0][1].any()


@pytest.mark.parametrize(
    "change",
    [
        {"observation_shape": (42, 42, 1)},
        {"torso": replace(TORSO, fcnet_hiddens=(4,), layer_norm=True)},
        {"policy": LayersConfig((4,), "swish"), "critic": LayersConfig((4,), "swish")},
    ],
    ids=["image", "normalised", "swish"],
)
def test_other_networks_are_left_to_autograd(change: dict[str, object]) -> None:
    config = replace(CONFIG, **change)  # type: ignore[arg-type]
    policy, critics = PolicyNetwork(config), CriticNetworks(config)
    assert fastest_policy(policy) == (policy, list(policy.parameters()))
    assert fastest_critics(critics) is critics


def test_drawn_actions_have_the_gradient_of_their_definition() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(6, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: draw_squashed(x, noise), inputs)


def test_a_bounded_deviation_has_no_gradient() -> None:
    inputs = torch.tensor([[0.0, 3.0], [0.0, -21.0], [0.0, 1.0]], requires_grad=True)
    actions, log_probs = draw_squashed(inputs, torch.full((3, 1), 0.01))
    (actions.sum() + log_probs.sum()).backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None
    assert (inputs.grad[:, 1] != 0).tolist() == [False, False, True]
