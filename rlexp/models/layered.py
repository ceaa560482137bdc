"""The networks of agents with a policy, forwards and backwards: by autograd, or layer by layer if that is faster.

First fully connected layers with gradients by hand, on any device, as autograd is mostly overhead for small ones; then
an actor-critic of them, and the policy and critics of DDPG, TD3 and SAC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from rlexp.models.dense_gradients import DenseLayers
from rlexp.models.lstm import Sequences
from rlexp.models.networks import ActorCritic, CriticNetwork, CriticNetworks, PolicyNetwork
from rlexp.models.torsos import VectorTorso

MOST_NARROW_INPUTS: Final = 32
"""Most inputs of a layer that is called narrow. On a CPU, a product of 256 x 256 by 256 x 4 numbers takes 80 µs, and
its transpose from the transposed factors 15 µs (one core of an AMD EPYC, 2026-11-26)."""


class TensorLayer:
    """A DifferentiableLayer in torch, which adds to the gradients of its parameters."""

    def __init__(self, linear: nn.Linear, activation: type[nn.Module]) -> None:
        """Initialise from a layer of a network, in its memory; without a gradient it only goes forwards."""
        # As tensors, as a module would look each of them up among its attributes at every update.
        self._weight, self._bias = linear.weight.data, linear.bias.data
        self._transposed = self._weight.t()
        self._of_weight, self._of_bias = linear.weight.grad, linear.bias.grad
        self._activation, self._slope = _FORWARD[activation], _BACKWARD[activation]
        self._is_narrow = self._weight.device.type == "cpu" and linear.in_features <= MOST_NARROW_INPUTS

    def forward(self, x: Tensor) -> Tensor:
        return self._activation(torch.addmm(self._bias, x, self._transposed))

    def backward(self, x: Tensor, output: Tensor, gradient: Tensor, with_input: bool) -> Tensor:
        gradient = self._slope(gradient, output)
        assert self._of_weight is not None
        assert self._of_bias is not None
        if self._is_narrow:
            self._of_weight.add_((x.t() @ gradient).t())
        else:
            self._of_weight.addmm_(gradient.t(), x)
        self._of_bias.add_(gradient.sum(dim=0))
        return self._of_input(gradient) if with_input else gradient

    def input_gradient(self, output: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of the input ``[B, fan_in]`` from the ``gradient [B, fan_out]`` of ``output``."""
        return self._of_input(self._slope(gradient, output))

    def _of_input(self, gradient: Tensor) -> Tensor:
        return (self._transposed @ gradient.t()).t() if self._is_narrow else gradient @ self._weight


class TensorLayers(DenseLayers[Tensor]):
    """Linear layers, each followed by an activation or by the next one, in the memory of a network."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        found: list[tuple[nn.Linear, type[nn.Module]]] = []
        for module in modules:
            if isinstance(module, nn.Linear):
                found.append((module, nn.Identity))
            else:
                found[-1] = found[-1][0], type(module)
        layers = [TensorLayer(*each) for each in found]
        super().__init__(layers)
        self._tensor_layers = layers

    def __len__(self) -> int:
        return len(self._tensor_layers)

    def input_gradient(self, outputs: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Return the gradient of the input ``[B, N]`` alone; the arguments are as for ``backward``."""
        for layer, output in zip(reversed(self._tensor_layers), reversed(outputs), strict=False):
            gradient = layer.input_gradient(output, gradient)
        return gradient


def can_be_layered(torso: nn.Module) -> bool:
    """Return whether a torso has only layers that TensorLayers know."""
    return isinstance(torso, VectorTorso) and are_known(torso)


def are_known(layers: Iterable[nn.Module]) -> bool:
    """Return whether TensorLayers know each of ``layers``."""
    return all(type(layer) in {nn.Linear, *_BACKWARD} for layer in layers)


_FORWARD: Final[Mapping[type[nn.Module], Callable[[Tensor], Tensor]]] = {
    nn.Tanh: torch.tanh_,
    nn.ReLU: torch.relu_,
    nn.Identity: lambda x: x,
}
_BACKWARD: Final[Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.ReLU: lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    nn.Identity: lambda gradient, output: gradient,
}
"""Functions for the gradient before an activation, from the gradient after it and its output."""


