"""The gradient of a small, fully connected Q-network in NumPy, for which autograd's calls take most of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.agents.dqn.policy import Atoms, cross_entropies, shifted_exponentials, softmax
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.models.dense_gradients import DenseNetwork, Noise
from rlexp.models.network_config import QNetworkConfig, masked
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch

MOST_PRODUCTS: Final = 15_000_000
"""Most rows times parameters for which NumPy is clearly faster. Above, sums take the time, and torch has threads."""


@dataclass(frozen=True, eq=False)
class DenseLoss:
    """The reported parts of a batch's loss."""

    loss: float
    mean_q: float
    mean_td_error: float
    td_errors: Array
    """Absolute TD errors, ``[B]``."""


@dataclass(frozen=True, eq=False)
class _LossRows:
    """The inputs of the loss: each network's outputs and the batch's rows."""

    online: Array
    """Outputs ``[B, A, K]`` for OBS; with double Q-learning ``[2 B, A, K]``, followed by the outputs for NEW_OBS."""
    target: Array
    """Outputs of the target network for NEW_OBS, ``[B, A, K]``."""
    a_tm1: Array
    r_t: Array
    discount_t: Array
    scale: Array
    """Importance weights divided by B, ``[B]``."""
    allowed_t: Array | None
    """Whether each next action is allowed ``[B, A]``; None: all are."""

    def next_actions(self, q_online: Array, q_target: Array) -> Array:
        """Return the best actions ``[B]`` by the values of ``online``, or of ``target`` without double Q."""
        count = len(q_target)
        values = q_online[count:] if len(q_online) > count else q_target
        actions: Array = (values if self.allowed_t is None else masked(values, self.allowed_t)).argmax(axis=1)
        return actions


