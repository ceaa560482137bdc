"""The acting network in torch: convolutions, torsos of the user's own, noise on weights, and several threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlexp.agents.dqn.acting_network import NEW_Q_VALUES, Q_VALUES, absolute_td_errors
from rlexp.agents.dqn.exploration import PolicyExploration
from rlexp.agents.dqn.loss import cross_entropies
from rlexp.agents.dqn.parameter_noise import ParameterNoise
from rlexp.agents.torch.staging import as_tensor
from rlexp.models import QNetworkConfig
from rlexp.models.q_network import QNetwork
from rlexp.models.weights import load_arrays
from rlexp.policy import Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, REWARDS, Array, SampleBatch


class TorchActingNetwork:
    """An ActingNetwork that can be any Q-network, noisy while it explores."""

    def __init__(self, config: QNetworkConfig, exploration: PolicyExploration | None, num_threads: int | None) -> None:
        """Without ``exploration`` there is no noise; ``num_threads`` is for this whole process."""
        if num_threads is not None:  # with torch's own choice, the workers of a machine fight for its cores
            torch.set_num_threads(num_threads)
        self._network = QNetwork(config).train(exploration is not None)
        self._network.torso.eval()  # noise in layers explores; what drops out or normalises batches does not
        self._layer_noise = _layer_noise(config, exploration)
        self._parameter_noise = _parameter_noise(self._network, exploration)
        self.is_perturbed = self._parameter_noise is not None

    def load(self, weights: Weights) -> None:
        load_arrays(self._network, weights)
        if self._parameter_noise is not None:
            self._parameter_noise.perturb()

    def outputs(self, obs: Array) -> Array:
        return self._array(self._outputs(self._network, obs))

    def exploring_outputs(self, obs: Array, epsilons: Array, resetting: Array) -> Array:
        noise = self._parameter_noise
        if noise is None:
            return self.outputs(obs)
        if resetting[0]:
            noise.redraw()
        outputs = self._outputs(noise.network, obs)
        noise.record(obs, self._network.values(outputs))
        if noise.wants_to_adapt():
            unperturbed = self._outputs(self._network, noise.recorded_obs())
            noise.adapt(self._network.values(unperturbed), epsilons)
        return self._array(outputs)

    def values(self, outputs: Array) -> Array:
        if self._network.num_atoms == 1:
            return outputs
        values: Array = self._network.values(torch.from_numpy(outputs)).numpy()
        return values

    def td_errors(self, batch: SampleBatch) -> Array:
        if self._network.num_atoms == 1:
            return absolute_td_errors(batch)
        logits_tm1, logits_t = as_tensor(batch[Q_VALUES]), as_tensor(batch[NEW_Q_VALUES])
        a_tm1, r_t, discount_t = (as_tensor(batch[name]) for name in (ACTIONS, REWARDS, DISCOUNTS))
        errors: Array = cross_entropies(
            logits_tm1, a_tm1, r_t, discount_t, logits_t, self._network.values(logits_t), self._network.support
        ).numpy()
        return errors

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
