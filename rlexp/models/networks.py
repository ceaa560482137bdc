"""The networks in torch: the actor-critic, the Q-network with optional dueling and noisy heads, and policy and critics.

The policy and critics of DDPG, TD3 and SAC share no layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlexp.models.lstm import LSTM, Sequences
from rlexp.models.network_config import (
    ActorCriticConfig,
    HeadConfig,
    LayersConfig,
    PolicyAndCriticsConfig,
    QNetworkConfig,
)
from rlexp.models.torsos import ACTIVATIONS, UserTorso, make_torso, mlp, refuse_modes

HIDDEN_GAIN, POLICY_HEAD_GAIN, VALUE_HEAD_GAIN = 2**0.5, 0.01, 1.0
"""Gains of the first weights. With such a small gain, the first policy is nearly uniform."""


class ActorCritic(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to the inputs of a distribution ``[B, K]`` and values ``[B]``.

    Both have their own torsos, or share one; an LSTM after it is shared. With ``num_free_log_std`` the last inputs are
    parameters that do not depend on the observation; they start at 0.
    """

    def __init__(self, config: ActorCriticConfig) -> None:
        super().__init__()
        self.policy_torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.value_torso = (
            None
            if config.shares_torso
            else make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        )
        refuse_modes(self.policy_torso)
        self.memory = LSTM(self.policy_torso.num_features, config.memory) if config.memory is not None else None
        features = self.policy_torso.num_features if self.memory is None else self.memory.num_features
        self.policy_head = nn.Linear(features, config.num_inputs - config.num_free_log_std)
        self.value_head = nn.Linear(features, 1)
        self.log_std = nn.Parameter(torch.zeros(config.num_free_log_std)) if config.num_free_log_std else None
        self.masking = config.masking
        _initialise(self)

    def forward(self, rows: Tensor, sequences: Sequences | None = None) -> tuple[Tensor, Tensor]:
        """Return the inputs of the distributions ``[B, K]`` and the values ``[B]``; ``rows`` may have masks.

        A network with an LSTM needs the ``sequences`` that the rows are.
        """
        obs = self._unmasked(rows)
        features = self.policy_torso(obs)
        if self.memory is not None:
            assert sequences is not None
            features, _ = self.memory(features, sequences)
        return self._outputs(features, obs, rows)

    def step(self, rows: Tensor, previous: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same for one row of each of B envs, and the LSTM's states ``[B, 2 H]`` after it."""
        assert self.memory is not None
        obs = self._unmasked(rows)
        features, following = self.memory.step(self.policy_torso(obs), previous, states)
        return *self._outputs(features, obs, rows), following

    def _unmasked(self, rows: Tensor) -> Tensor:
        return rows if self.masking is None else self.masking.observations(rows)

    def _outputs(self, features: Tensor, obs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        inputs = self.policy_head(features)
        if self.masking is not None:
            inputs = self.masking.of_tensors(inputs, rows)
        if self.log_std is not None:
            inputs = torch.cat([inputs, self.log_std.expand(inputs.shape[0], -1)], dim=1)
        values: Tensor = self.value_head(features if self.value_torso is None else self.value_torso(obs))
        return inputs, values.squeeze(1)


def _initialise(network: ActorCritic) -> None:
    """Draw the first weights: orthogonal ones (Saxe et al. 2014), as in Stable-Baselines3 and CleanRL.

    RLlib drew them so that the weights of each unit had the norm 1. Of five seeds on CartPole with the values of
    rl-baselines3-zoo, three then reached 475 within 100,000 env steps; with orthogonal weights all five did.
    Torsos of the user's own keep the weights that they were made with.
    """
    gains: dict[nn.Module, float] = {network.policy_head: POLICY_HEAD_GAIN, network.value_head: VALUE_HEAD_GAIN}
    torsos = (torso for torso in network.children() if isinstance(torso, UserTorso))
    users = {module for torso in torsos for module in torso.modules()}
    for module in network.modules():
        if module in users:
            continue
        if isinstance(module, nn.Linear | nn.Conv2d):
            # Of its own layout: a view of weights that are laid out channels last would not do.
            weight = nn.init.orthogonal_(torch.empty(module.weight.shape), gains.get(module, HIDDEN_GAIN))
            module.weight.data.copy_(weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class NoisyLinear(nn.Module):
    """A linear layer whose weights carry factorised Gaussian noise (Fortunato et al. 2018, section 3).

    ``w = mu_w + sigma_w * f(eps_out) f(eps_in)^T`` and ``b = mu_b + sigma_b * f(eps_out)`` with
    ``f(x) = sign(x) sqrt(|x|)``. In training mode the noise of the last ``QNetwork.resample_noise`` acts; in evaluation
    mode there is none. The noise is neither a parameter nor a part of the state.
    """

    noise_in: Tensor
    noise_out: Tensor

    def __init__(self, fan_in: int, fan_out: int, sigma0: float) -> None:
        super().__init__()
        bound = 1 / math.sqrt(fan_in)
        self.weight_mu = nn.Parameter(torch.empty(fan_out, fan_in).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((fan_out, fan_in), sigma0 * bound))
        self.bias_mu = nn.Parameter(torch.empty(fan_out).uniform_(-bound, bound))
        self.bias_sigma = nn.Parameter(torch.full((fan_out,), sigma0 * bound))
        self.register_buffer("noise_in", torch.zeros(fan_in), persistent=False)
        self.register_buffer("noise_out", torch.zeros(fan_out), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``[B, fan_in]`` to ``[B, fan_out]``."""
        if not self.training:
            return functional.linear(features, self.weight_mu, self.bias_mu)
        weight = self.weight_mu + self.weight_sigma * torch.outer(self.noise_out, self.noise_in)
        return functional.linear(features, weight, self.bias_mu + self.bias_sigma * self.noise_out)


class QNetwork(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to action values ``[B, num_actions]``.

    Dueling: ``Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`` (Wang et al. 2016, equation 9), with several
    atoms in each logit (Hessel et al. 2018). Distributional: the values are the means of categorical
    distributions over ``support [num_atoms]`` (Bellemare et al. 2017), or of quantiles (Dabney et al. 2018). Noisy
    heads are noisy in training mode only.
    """

    support: Tensor

    def __init__(self, config: QNetworkConfig) -> None:
        super().__init__()
        head = config.head
        self.num_actions, self.num_atoms = config.num_actions, head.num_atoms
        self.is_categorical = head.is_categorical
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.memory = None if config.memory is None else LSTM(self.torso.num_features, config.memory)
        features = self.torso.num_features if self.memory is None else self.memory.num_features
        self.advantage_head = _head(features, head, config.num_actions * head.num_atoms)
        self.value_head = _head(features, head, head.num_atoms) if head.dueling else None
        support = torch.linspace(head.v_min, head.v_max, head.num_atoms)
        self.register_buffer("support", support, persistent=False)
        self._noise = self._join_noise()
        self.masking = config.masking

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values ``[B, num_actions]``, as if all actions were allowed."""
        return self.values(self.outputs(obs))

    def outputs(self, obs: Tensor) -> Tensor:
        """Return the outputs of the heads ``[B, num_actions, num_atoms]``: values, quantiles or logits of atoms."""
        return self.outputs_of(self.seen(obs))

    def seen(self, obs: Tensor) -> Tensor:
        """Return observations as the torso's features see them, without their masks."""
        return self.torso.seen(obs if self.masking is None else self.masking.observations(obs))

    def outputs_of(self, seen: Tensor) -> Tensor:
        """Return the ``outputs`` for what ``seen`` returned; equal torsos prepare observations equally."""
        return self._of_features(self.torso.features(seen))

    def recurrent_outputs(self, seen: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Return the ``outputs_of`` the rows of ``sequences``, and the states ``[C, 2 H]`` of the memory after each."""
        assert self.memory is not None
        features, states = self.memory(self.torso.features(seen), sequences)
        return self._of_features(features), states

    def step(self, obs: Tensor, previous: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ``outputs`` of one observation for each of B sequences, and the next states ``[B, 2 H]``."""
        assert self.memory is not None
        features, states = self.memory.step(self.torso.features(self.seen(obs)), previous, states)
        return self._of_features(features), states

    def _of_features(self, features: Tensor) -> Tensor:
        advantages: Tensor = self.advantage_head(features).unflatten(1, (self.num_actions, self.num_atoms))
        if self.value_head is None:
            return advantages
        value: Tensor = self.value_head(features).unsqueeze(1)
        return value + advantages - advantages.mean(dim=1, keepdim=True)

    def values(self, outputs: Tensor) -> Tensor:
        """Return the action values ``[B, num_actions]`` of ``outputs``."""
        if self.num_atoms == 1:
            return outputs.squeeze(2)
        return outputs.softmax(dim=2) @ self.support if self.is_categorical else outputs.mean(dim=2)

    def named_noisy_layers(self) -> dict[str, NoisyLinear]:
        """Return the noisy layers by their names."""
        return {name: module for name, module in self.named_modules() if isinstance(module, NoisyLinear)}

    def resample_noise(self, generator: torch.Generator) -> None:
        """Draw fresh noise for all noisy layers at once, from a generator on the network's device."""
        noise = self._noise
        if noise is None:
            return
        # In place, as users of this network's memory have views of the noise.
        noise.normal_(generator=generator)
        signs = noise.sign()
        noise.abs_().sqrt_().mul_(signs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move all tensors as ``nn.Module`` does; the noise, moved piece by piece, becomes one tensor again."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._noise = self._join_noise()
        return self

    def _join_noise(self) -> Tensor | None:
        """Return the noise of all noisy layers as one tensor with views for each; None if there is none.

        One call for all draws it in a quarter of the time that eight layers' noise takes.
        """
        layers = self.named_noisy_layers().values()
        parts = [part for layer in layers for part in (layer.noise_in, layer.noise_out)]
        if not parts:
            return None
        joined = torch.cat(parts)
        views = iter(torch.split(joined, [len(part) for part in parts]))
        for layer in layers:
            layer.noise_in, layer.noise_out = next(views), next(views)
        return joined


def _head(features: int, config: HeadConfig, outputs: int) -> nn.Sequential:
    sizes = (features, *config.hiddens, outputs)
    layers: list[nn.Module] = []
    for (fan_in, fan_out), activation in zip(pairwise(sizes), config.activations, strict=True):
        linear = NoisyLinear(fan_in, fan_out, config.sigma0) if config.noisy else nn.Linear(fan_in, fan_out)
        layers += [linear, ACTIVATIONS[activation]()]
    return nn.Sequential(*layers[:-1])  # the names of weights count every module


class PolicyNetwork(nn.Module):
    """Maps observations ``[B, *observation_shape]`` to the inputs of the distribution of an action ``[B, K]``."""

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        self.head = _plain_head(self.torso.num_features, config.policy, config.num_inputs)
        self.masking = config.masking

    def forward(self, obs: Tensor) -> Tensor:
        """Return the inputs ``[B, K]``."""
        masking = self.masking
        inputs: Tensor = self.head(self.torso(obs if masking is None else masking.observations(obs)))
        return inputs if masking is None else masking.of_tensors(inputs, obs)


class CriticNetwork(nn.Module):
    """Maps observations, and continuous actions ``[B, D]`` in -1 to 1, to values.

    Without continuous actions there is a value for each of K actions.
    """

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.torso = make_torso(config.observation_shape, config.torso, config.sees_byte_vectors)
        num_values = 1 if config.num_numbers else config.num_inputs
        self.head = _plain_head(self.torso.num_features + config.num_numbers, config.critic, num_values)
        self.masking = config.masking

    def forward(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        """Return values ``[B]`` of ``actions [B, D]``, or values ``[B, K]`` of all actions if it is None."""
        features = self.torso(obs if self.masking is None else self.masking.observations(obs))
        if actions is None:
            values: Tensor = self.head(features)
            return values
        values = self.head(torch.cat([features, actions], dim=1))
        return values.squeeze(1)


class CriticNetworks(nn.Module):
    """One critic, or two whose lower value is used (Fujimoto et al. 2018, section 4.2)."""

    def __init__(self, config: PolicyAndCriticsConfig) -> None:
        super().__init__()
        self.critics = nn.ModuleList(CriticNetwork(config) for _ in range(config.num_critics))

    def each(self) -> list[CriticNetwork]:
        """Return the C critics."""
        return [critic for critic in self.critics if isinstance(critic, CriticNetwork)]

    def forward(self, obs: Tensor, actions: Tensor | None) -> Tensor:
        """Return the values of each of C critics, ``[C, B]`` or ``[C, B, K]``."""
        return torch.stack([critic(obs, actions) for critic in self.critics])

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[B]`` of the first critic."""
        values: Tensor = self.critics[0](obs, actions)
        return values


def _plain_head(features: int, config: LayersConfig, outputs: int) -> nn.Sequential:
    sizes = (features, *config.hiddens)
    return nn.Sequential(*mlp(sizes, config.activation), nn.Linear(sizes[-1], outputs))
