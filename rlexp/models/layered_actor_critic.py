"""An actor-critic network forwards and backwards: by autograd, or layer by layer if that is faster."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rlexp.models.lstm import Sequences
from rlexp.models.networks import ActorCritic
from rlexp.models.tensor_layers import TensorLayers, can_be_layered
from rlexp.models.torsos import VectorTorso


class DifferentiableNetwork(Protocol):
    """An actor-critic network that adds to the gradients of its parameters."""

    def forward(self, obs: Tensor, sequences: Sequences | None = None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]``, without a history.

        A network with a memory needs the ``sequences`` that the rows are.
        """
        ...

    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        """Continue from the gradients of the results of the last ``forward``; call it at most once for each."""
        ...


class AutogradNetwork:
    """A DifferentiableNetwork of any layers."""

    def __init__(self, network: ActorCritic) -> None:
        self._network = network
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor, sequences: Sequences | None = None) -> tuple[Tensor, Tensor]:
        inputs, values = self._network(obs, sequences)
        self._outputs = inputs, values
        return inputs.detach(), values.detach()

    def backward(self, of_inputs: Tensor, of_values: Tensor) -> None:
        assert self._outputs is not None
        torch.autograd.backward(self._outputs, (of_inputs, of_values))
        self._outputs = None


class LayeredNetwork:
    """A DifferentiableNetwork of fully connected layers, without autograd.

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


def differentiable(network: ActorCritic) -> DifferentiableNetwork:
    """Return the fastest form of ``network``, whose parameters have a gradient already."""
    is_layered = network.memory is None and can_be_layered(network.policy_torso)
    return LayeredNetwork(network) if is_layered else AutogradNetwork(network)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
