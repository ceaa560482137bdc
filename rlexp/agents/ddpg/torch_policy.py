"""Acting by a policy network in torch: on images, with several threads, and in exports."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlexp.agents.actor_critic.torch_policy import best_choices
from rlexp.agents.ddpg.exploration import PolicyActions
from rlexp.agents.ddpg.policy import NetworkPolicy
from rlexp.agents.export.policy_graph import torch_dtype
from rlexp.agents.policies import Exportable
from rlexp.agents.torch.device import ActingWeights, as_tensor
from rlexp.models.action_distributions import CategoricalActions, SquashedActions
from rlexp.models.network_config import PolicyAndCriticsConfig, Shapes
from rlexp.models.networks import PolicyNetwork
from rlexp.models.torsos import load_arrays, shapes_of_network
from rlexp.policy import Weights
from rlexp.sample_batch import Array


class TorchPolicyNetwork:
    """An ActingPolicyNetwork that can be any network."""

    def __init__(self, config: PolicyAndCriticsConfig, num_threads: int | None) -> None:
        """Initialise; ``num_threads`` is for this whole process; None leaves it unchanged."""
        if num_threads is not None:  # with torch's default, the workers of a machine compete for its cores
            torch.set_num_threads(num_threads)
        self._network = PolicyNetwork(config).eval()
        self._weights = ActingWeights(self._network)

    def load(self, weights: Weights) -> None:
        """Act with a copy of ``weights``, or in place with the weights of a learner in this thread."""
        self._weights.load(weights)

    @torch.inference_mode()
    def inputs(self, obs: Array) -> Array:
        """Return the inputs of the distribution of an action ``[B, K]`` for ``obs [B, ...]``."""
        inputs: Array = self._network(as_tensor(obs)).numpy()
        return inputs


class GreedyPolicyNetwork(nn.Module):
    """Maps what the policy sees ``[B, ...]`` to its most likely actions ``[B, *shape]`` and their inputs ``[B, K]``."""

    def __init__(self, network: PolicyNetwork, actions: PolicyActions) -> None:
        """Choose the most likely of ``actions`` by what ``network`` returns."""
        super().__init__()
        self.network = network
        self._actions = actions
        self._dtype = torch_dtype(np.dtype(actions.dtype))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and inputs."""
        inputs = self.network(seen)
        actions = self._actions
        if isinstance(actions, CategoricalActions):
            chosen = best_choices(actions, inputs)
        else:
            chosen = inputs[:, : actions.num_numbers]
            chosen = chosen.tanh() if isinstance(actions, SquashedActions) else chosen
        return chosen.reshape(inputs.shape[0], *actions.shape).to(self._dtype), inputs


def exportable_policy_network(
    config: PolicyAndCriticsConfig, actions: PolicyActions, policy: NetworkPolicy, weights: Weights
) -> Exportable:
    """Return the exportable form of ``policy`` with ``weights``."""
    network = PolicyNetwork(config)
    load_arrays(network, weights)
    greedy = GreedyPolicyNetwork(network, actions).eval()
    return Exportable(greedy, ("inputs",), lambda seen: (policy.finite_inputs(seen),), actions.most_likely)


def parameter_names(config: PolicyAndCriticsConfig) -> frozenset[str]:
    """Return the names of the parameters of a policy network, of any kind."""
    return frozenset(name for name, _ in PolicyNetwork(config).named_parameters())


def torch_shapes(config: PolicyAndCriticsConfig) -> Shapes:
    """Return the name and the shape of each parameter of a policy network, of any kind."""
    return shapes_of_network(PolicyNetwork, config)
