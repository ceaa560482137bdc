"""The gradient of a small, fully connected Q-network in NumPy: there, calling autograd takes most of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from rlexp.agents.dqn.gradients import BatchLoss
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.models.network_config import BYTE_CENTER, QNetworkConfig
from rlexp.models.numpy_gradients import SLOPES, DenseLayer, DenseLayers
from rlexp.models.numpy_q_network import can_be
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch

MOST_PRODUCTS: Final = 15_000_000
"""Rows times parameters up to which NumPy is clearly quicker: beyond, sums take the time, and torch has threads."""


def is_dense(config: QNetworkConfig) -> bool:
    """Return whether a network has fully connected layers only, without noise and atoms, whose slopes are known."""
    torso = config.torso
    activations = {
        *((torso.fcnet_activation,) if torso.fcnet_hiddens else ()),
        *((torso.post_fcnet_activation,) if torso.post_fcnet_hiddens else ()),
    }
    return can_be(config) and activations <= SLOPES.keys()


class DenseGradient:
    """A LossGradient of fully connected networks, with one head or two, on a CPU; owned by one learner."""

    def __init__(
        self,
        config: QNetworkConfig,
        online: FlatParameters,
        target: FlatParameters,
        adam: FlatAdam,
        double_q: bool,
    ) -> None:
        """Read the parameters where the learner changes them; the network is one that ``is_dense`` accepts."""
        gradient = _by_name(online, adam.gradient)
        self._online = _Network(config, _by_name(online, online.values), gradient)
        self._target = _Network(config, _by_name(target, target.values), gradient)
        self._double_q = double_q
        self._centers_bytes = config.sees_byte_vectors

    def compute(self, batch: SampleBatch) -> BatchLoss:
        with np.errstate(over="ignore", invalid="ignore"):  # the learner reports a loss that is not finite
            return self._compute(batch)

    def _compute(self, batch: SampleBatch) -> BatchLoss:
        count = len(batch[ACTIONS])
        rows = np.arange(count)
        taken, weights = batch[ACTIONS], batch[IMPORTANCE_WEIGHTS]
        new_obs = self._seen(batch[NEW_OBS])
        passed = self._online.forward(self._seen(batch[OBS]))
        q_t = self._target.forward(new_obs).values
        selector_t = self._online.forward(new_obs).values if self._double_q else q_t
        q_tm1 = passed.values
        target_tm1 = batch[REWARDS] + batch[DISCOUNTS] * q_t[rows, selector_t.argmax(axis=1)]
        td = target_tm1 - q_tm1[rows, taken]
        td_errors = np.abs(td)
        slope = np.clip(td, -1, 1)
        # The Huber loss with its bend at 1 is slope * (td - slope / 2), and its derivative is slope.
        loss = np.dot(weights, slope * (td - 0.5 * slope)) / count
        gradient = np.zeros_like(q_tm1)
        gradient[rows, taken] = weights * slope / -count
        self._online.backward(passed, gradient)
        figures = torch.tensor([loss, q_tm1.mean(), td_errors.mean()], dtype=torch.float32)
        return BatchLoss(figures, torch.from_numpy(td_errors))

    def _seen(self, obs: Array) -> Array:
        seen = obs.astype(np.float32, copy=False)
        return (seen - np.float32(BYTE_CENTER)) / np.float32(BYTE_CENTER) if self._centers_bytes else seen


@dataclass(frozen=True, eq=False)
class _Passed:
    """What a forward pass leaves for the backward one."""

    torso: list[Array]
    advantage: list[Array]
    value: list[Array] | None
    values: Array
    """Of actions, ``[B, A]``."""


class _Network:
    """The layers of a ``QNetwork``, in its own memory."""

    def __init__(self, config: QNetworkConfig, weights: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
        torso = config.torso
        of_torso = [torso.fcnet_activation] * len(torso.fcnet_hiddens)
        of_torso += [torso.post_fcnet_activation] * len(torso.post_fcnet_hiddens)
        of_head = [*("relu" for _ in config.head.hiddens), "linear"]
        self._torso = _layers(weights, gradients, "torso", of_torso)
        self._advantage = _layers(weights, gradients, "advantage_head", of_head)
        self._value = _layers(weights, gradients, "value_head", of_head) if config.head.dueling else None
        self._has_torso = bool(of_torso)

    def forward(self, obs: Array) -> _Passed:
        """Return action values of ``obs [B, N]``, and what ``backward`` needs."""
        torso = self._torso.forward(obs)
        advantage = self._advantage.forward(torso[-1])
        if self._value is None:
            return _Passed(torso, advantage, None, advantage[-1])
        value = self._value.forward(torso[-1])
        mean = np.add.reduce(advantage[-1], axis=1, keepdims=True) / np.float32(advantage[-1].shape[1])
        return _Passed(torso, advantage, value, advantage[-1] + (value[-1] - mean))

    def backward(self, passed: _Passed, gradient: Array) -> None:
        """Write the gradient of all parameters, where ``gradient [B, A]`` is that of the action values."""
        if self._value is None or passed.value is None:
            features = self._advantage.backward(passed.advantage, gradient, self._has_torso)
        else:
            of_value = gradient.sum(axis=1, keepdims=True)
            of_advantage = gradient - of_value / gradient.shape[1]
            features = self._advantage.backward(passed.advantage, of_advantage, self._has_torso)
            more = self._value.backward(passed.value, of_value, self._has_torso)
            if self._has_torso:
                features += more
        self._torso.backward(passed.torso, features, False)


def _layers(
    weights: Mapping[str, Array], gradients: Mapping[str, Array], prefix: str, activations: list[str]
) -> DenseLayers:
    names = [(f"{prefix}.{2 * index}.weight", f"{prefix}.{2 * index}.bias") for index in range(len(activations))]
    return DenseLayers(
        [
            DenseLayer(weights[weight], weights[bias], gradients[weight], gradients[bias], activation)
            for (weight, bias), activation in zip(names, activations, strict=True)
        ]
    )


def _by_name(parameters: FlatParameters, flat: torch.Tensor) -> dict[str, Array]:
    """Return views of ``flat`` by the names of the parameters that they belong to."""
    views = parameters.views(flat.detach())
    return {name: view.numpy() for name, view in zip(parameters.names, views, strict=True)}
