"""The policy that rollout workers act with: greedy in a Q-network's values, or drawn by them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlexp.agents.dqn.objective import row_losses
from rlexp.agents.staging import as_tensor
from rlexp.models import QNetwork, QNetworkConfig
from rlexp.policy import Weights
from rlexp.rollout.exploration import draw_softmax
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch


class DQNPolicy:
    """Owns a copy of the Q-network; runs on the CPU. Exploration is the worker's affair."""

    def __init__(
        self,
        network: QNetworkConfig,
        worker_side_prioritization: bool,
        noise_seed: int | None,
        softmax_temp: float | None = None,
    ) -> None:
        """With ``worker_side_prioritization`` the worker computes each row's TD error before it is sent.

        ``noise_seed`` seeds the noise of a noisy network, drawn afresh for every step; None acts without.
        With ``softmax_temp`` the policy explores by drawing from softmax(Q / ``softmax_temp``).
        """
        self._network = QNetwork(network).train(noise_seed is not None)
        self._worker_side_prioritization = worker_side_prioritization
        self._softmax_temp = softmax_temp
        self._noise = (
            torch.Generator().manual_seed(noise_seed) if network.head.noisy and noise_seed is not None else None
        )

    def compute_actions(self, obs: Array) -> Array:
        actions: Array = self._values(obs).argmax(dim=1).numpy()
        return actions

    def sample_actions(self, obs: Array, rng: np.random.Generator) -> Array:
        if self._softmax_temp is None:
            return self.compute_actions(obs)
        return draw_softmax(self._values(obs).numpy(), self._softmax_temp, rng)

    @torch.inference_mode()
    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add |TD errors| by the worker's own weights, as Ape-X's actors do (Horgan et al. 2018, section 3)."""
        if not self._worker_side_prioritization:
            return batch
        rows = {name: as_tensor(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)}
        own = row_losses(self._network, self._network, rows, double_q=False)
        return batch.with_columns(**{TD_ERRORS: own.td_errors.numpy()})

    def set_weights(self, weights: Weights) -> None:
        self._network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})

    @torch.inference_mode()
    def _values(self, obs: Array) -> Tensor:
        if self._noise is not None:
            self._network.resample_noise(self._noise)
        values: Tensor = self._network(as_tensor(obs))
        return values
