"""The networks of DDPG, TD3 and SAC forwards and backwards: by autograd, or layer by layer if that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from rlexp.models.policy_and_critics import CriticNetwork, CriticNetworks, PolicyNetwork
from rlexp.models.tensor_layers import TensorLayers, are_known, can_be_layered
from rlexp.models.torsos import VectorTorso


class PolicyForm(Protocol):
    """A PolicyNetwork in either form."""

    def __call__(self, obs: Tensor) -> Tensor:
        """Return the inputs of the distribution of an action ``[B, K]``."""
        ...


class CriticsForm(Protocol):
    """CriticNetworks in either form."""

    def __call__(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        """Return the values of each of C critics, ``[C, B]`` or ``[C, B, K]``."""
        ...

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[B]`` of the first critic."""
        ...


class LayeredNetworks:
    """Networks of fully connected layers that see the same observations; autograd sees them as one operation.

    It is differentiated by the actions if they have a gradient, else by the parameters. With some hundred rows and
    usual layers, recording operations takes autograd a large part of an update.
    """

    def __init__(self, networks: Sequence[PolicyNetwork | CriticNetwork]) -> None:
        """Initialise from networks that ``are_layers``; of target networks, only results are asked for."""
        torsos = [network.torso for network in networks if isinstance(network.torso, VectorTorso)]
        self._see, self._masking = torsos[0].seen, networks[0].masking
        heads = [TensorLayers(network.head) for network in networks]
        self._parts = [(TensorLayers(torso), head) for torso, head in zip(torsos, heads, strict=True)]
        self.leaf = torch.zeros((), requires_grad=True)
        """Stands for the parameters: the gradient of a loss by it is written to the parameters' gradient."""

    def __call__(self, obs: Tensor, actions: Tensor | None = None) -> Tensor:
        """Return the outputs of each of C networks ``[C, B, K]``; critics of continuous actions see them as well."""
        seen = self._see(obs if self._masking is None else self._masking.observations(obs))
        outputs: Tensor = _Pass.apply(self, self.leaf, seen, actions)  # type: ignore[no-untyped-call]
        return outputs

    def forward(self, seen: Tensor, actions: Tensor | None) -> list[Passed]:
        """Return the results of each network's torso and head."""
        passed = []
        for torso, head in self._parts:
            features = torso.forward(seen)
            x = features[-1] if actions is None else torch.cat([features[-1], actions], dim=1)
            passed.append((features, head.forward(x)))
        return passed

    def backward(self, passed: Sequence[Passed], gradient: Tensor) -> None:
        """Add to the gradients of the parameters; ``gradient [C, B, K]`` is the outputs' gradient."""
        for (torso, head), (features, results), of_results in zip(self._parts, passed, gradient, strict=True):
            of_features = head.backward(results, of_results, bool(torso))
            if torso:
                torso.backward(features, of_features[:, : features[-1].shape[1]], False)

    def action_gradient(self, passed: Sequence[Passed], gradient: Tensor) -> Tensor:
        """Return the gradient of the actions ``[B, D]``; ``gradient [C, B, K]`` is the outputs' gradient."""
        found = [
            head.input_gradient(results, of_results)[:, features[-1].shape[1] :]
            for (_, head), (features, results), of_results in zip(self._parts, passed, gradient, strict=True)
        ]
        return torch.stack(found).sum(dim=0)


Passed = tuple[list[Tensor], list[Tensor]]
"""The results of a network's torso and of its head, each with its input first."""


class _Pass(torch.autograd.Function):
    """A forward pass through LayeredNetworks, and its backward pass."""

    @staticmethod
    def forward(ctx: Any, networks: LayeredNetworks, leaf: Tensor, seen: Tensor, actions: Tensor | None) -> Tensor:
        ctx.networks, ctx.passed = networks, networks.forward(seen, actions)
        return torch.stack([results[-1] for _, results in ctx.passed])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.needs_input_grad[3]:
            return None, None, None, ctx.networks.action_gradient(ctx.passed, gradient)
        ctx.networks.backward(ctx.passed, gradient)
        return None, None, None, None


class LayeredPolicy:
    """A PolicyForm of fully connected layers."""

    def __init__(self, network: PolicyNetwork) -> None:
        self._networks, self._masking = LayeredNetworks([network]), network.masking
        self.leaf = self._networks.leaf

    def __call__(self, obs: Tensor) -> Tensor:
        inputs = self._networks(obs)[0]
        return inputs if self._masking is None else self._masking.of_tensors(inputs, obs)


class LayeredCritics:
    """A CriticsForm of fully connected layers."""

    def __init__(self, networks: CriticNetworks) -> None:
        critics = networks.each()
        self._all, self._first = LayeredNetworks(critics), LayeredNetworks(critics[:1])

    def __call__(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        values = self._all(obs, actions)
        return values if actions is None else values.squeeze(2)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self._first(obs, actions)[0].squeeze(1)


def fastest_policy(network: PolicyNetwork) -> tuple[PolicyForm, list[Tensor]]:
    """Return the fastest form of ``network``, and what a loss is differentiated by to get its parameters' gradient.

    A network that is not a target network has a gradient already.
    """
    if not are_layers(network):
        return network, list(network.parameters())
    policy = LayeredPolicy(network)
    return policy, [policy.leaf]


def fastest_critics(networks: CriticNetworks) -> CriticsForm:
    """Return the fastest form of ``networks``, which have a gradient already if they are not target networks."""
    return LayeredCritics(networks) if all(map(are_layers, networks.each())) else networks


def are_layers(network: PolicyNetwork | CriticNetwork) -> bool:
    """Return whether a policy network or a critic has only layers that TensorLayers know."""
    return can_be_layered(network.torso) and are_known(network.head)
