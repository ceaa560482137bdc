"""The policy of the DQN family as an export has it: the action of the highest value, and the values."""

from __future__ import annotations

from torch import Tensor, nn

from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.export.exportable import Exportable
from rlexp.models import QNetworkConfig
from rlexp.models.q_network import QNetwork
from rlexp.models.weights import load_arrays
from rlexp.policy import Weights
from rlexp.sample_batch import Array


class GreedyQNetwork(nn.Module):
    """Maps what the policy sees ``[B, ...]`` to actions ``[B]`` and action values ``[B, A]``.

    The values of distributions are their means; noisy layers have their mean weights.
    """

    def __init__(self, network: QNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and values."""
        values: Tensor = self.network(seen)
        return values.argmax(dim=1), values


def exportable_q_network(config: QNetworkConfig, policy: DQNPolicy, weights: Weights) -> Exportable:
    """Return what ``policy`` with ``weights`` is exported as."""
    network = QNetwork(config)
    load_arrays(network, weights)

    def choose(values: Array) -> Array:
        actions: Array = values.argmax(axis=1)
        return actions

    return Exportable(GreedyQNetwork(network).eval(), ("q_values",), lambda seen: (policy.action_values(seen),), choose)
