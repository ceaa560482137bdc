"""The policy that rollout workers act with: greedy in a Q-network's values, perturbed or not, or drawn by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.agents.dqn.acting_network import PolicyExploration, make_acting_network
from rlexp.errors import NotFiniteError
from rlexp.models import QNetworkConfig
from rlexp.policy import Weights
from rlexp.rollout.exploration import draw_softmax
from rlexp.sample_batch import NEW_OBS, NEW_OUTPUTS, OBS, OUTPUTS, TD_ERRORS, Array, SampleBatch


class DQNPolicy:
    """Owns a copy of the Q-network; runs on the CPU. ε-greedy exploration is the worker's affair."""

    def __init__(
        self,
        network: QNetworkConfig,
        worker_side_prioritization: bool,
        exploration: PolicyExploration | None,
        num_threads: int | None = None,
    ) -> None:
        """With ``worker_side_prioritization`` the worker computes each row's TD error before it is sent.

        Without ``exploration`` there is no noise, and ``sample_actions`` are greedy. ``num_threads`` is for
        the forward passes of a worker in a process of its own; None leaves the process as it is.
        """
        self._network = make_acting_network(network, exploration, num_threads)
        self._worker_side_prioritization = worker_side_prioritization
        self._softmax_temp = None if exploration is None else exploration.softmax_temp
        self._remembers = worker_side_prioritization and not self._network.is_perturbed

    def compute_actions(self, obs: Array) -> Array:
        values = self._network.values(self._network.outputs(obs))
        if not np.isfinite(values).all():
            raise NotFiniteError("the network's outputs are NaN or infinite", "so are its weights, or an observation")
        actions: Array = values.argmax(axis=1)
        return actions

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        outputs = self._network.exploring_outputs(obs, epsilons, resetting)
        values = self._network.values(outputs)
        actions = values.argmax(axis=1) if self._softmax_temp is None else draw_softmax(values, self._softmax_temp, rng)
        return actions, outputs if self._remembers else None

    def outputs(self, obs: Array) -> Array | None:
        return self._network.outputs(obs) if self._remembers else None

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add |TD errors| by the worker's own weights, as Ape-X's actors do (Horgan et al. 2018, section 3).

        They come of what the network said when it acted, so they cost no forward pass; of two
        observations in one row, one may have been seen by weights that are a fragment older.
        """
        if not self._worker_side_prioritization:
            return batch
        td_errors = self._network.td_errors(batch if OUTPUTS in batch else self._with_outputs(batch))
        kept = {name: column for name, column in batch.columns.items() if name not in {OUTPUTS, NEW_OUTPUTS}}
        return SampleBatch({**kept, TD_ERRORS: td_errors})

    def set_weights(self, weights: Weights) -> None:
        self._network.load(weights)

    def state(self) -> dict[str, Any]:
        return self._network.noise_state()

    def load(self, state: Mapping[str, Any]) -> None:
        self._network.load_noise(state)

    def _with_outputs(self, batch: SampleBatch) -> SampleBatch:
        """Return ``batch`` with what the unperturbed network says of it."""
        outputs, new_outputs = (self._network.outputs(batch[name]) for name in (OBS, NEW_OBS))
        return batch.with_columns(**{OUTPUTS: outputs, NEW_OUTPUTS: new_outputs})
