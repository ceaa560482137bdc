"""The policy of the DQN family: acts on a Q-network's values, and explores by ε, by their softmax, or with noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlexp.agents.dqn.acting_network import NEW_Q_VALUES, Q_VALUES, make_acting_network
from rlexp.agents.dqn.exploration import Explorer, PolicyExploration
from rlexp.errors import NotFiniteError
from rlexp.models import QNetworkConfig
from rlexp.policy import Outputs, Weights
from rlexp.sample_batch import NEW_OBS, OBS, TD_ERRORS, Array, SampleBatch


class DQNPolicy:
    """Owns a copy of the Q-network, which runs on the CPU, and the random streams that it explores with."""

    def __init__(
        self,
        network: QNetworkConfig,
        exploration: PolicyExploration | None = None,
        worker_side_prioritization: bool = False,
        num_threads: int | None = None,
    ) -> None:
        """Without ``exploration``, ``act`` is greedy.

        With ``worker_side_prioritization`` the worker computes each row's TD error before it is sent.
        ``num_threads`` is for the forward passes of a worker in a process of its own; None leaves the process
        as it is.
        """
        self._network = make_acting_network(network, exploration, num_threads)
        self._explorer = None if exploration is None else Explorer(exploration, network.num_actions)
        self._worker_side_prioritization = worker_side_prioritization
        # Priorities are computed with the learner's weights, so not from values of perturbed ones.
        self._returns_outputs = worker_side_prioritization and not self._network.is_perturbed
        self.postprocess_reads_obs = worker_side_prioritization and not self._returns_outputs

    def compute_actions(self, obs: Array) -> Array:
        actions: Array = self.action_values(obs).argmax(axis=1)
        return actions

    def action_values(self, obs: Array) -> Array:
        """Return the values ``[B, A]`` that greedy actions have for ``obs [B, ...]``; raises NotFiniteError."""
        values = self._network.values(self._network.outputs(obs))
        if not np.isfinite(values).all():
            raise NotFiniteError("the network's outputs are NaN or infinite", "so are its weights, or an observation")
        return values

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        if self._explorer is None:
            outputs = self._network.outputs(obs)
            return self._network.values(outputs).argmax(axis=1), self._returned(outputs)
        epsilons = self._explorer.epsilons(num_steps_sampled)
        outputs = self._network.exploring_outputs(obs, epsilons, resetting)
        return self._explorer.choose(self._network.values(outputs), epsilons), self._returned(outputs)

    def outputs(self, obs: Array) -> Outputs:
        return self._returned(self._network.outputs(obs)) if self._returns_outputs else {}

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        """Add |TD errors| by the worker's own weights, as Ape-X's actors do (Horgan et al. 2018, section 3).

        They come from the values that the network acted on, so they cost no forward pass; of the two
        observations of a row, one may have been seen by weights that are a fragment older.
        """
        if not self._worker_side_prioritization:
            return batch
        td_errors = self._network.td_errors(batch if Q_VALUES in batch else self._with_values(batch))
        kept = {name: column for name, column in batch.columns.items() if name not in {Q_VALUES, NEW_Q_VALUES}}
        return SampleBatch({**kept, TD_ERRORS: td_errors})

    def set_weights(self, weights: Weights) -> None:
        self._network.load(weights)

    def state(self) -> dict[str, Any]:
        explorer = None if self._explorer is None else self._explorer.state()
        return {"noise": self._network.noise_state(), "explorer": explorer}

    def load(self, state: Mapping[str, Any]) -> None:
        self._network.load_noise(state["noise"])
        if self._explorer is not None:
            self._explorer.load(state["explorer"])

    def _returned(self, outputs: Array) -> Outputs:
        return {Q_VALUES: outputs} if self._returns_outputs else {}

    def _with_values(self, batch: SampleBatch) -> SampleBatch:
        """Return ``batch`` with the values of the unperturbed network."""
        values, new_values = (self._network.outputs(batch[name]) for name in (OBS, NEW_OBS))
        return batch.with_columns(**{Q_VALUES: values, NEW_Q_VALUES: new_values})
