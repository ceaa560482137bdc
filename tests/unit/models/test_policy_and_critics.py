"""The networks of DDPG, TD3 and SAC: by layers they return what autograd does, and the same gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlexp.agents.torch.flat_adam import FlatParameters
from rlexp.models.layered import (
    CriticsForm,
    LayeredCritics,
    LayeredPolicy,
    PolicyForm,
    fastest_critics,
    fastest_policy,
)
from rlexp.models.network_config import LayersConfig, PolicyAndCriticsConfig, TorsoConfig
from rlexp.models.networks import CriticNetworks, PolicyNetwork
from rlexp.models.torch_distributions import draw_squashed

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
