"""PPO's acting in torch: on images, with several threads, and in exports."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.agents.actor_critic.policy import ActorCriticPolicy, RecurrentPolicy
from rlexp.agents.export.policy_graph import torch_dtype
from rlexp.agents.policies import Exportable
from rlexp.agents.torch.device import as_tensor
from rlexp.models.action_distributions import Actions, CategoricalActions
from rlexp.models.lstm import unpacked
from rlexp.models.memory import STATE_OUT, PreviousStep
from rlexp.models.network_config import ActorCriticConfig
from rlexp.models.networks import ActorCritic
from rlexp.models.torsos import load_arrays
from rlexp.policy import Weights
from rlexp.rollout.folds import DIST_INPUTS, VF_PREDS
from rlexp.sample_batch import Array


class TorchActingActorCritic:
    """An ActingActorCritic that can be any network."""

    def __init__(self, config: ActorCriticConfig, num_threads: int | None) -> None:
        """Initialise; ``num_threads`` is for this whole process; None leaves it unchanged."""
        if num_threads is not None:  # with torch's default, the workers of a machine compete for its cores
            torch.set_num_threads(num_threads)
        self._network = ActorCritic(config).eval()

    def load(self, weights: Weights) -> None:
        load_arrays(self._network, weights)

    @torch.inference_mode()
    def outputs(self, obs: Array) -> tuple[Array, Array]:
        inputs, values = self._network(as_tensor(obs))
        return inputs.numpy(), values.numpy()

    @torch.inference_mode()
    def step(self, obs: Array, previous: Array | None, states: Array) -> tuple[Array, Array, Array]:
        """Return the outputs for ``obs [M, ...]`` by a network with a memory, and the states ``[M, 2 H]`` after it."""
        before = None if previous is None else as_tensor(previous)
        inputs, values, following = self._network.step(as_tensor(obs), before, as_tensor(states))
        return inputs.numpy(), values.numpy(), following.numpy()


def best_choices(actions: CategoricalActions, inputs: Tensor) -> Tensor:
    """Return the most likely value of each of D choices ``[B, D]``."""
    parts = torch.split(inputs, list(actions.sizes), dim=1)
    return torch.stack([part.argmax(dim=1) for part in parts], dim=1) + torch.tensor(actions.first)


class GreedyActorCritic(nn.Module):
    """Maps what the policy sees ``[B, ...]`` to actions ``[B, *shape]``, inputs ``[B, K]`` and values ``[B]``.

    The inputs describe the action distributions. The most likely actions are taken; for a normal one, the mean.
    """

    def __init__(self, network: ActorCritic, actions: Actions) -> None:
        super().__init__()
        self.network = network
        self._actions = actions
        self._dtype = torch_dtype(np.dtype(actions.dtype))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, inputs and values."""
        inputs, values = self.network(seen)
        chosen = self._most_likely(inputs).reshape(inputs.shape[0], *self._actions.shape)
        return chosen.to(self._dtype), inputs, values

    def _most_likely(self, inputs: Tensor) -> Tensor:
        """Return the numbers of the actions ``[B, D]``."""
        if not isinstance(self._actions, CategoricalActions):
            return inputs[:, : self._actions.num_inputs // 2]
        return best_choices(self._actions, inputs)


class GreedyRecurrentActorCritic(GreedyActorCritic):
    """The same with a memory: takes states ``[B, S]`` too, as EpisodeMemory packs them, and returns the next ones."""

    def __init__(self, network: ActorCritic, actions: Actions, previous_step: PreviousStep) -> None:
        super().__init__(network, actions)
        self._num_action_numbers = previous_step.num_action_numbers

    def forward(  # type: ignore[override]  # a memory is more than an observation
        self, seen: Tensor, packed: Tensor, rewards: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return actions, inputs, values and states; ``rewards [B]`` only if the network sees them."""
        count = self._num_action_numbers
        states, previous = unpacked(packed, rewards, count)
        inputs, values, following = self.network.step(seen, previous, states)
        numbers = self._most_likely(inputs)
        chosen = numbers.reshape(inputs.shape[0], *self._actions.shape).to(self._dtype)
        if count:
            following = torch.cat([following, self._numbers(numbers)], dim=1)
        return chosen, inputs, values, following

    def _numbers(self, chosen: Tensor) -> Tensor:
        """Return the numbers ``[B, A]`` of chosen actions ``[B, D]``: see PreviousStep."""
        if not isinstance(self._actions, CategoricalActions):
            return chosen
        from_zero = chosen - torch.tensor(self._actions.first)
        parts = [from_zero[:, i : i + 1] == torch.arange(size) for i, size in enumerate(self._actions.sizes)]
        return torch.cat(parts, dim=1).to(torch.float32)


def exportable_actor_critic(
    config: ActorCriticConfig, actions: Actions, policy: ActorCriticPolicy, weights: Weights
) -> Exportable:
    """Return the exportable form of ``policy`` with ``weights``."""
    network = ActorCritic(config)
    load_arrays(network, weights)

    def outputs(seen: Array) -> tuple[Array, ...]:
        computed = policy.finite_outputs(seen)
        return computed[DIST_INPUTS], computed[VF_PREDS]

    names = ("distribution_inputs", "values")
    if not isinstance(policy, RecurrentPolicy):
        return Exportable(GreedyActorCritic(network, actions).eval(), names, outputs, actions.most_likely)
    recurrent = GreedyRecurrentActorCritic(network, actions, policy.memory.previous_step).eval()

    def remembered(seen: Array) -> tuple[Array, ...]:
        computed, states = policy.step(seen)
        inputs = computed[DIST_INPUTS]
        policy.memory.acted(states, actions.most_likely(inputs))
        return inputs, computed[VF_PREDS], policy.memory.packed()

    return Exportable(recurrent, (*names, STATE_OUT), remembered, actions.most_likely, policy.memory)
