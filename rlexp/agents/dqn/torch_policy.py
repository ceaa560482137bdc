"""The DQN family's acting in torch: convolutions, the user's own torsos, noise on weights, and exports.

``ParameterNoise`` perturbs a copy of the network, about as much as ε would change its actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.agents.dqn.exploration import PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.policies import Exportable, memory_in
from rlexp.agents.torch.device import ActingWeights, as_tensor
from rlexp.models.lstm import unpacked
from rlexp.models.memory import STATE_OUT, PreviousStep
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.models.torsos import load_arrays
from rlexp.policy import Weights
from rlexp.sample_batch import Array


class TorchActingNetwork:
    """An ActingNetwork that can be any Q-network, noisy while it explores."""

    def __init__(self, config: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None) -> None:
        """Act without noise if there is no ``exploration``; ``num_threads`` is for this whole process."""
        if num_threads is not None:  # with torch's default, the workers of a machine compete for its cores
            torch.set_num_threads(num_threads)
        self._network = QNetwork(config).train(exploration is not None)
        self._network.torso.eval()  # noisy layers explore; dropout and batch normalisation do not
        self._layer_noise = _layer_noise(config, exploration)
        self._parameter_noise = _parameter_noise(self._network, exploration)
        self.is_perturbed = self._parameter_noise is not None
        self._weights = ActingWeights(self._network)

    def load(self, weights: Weights) -> None:
        self._weights.load(weights)
        if self._parameter_noise is not None:
            self._parameter_noise.perturb()

    def outputs(self, obs: Array) -> Array:
        return self._array(self._outputs(self._network, obs))

    @torch.inference_mode()
    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array]:
        """Return the outputs for ``obs [M, ...]`` by a network with a memory, and the states ``[M, 2 H]`` after it."""
        if self._layer_noise is not None:
            self._network.resample_noise(self._layer_noise)
        before = None if previous is None else as_tensor(previous)
        outputs, following = self._network.step(as_tensor(obs), before, as_tensor(states))
        return self._array(outputs), following.numpy()

    def exploring_outputs(self, obs: Array, epsilons: Array, resetting: Array) -> Array:
        noise = self._parameter_noise
        if noise is None:
            return self.outputs(obs)
        noise.begin_step(bool(resetting[0]))
        outputs = self._outputs(noise.network, obs)
        noise.record(obs, self._network.values(outputs))
        if noise.wants_to_adapt():
            unperturbed = self._outputs(self._network, noise.recorded_obs())
            noise.adapt(self._network.values(unperturbed), epsilons)
        return self._array(outputs)

    def noise_state(self) -> dict[str, Any]:
        layers, parameters = self._layer_noise, self._parameter_noise
        return {
            "layers": None if layers is None else layers.get_state().numpy(),
            "parameters": None if parameters is None else parameters.state(),
        }

    def load_noise(self, state: Mapping[str, Any]) -> None:
        if self._layer_noise is not None:
            self._layer_noise.set_state(torch.from_numpy(state["layers"]))
        if self._parameter_noise is not None:
            self._parameter_noise.load(state["parameters"])

    @torch.inference_mode()
    def _outputs(self, network: QNetwork, obs: Array) -> Tensor:
        if self._layer_noise is not None:
            network.resample_noise(self._layer_noise)
        return network.outputs(as_tensor(obs))

    def _array(self, outputs: Tensor) -> Array:
        array: Array = outputs.numpy()
        return array[:, :, 0] if self._network.num_atoms == 1 else array


def _layer_noise(config: QNetworkConfig, exploration: PolicyExploration | None) -> torch.Generator | None:
    if exploration is None or not config.head.noisy:
        return None
    return torch.Generator().manual_seed(exploration.seed_of("noise"))


def _parameter_noise(network: QNetwork, exploration: PolicyExploration | None) -> ParameterNoise | None:
    if exploration is None or exploration.parameter_noise_stddev is None:
        return None
    return ParameterNoise(network, exploration.parameter_noise_stddev, exploration.seed_of("noise"))


ADAPTATION_FACTOR = 1.01
"""The factor by which the deviation grows or shrinks at a time (Plappert et al. 2018, appendix C)."""


ADAPTATION_INTERVAL = 10
"""Acting steps between two changes of the deviation. It can halve within 700 steps, so it follows ε, and the
unperturbed values of so many steps cost one forward pass."""


class ParameterNoise:
    """Owns the copy of a worker's network that explores, and the deviation of the noise on its weights.

    Every weight has Gaussian noise of one deviation (Plappert et al. 2018, section 3). One draw serves all envs of a
    worker. It lasts for an episode of the first env, so that exploration is consistent; weights that arrive meanwhile
    get the same noise. The deviation starts at ``stddev`` and adapts until the copy differs from the network about as
    much as ε-greedy acting would. Random actions by ε are also taken, as in RLlib; the paper explores by the noise
    alone.

    The caller, who acts with ``network``, decides when to ``begin_step``, ``perturb``, ``record`` and ``adapt``.
    """

    def __init__(self, unperturbed: QNetwork, stddev: float, seed: int) -> None:
        """Perturb a copy of ``unperturbed``, whose weights may change in place before a ``perturb``."""
        self.network = deepcopy(unperturbed).requires_grad_(False)
        self.stddev = stddev
        self._unperturbed = unperturbed
        self._noise = [torch.empty_like(weight) for weight in self.network.parameters()]
        self._generator = torch.Generator().manual_seed(seed)
        self._steps: list[tuple[Array, Tensor]] = []
        self._rested = False
        self.redraw()

    def begin_step(self, rests: bool) -> None:
        """Draw fresh noise if the first env begins to rest: its episode has ended. An agent may rest for many steps."""
        if rests and not self._rested:
            self.redraw()
        self._rested = rests

    def redraw(self) -> None:
        """Draw fresh noise and perturb with it."""
        for noise in self._noise:
            noise.normal_(generator=self._generator)
        self.perturb()

    @torch.no_grad()
    def perturb(self) -> None:
        """Perturb the current weights with the noise of the last ``redraw``."""
        weights, perturbed = self._unperturbed.parameters(), self.network.parameters()
        for weight, noise, copy in zip(weights, self._noise, perturbed, strict=True):
            torch.add(weight, noise, alpha=self.stddev, out=copy)
        for buffer, own in zip(self._unperturbed.buffers(), self.network.buffers(), strict=True):
            own.copy_(buffer)

    def record(self, obs: Array, values: Tensor) -> None:
        """Store a step for the next ``adapt``: observations ``[B, ...]`` and the copy's values ``[B, A]``."""
        self._steps.append((obs.copy(), values))

    def wants_to_adapt(self) -> bool:
        """Return whether enough steps were recorded."""
        return len(self._steps) >= ADAPTATION_INTERVAL

    def recorded_obs(self) -> Array:
        """Return the observations ``[N, ...]`` recorded since the deviation changed."""
        return np.concatenate([obs for obs, _ in self._steps])

    def adapt(self, values: Tensor, epsilons: Array) -> None:
        """Change the deviation by one step, up or down, towards the mean divergence of ``epsilons [M]``.

        ``values [N, A]`` are the unperturbed network's values of ``recorded_obs``.
        """
        distance = divergence(values, torch.cat([perturbed for _, perturbed in self._steps]))
        wanted = float(divergence_of_epsilon(epsilons, values.shape[1]).mean())
        self.stddev *= ADAPTATION_FACTOR if distance <= wanted else 1 / ADAPTATION_FACTOR
        self._steps.clear()
        self.perturb()

    def state(self) -> dict[str, Any]:
        """Return the noise, its deviation, the recorded steps, and the generator of the next draws."""
        return {
            "stddev": self.stddev,
            "rested": self._rested,
            "generator": self._generator.get_state().numpy(),
            "noise": [noise.numpy() for noise in self._noise],
            "obs": [obs for obs, _ in self._steps],
            "values": [values.numpy() for _, values in self._steps],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, with the current weights."""
        self.stddev = state["stddev"]
        self._rested = state.get("rested", False)  # older checkpoints lack it
        self._generator.set_state(torch.from_numpy(state["generator"]))
        for noise, saved in zip(self._noise, state["noise"], strict=True):
            noise.copy_(torch.from_numpy(saved))  # into its own layout, which the next draws also fill
        self._steps = list(zip(state["obs"], map(torch.from_numpy, state["values"]), strict=True))
        self.perturb()


def divergence(values: Tensor, perturbed: Tensor) -> float:
    """Return KL(softmax(``values [N, A]``) || softmax(``perturbed [N, A]``)), the mean of the rows."""
    log_p, log_q = values.log_softmax(dim=1), perturbed.log_softmax(dim=1)
    return float((log_p.exp() * (log_p - log_q)).sum(dim=1).mean())


def divergence_of_epsilon(epsilons: Array, num_actions: int) -> Array:
    """Return -log(1 - ε + ε / |A|) for ``epsilons [M]``: how far ε-greedy is from greedy (appendix C.1)."""
    divergences: Array = -np.log(1 - epsilons + epsilons / num_actions)
    return divergences


class GreedyQNetwork(nn.Module):
    """Maps what the policy sees ``[B, ...]`` to actions ``[B]`` and action values ``[B, A]``.

    The value of a distribution is its mean; noisy layers use their mean weights. What is not allowed has the value
    MASKED.
    """

    def __init__(self, network: QNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and values."""
        values: Tensor = self.network(seen)
        if self.network.masking is not None:
            values = self.network.masking.of_tensors(values, seen)
        return values.argmax(dim=1), values


class GreedyRecurrentQNetwork(GreedyQNetwork):
    """The same with a memory: takes states ``[B, S]`` too, as EpisodeMemory packs them, and returns the next ones."""

    def __init__(self, network: QNetwork, previous_step: PreviousStep) -> None:
        super().__init__(network)
        self._previous_step = previous_step

    def forward(  # type: ignore[override]  # a memory is more than an observation
        self, seen: Tensor, packed: Tensor, rewards: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and states; ``rewards [B]`` only if the network sees them."""
        count = self._previous_step.num_action_numbers
        states, previous = unpacked(packed, rewards, count)
        outputs, following = self.network.step(seen, previous, states)
        values = self.network.values(outputs)
        if self.network.masking is not None:
            values = self.network.masking.of_tensors(values, seen)
        actions = values.argmax(dim=1)
        chosen = (actions.unsqueeze(1) == torch.arange(count)).to(torch.float32)
        return actions, values, torch.cat([following, chosen], dim=1)


def exportable_q_network(config: QNetworkConfig, policy: DQNPolicy, weights: Weights) -> Exportable:
    """Return the exportable form of ``policy`` with ``weights``."""
    network = QNetwork(config)
    load_arrays(network, weights)

    def choose(values: Array) -> Array:
        actions: Array = values.argmax(axis=1)
        return actions

    memory = memory_in(policy)
    if memory is None:
        return Exportable(
            GreedyQNetwork(network).eval(), ("q_values",), lambda obs: (policy.action_values(obs),), choose
        )

    def remembered(seen: Array) -> tuple[Array, ...]:
        values = policy.action_values(seen)
        policy.compute_actions(seen)
        return values, memory.packed()

    recurrent = GreedyRecurrentQNetwork(network, memory.previous_step).eval()
    return Exportable(recurrent, ("q_values", STATE_OUT), remembered, choose, memory)
