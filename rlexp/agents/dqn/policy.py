"""The policy that rollout workers act with: greedy in a Q-network's values."""

from __future__ import annotations

import torch

from rlexp.agents.dqn.loss import td_errors
from rlexp.agents.staging import as_tensor
from rlexp.models import QNetwork, QNetworkConfig
from rlexp.policy import Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch


class DQNPolicy:
    """Owns a copy of the Q-network; runs on the CPU. Exploration is the worker's affair."""

    def __init__(self, network: QNetworkConfig, worker_side_prioritization: bool) -> None:
        """With ``worker_side_prioritization`` the worker computes each row's TD error before it is sent."""
        self._network = QNetwork(network).eval()
        self._worker_side_prioritization = worker_side_prioritization

    @torch.inference_mode()
    def compute_actions(self, obs: Array) -> Array:
        actions: Array = self._network(as_tensor(obs)).argmax(dim=1).numpy()
        return actions

    @torch.inference_mode()
    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add |TD errors| by the worker's own weights, as Ape-X's actors do (Horgan et al. 2018, section 3)."""
        if not self._worker_side_prioritization:
            return batch
        rows = {name: as_tensor(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)}
        q_t = self._network(rows[NEW_OBS])
        td = td_errors(
            self._network(rows[OBS]),
            rows[ACTIONS],
            rows[REWARDS],
            rows[DISCOUNTS],
            q_t_value=q_t,
            q_t_selector=q_t,
        )
        return batch.with_columns(**{TD_ERRORS: td.abs().numpy()})

    def set_weights(self, weights: Weights) -> None:
        self._network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
