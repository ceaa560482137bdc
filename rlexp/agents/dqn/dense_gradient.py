"""The gradient of a small, fully connected Q-network in NumPy: there, calling autograd takes most of the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from rlexp.agents.dqn.atoms import Atoms, cross_entropies, log_softmax, softmax
from rlexp.agents.dqn.dense_network import DenseNetwork, Noise
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.q_network import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch

MOST_PRODUCTS: Final = 15_000_000
"""Rows times parameters up to which NumPy is clearly quicker: beyond, sums take the time, and torch has threads."""


@dataclass(frozen=True, eq=False)
class DenseLoss:
    """What is reported about the loss of a batch."""

    loss: float
    mean_q: float
    mean_td_error: float
    td_errors: Array
    """Without sign, ``[B]``."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the loss of a batch needs of each network: outputs ``[B, A, K]``, and its rows."""

    outputs_tm1: Array
    outputs_t: Array
    """Of the target network."""
    selector_t: Array
    """Of the network that chooses the next actions."""
    a_tm1: Array
    r_t: Array
    discount_t: Array
    scale: Array
    """Importance weights divided by B, ``[B]``."""


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
        """Read the parameters where the learner changes them; the network is one that ``is_dense`` accepts."""
        gradients = online[1].arrays_of(adam.gradient)
        self._online, self._target = (
            DenseNetwork(config, parameters.arrays_of(parameters.values), gradients, _noise_of(network))
            for network, parameters in (online, target)
        )
        self._double_q = double_q
        self._atoms = Atoms(config.head) if config.head.num_atoms > 1 else None

    def compute(self, batch: SampleBatch) -> DenseLoss:
        """Replace the gradient by that of a batch, which has the COLUMNS of an AutogradGradient's."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # the learner reports what is not finite
            return self._compute(batch)

    def _compute(self, batch: SampleBatch) -> DenseLoss:
        obs, new_obs = batch[OBS], batch[NEW_OBS]
        count = len(obs)
        outputs_t = self._target.forward(new_obs).outputs
        if self._double_q:  # both in one pass, which takes half as many calls
            passed = self._online.forward(np.concatenate([obs, new_obs]))
            selector_t, passed = passed.outputs[count:], passed.first(count)
        else:
            passed, selector_t = self._online.forward(obs), outputs_t
        scale = batch[IMPORTANCE_WEIGHTS] / np.float32(count)
        rows = _Rows(passed.outputs, outputs_t, selector_t, batch[ACTIONS], batch[REWARDS], batch[DISCOUNTS], scale)
        loss, gradient = _of_values(rows) if self._atoms is None else _of_distributions(rows, self._atoms)
        self._online.backward(passed, gradient)
        return loss


def _of_values(rows: _Rows) -> tuple[DenseLoss, Array]:
    """Return the Huber loss of the TD errors, and its gradient by the outputs ``[B, A, 1]``; as in ``loss.py``."""
    q_tm1, q_t, selector_t = (each[:, :, 0] for each in (rows.outputs_tm1, rows.outputs_t, rows.selector_t))
    numbers = np.arange(len(q_tm1))
    taken = numbers, rows.a_tm1
    td = rows.r_t + rows.discount_t * q_t[numbers, selector_t.argmax(axis=1)]
    td -= q_tm1[taken]
    slope = np.minimum(np.maximum(td, -1), 1)
    # The Huber loss with its bend at 1 is slope * (td - slope / 2), and its derivative is slope.
    weighted = rows.scale * slope
    loss = np.dot(weighted, td - 0.5 * slope)
    gradient = np.zeros_like(q_tm1)
    gradient[taken] = -weighted
    return _reported(loss, q_tm1, np.abs(td)), gradient[:, :, None]


def _of_distributions(rows: _Rows, atoms: Atoms) -> tuple[DenseLoss, Array]:
    """Return the cross-entropy of the distributions, and its gradient by the logits ``[B, A, K]``; as in ``loss.py``.

    The gradient by the logits of the action taken is the predicted distribution less the projected one.
    """
    numbers = np.arange(len(rows.a_tm1))
    taken = numbers, rows.a_tm1
    next_action = atoms.values(softmax(rows.selector_t)).argmax(axis=1)
    target = atoms.projected(softmax(rows.outputs_t[numbers, next_action]), rows.r_t, rows.discount_t)
    p_tm1 = softmax(rows.outputs_tm1)
    entropies = cross_entropies(target, log_softmax(rows.outputs_tm1[taken]))
    gradient = np.zeros_like(rows.outputs_tm1)
    gradient[taken] = rows.scale[:, None] * (p_tm1[taken] - target)
    return _reported(np.dot(rows.scale, entropies), atoms.values(p_tm1), entropies), gradient


def _reported(loss: np.floating, q_tm1: Array, td_errors: Array) -> DenseLoss:
    mean_q = float(np.add.reduce(q_tm1, axis=None)) / q_tm1.size
    return DenseLoss(float(loss), mean_q, float(np.add.reduce(td_errors)) / len(td_errors), td_errors)


def _noise_of(network: QNetwork) -> Noise:
    """Return views of the noise of every noisy layer, by the layer's name."""
    return {
        name: (layer.noise_in.numpy(), layer.noise_out.numpy()) for name, layer in network.named_noisy_layers().items()
    }
