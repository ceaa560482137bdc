"""The network of a learner, forwards and backwards: through autograd, or layer by layer where that is quicker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from rlexp.models.networks import ActorCritic
from rlexp.models.torsos import VectorTorso


class DifferentiableNetwork(Protocol):
    """An actor-critic network that adds the gradients of its parameters to those that they have."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]``, without a history."""
        ...

    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        """Go on from the gradients of what the last ``forward`` returned; may be called once for each."""
        ...


class AutogradNetwork:
    """A DifferentiableNetwork of any layers."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        inputs, values = self._network(obs)
        self._outputs = inputs, values
        return inputs.detach(), values.detach()

    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        assert self._outputs is not None
        torch.autograd.backward(self._outputs, (of_inputs, of_values))
        self._outputs = None


class LayeredNetwork:
    """A DifferentiableNetwork of fully connected layers, without autograd.

    With minibatches of some hundred rows and layers of usual size, autograd takes as long to record its operations
    and to add up their gradients as these take to compute.
    """

    def __init__(self, network: ActorCritic) -> None:
        """Take a network that ``can_be_layered``, whose parameters have a gradient already."""
        torso, value_torso = network.policy_torso, network.value_torso
        assert isinstance(torso, VectorTorso)
        self._see = torso.seen
        self._shares_torso = value_torso is None
        self._torso = _Layers([*torso] if self._shares_torso else [])
        self._policy = _Layers([*([] if self._shares_torso else torso), network.policy_head])
        self._value = _Layers([*(value_torso.children() if value_torso is not None else ()), network.value_head])
        self._log_std = network.log_std

    @torch.no_grad()
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self._torso.forward(self._see(obs))
        inputs, values = self._policy.forward(features), self._value.forward(features)
        if self._log_std is not None:
            inputs = torch.cat([inputs, self._log_std.expand(len(inputs), -1)], dim=1)
        return inputs, values.squeeze(1)

    @torch.no_grad()
    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        if self._log_std is not None:
            count = of_inputs.shape[1] - len(self._log_std)
            of_inputs, of_log_std = of_inputs[:, :count], of_inputs[:, count:]
            _gradient(self._log_std).add_(of_log_std.sum(dim=0))
        from_policy = self._policy.backward(of_inputs, self._shares_torso)
        from_value = self._value.backward(of_values.unsqueeze(1), self._shares_torso)
        if self._shares_torso:
            self._torso.backward(from_policy + from_value, False)


def can_be_layered(network: ActorCritic) -> bool:
    """Return whether a network has only layers that LayeredNetwork knows."""
    torso = network.policy_torso
    return isinstance(torso, VectorTorso) and all(type(layer) in {nn.Linear, *_BACKWARD} for layer in torso)


def differentiable(network: ActorCritic) -> DifferentiableNetwork:
    """Return the quickest form of ``network``, whose parameters have a gradient already."""
    return LayeredNetwork(network) if can_be_layered(network) else AutogradNetwork(network)


class _Layers:
    """Linear layers, each followed by an activation or by the next one."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        linear: list[nn.Linear] = []
        self._activations: list[type[nn.Module]] = []
        for layer in layers:
            if isinstance(layer, nn.Linear):
                linear.append(layer)
                self._activations.append(nn.Identity)
            else:
                self._activations[-1] = type(layer)
        # As tensors: a module looks each of them up among its attributes, at every update.
        self._weights = [layer.weight.data for layer in linear]
        self._transposed = [weight.t() for weight in self._weights]
        self._biases = [layer.bias.data for layer in linear]
        self._of_weights = [_gradient(layer.weight) for layer in linear]
        self._of_biases = [_gradient(layer.bias) for layer in linear]
        self._seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self._seen = [x]
        for bias, weight, activation in zip(self._biases, self._transposed, self._activations, strict=True):
            x = _FORWARD[activation](torch.addmm(bias, x, weight))
            self._seen.append(x)
        return x

    def backward(self, gradient: Tensor, needs_input: bool) -> Tensor:
        """Add the gradients of the parameters; return that of the input if it is needed."""
        for index in reversed(range(len(self._weights))):
            gradient = _BACKWARD[self._activations[index]](gradient, self._seen[index + 1])
            self._of_weights[index].addmm_(gradient.t(), self._seen[index])
            self._of_biases[index].add_(gradient.sum(dim=0))
            if index or needs_input:
                gradient = gradient @ self._weights[index]
        self._seen = []
        return gradient


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


_FORWARD: Mapping[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Tanh: torch.tanh_,
    nn.ReLU: torch.relu_,
    nn.Identity: lambda x: x,
}
_BACKWARD: Mapping[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {
    nn.Tanh: torch.ops.aten.tanh_backward,
    nn.ReLU: lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0),
    nn.Identity: lambda gradient, output: gradient,
}
"""The gradient before an activation, of the one behind it and of its output."""