class AutogradNetwork:
    """An actor-critic network of any layers that adds to the gradients of its parameters."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor, sequences: Sequences | None = None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]``, without a history.

        A network with a memory needs the ``sequences`` that the rows are.
        """
        inputs, values = self._network(obs, sequences)
        self._outputs = inputs, values
        return inputs.detach(), values.detach()

    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        """Continue from the gradients of the results of the last ``forward``; call it at most once for each."""
        assert self._outputs is not None
        torch.autograd.backward(self._outputs, (of_inputs, of_values))
        self._outputs = None


class LayeredNetwork:
    """An AutogradNetwork's methods for fully connected layers, without autograd.

    With minibatches of some hundred rows and usual layers, recording operations and adding gradients takes autograd as
    much time as computing them.
    """

    def __init__(self, network: ActorCritic) -> None:
        """Initialise from a network whose torsos ``can_be_layered``, and whose parameters have a gradient already."""
        torso, value_torso = network.policy_torso, network.value_torso
        assert isinstance(torso, VectorTorso)
        self._see = torso.seen
        self._shares_torso = value_torso is None
        self._torso = TensorLayers([*torso] if self._shares_torso else [])
        self._policy = TensorLayers([*([] if self._shares_torso else torso), network.policy_head])
        self._value = TensorLayers([*(value_torso.children() if value_torso is not None else ()), network.value_head])
        self._log_std, self._masking = network.log_std, network.masking
        self._passed: tuple[list[Tensor], list[Tensor], list[Tensor]] | None = None
        """Input and outputs of each of the three parts in the last forward pass."""

    @torch.no_grad()
    def forward(self, obs: Tensor, sequences: Sequences | None = None) -> tuple[Tensor, Tensor]:
        masking = self._masking
        torso = self._torso.forward(self._see(obs if masking is None else masking.observations(obs)))
        policy, value = self._policy.forward(torso[-1]), self._value.forward(torso[-1])
        self._passed = torso, policy, value
        inputs, values = policy[-1], value[-1]
        if masking is not None:  # backwards, the gradient of a masked logit is 0, as its probability is
            inputs = masking.of_tensors(inputs, obs)
        if self._log_std is not None:
            inputs = torch.cat([inputs, self._log_std.expand(len(inputs), -1)], dim=1)
        return inputs, values.squeeze(1)

    @torch.no_grad()
    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        assert self._passed is not None
        torso, policy, value = self._passed
        self._passed = None
        if self._log_std is not None:
            count = of_inputs.shape[1] - len(self._log_std)
            of_inputs, of_log_std = of_inputs[:, :count], of_inputs[:, count:]
            _gradient(self._log_std).add_(of_log_std.sum(dim=0))
        from_policy = self._policy.backward(policy, of_inputs, self._shares_torso)
        from_value = self._value.backward(value, of_values.unsqueeze(1), self._shares_torso)
        if self._shares_torso:
            self._torso.backward(torso, from_policy + from_value, False)


DifferentiableNetwork = AutogradNetwork | LayeredNetwork


def differentiable(network: ActorCritic) -> DifferentiableNetwork:
    """Return the fastest form of ``network``, whose parameters have a gradient already."""
    is_layered = network.memory is None and can_be_layered(network.policy_torso)
    return LayeredNetwork(network) if is_layered else AutogradNetwork(network)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


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
    """A PolicyNetwork of fully connected layers."""

    def __init__(self, network: PolicyNetwork) -> None:
        self._networks, self._masking = LayeredNetworks([network]), network.masking
        self.leaf = self._networks.leaf

    def __call__(self, obs: Tensor) -> Tensor:
        inputs = self._networks(obs)[0]
        return inputs if self._masking is None else self._masking.of_tensors(inputs, obs)


class LayeredCritics:
    """CriticNetworks of fully connected layers."""

    def __init__(self, networks: CriticNetworks) -> None:
        critics = networks.each()
        self._all, self._first = LayeredNetworks(critics), LayeredNetworks(critics[:1])

    def __call__(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        values = self._all(obs, actions)
        return values if actions is None else values.squeeze(2)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self._first(obs, actions)[0].squeeze(1)


PolicyForm = PolicyNetwork | LayeredPolicy
CriticsForm = CriticNetworks | LayeredCritics


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