class DenseGradient:
    """Computes the gradient of fully connected networks, with one head or two, on a CPU; owned by one learner."""

    def __init__(
        self,
        config: QNetworkConfig,
        online: tuple[QNetwork, FlatParameters],
        target: tuple[QNetwork, FlatParameters],
        adam: FlatAdam,
        double_q: bool,
    ) -> None:
        """Read the parameters in place, where the learner changes them; ``is_dense`` must accept the network."""
        gradients = online[1].arrays_of(adam.gradient)
        self._online, self._target = (
            DenseNetwork(config, parameters.arrays_of(parameters.values), gradients, _noise_of(network))
            for network, parameters in (online, target)
        )
        self._double_q, self._masking = double_q, config.masking
        self._atoms = Atoms(config.head) if config.head.is_categorical else None
        self._loss_of = _of_quantiles if config.head.has_quantiles else _of_values

    def compute(self, batch: SampleBatch) -> DenseLoss:
        """Replace the gradient by the gradient of a batch, which has the COLUMNS of an AutogradGradient's."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the learner reports what is not finite
            return self._compute(batch)

    def _compute(self, batch: SampleBatch) -> DenseLoss:
        obs, new_obs = batch[OBS], batch[NEW_OBS]
        count = len(obs)
        outputs_t = self._target.forward(new_obs).outputs
        # Both in one pass, which takes half as many calls.
        passed = self._online.forward(np.concatenate([obs, new_obs]) if self._double_q else obs)
        scale = batch[IMPORTANCE_WEIGHTS] / np.float32(count)
        allowed_t = None if self._masking is None else self._masking.allowed(new_obs)
        taken = batch[ACTIONS], batch[REWARDS], batch[DISCOUNTS]
        rows = _LossRows(passed.outputs, outputs_t, *taken, scale, allowed_t)
        loss, gradient = self._loss_of(rows) if self._atoms is None else _of_distributions(rows, self._atoms)
        self._online.backward(passed.first(count) if self._double_q else passed, gradient)
        return loss


def _of_values(rows: _LossRows) -> tuple[DenseLoss, Array]:
    """Return the Huber loss of the TD errors, and its gradient by the outputs ``[B, A, 1]``; as in ``loss.py``."""
    q_online, q_t = rows.online[:, :, 0], rows.target[:, :, 0]
    q_tm1 = q_online[: len(q_t)]
    numbers = np.arange(len(q_t))
    taken = numbers, rows.a_tm1
    td = rows.r_t + rows.discount_t * q_t[numbers, rows.next_actions(q_online, q_t)]
    td -= q_tm1[taken]
    slope = np.minimum(np.maximum(td, -1), 1)
    # The Huber loss with its bend at 1 is slope * (td - slope / 2), and its derivative is slope.
    weighted = rows.scale * slope
    loss = np.dot(weighted, td - 0.5 * slope)
    gradient = np.zeros_like(q_tm1)
    gradient[taken] = -weighted
    return _reported(loss, q_tm1, np.abs(td)), gradient[:, :, None]


def _of_quantiles(rows: _LossRows) -> tuple[DenseLoss, Array]:
    """Return the Huber loss of the quantiles, and its gradient by them ``[B, A, K]``; as in ``loss.py``."""
    numbers = np.arange(len(rows.target))
    taken = numbers, rows.a_tm1
    predicted, q_online = rows.online[taken], rows.online.mean(axis=2)
    next_actions = rows.next_actions(q_online, rows.target.mean(axis=2))
    target = rows.r_t[:, None] + rows.discount_t[:, None] * rows.target[numbers, next_actions]
    td = target[:, None, :] - predicted[:, :, None]
    slope = np.minimum(np.maximum(td, -1), 1)
    middles = (np.arange(td.shape[1], dtype=np.float32) + np.float32(0.5)) / np.float32(td.shape[1])
    weighted = np.abs(middles[:, None] - (td < 0)) * slope
    losses = (weighted * (td - 0.5 * slope)).mean(axis=2).sum(axis=1)
    gradient = np.zeros_like(rows.target)
    gradient[taken] = -rows.scale[:, None] * weighted.mean(axis=2)
    td_errors = np.abs(target.mean(axis=1) - predicted.mean(axis=1))
    return _reported(np.dot(rows.scale, losses), q_online[: len(numbers)], td_errors), gradient


def _of_distributions(rows: _LossRows, atoms: Atoms) -> tuple[DenseLoss, Array]:
    """Return the cross-entropy of the distributions, and its gradient by the logits ``[B, A, K]``; as in ``loss.py``.

    The gradient by the logits of the chosen action is the predicted distribution minus the projected one.
    """
    count = len(rows.target)
    numbers = np.arange(count)
    taken = numbers, rows.a_tm1
    shifted, exponentials, sums = shifted_exponentials(rows.online)
    q_online = atoms.values(exponentials / sums)
    # Without double Q-learning, the target network also chooses.
    q_target = rows.target[:, :, 0] if len(rows.online) > count else atoms.values(softmax(rows.target))
    next_actions = rows.next_actions(q_online, q_target)
    target = atoms.projected(softmax(rows.target[numbers, next_actions]), rows.r_t, rows.discount_t)
    sums_taken = sums[taken]
    entropies = cross_entropies(target, shifted[taken] - np.log(sums_taken))
    gradient = np.zeros_like(rows.target)
    gradient[taken] = rows.scale[:, None] * (exponentials[taken] / sums_taken - target)
    return _reported(np.dot(rows.scale, entropies), q_online[:count], entropies), gradient


def _reported(loss: np.floating, q_tm1: Array, td_errors: Array) -> DenseLoss:
    mean_q = float(np.add.reduce(q_tm1, axis=None)) / q_tm1.size
    return DenseLoss(float(loss), mean_q, float(np.add.reduce(td_errors)) / len(td_errors), td_errors)


def _noise_of(network: QNetwork) -> Noise:
    """Return views of the noise of every noisy layer, by the layer's name."""
    return {
        name: (layer.noise_in.numpy(), layer.noise_out.numpy()) for name, layer in network.named_noisy_layers().items()
    }
