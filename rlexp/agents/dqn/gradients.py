"""The gradient of a DQN learner's loss by autograd; ``dense_gradient.py`` has that of small networks by hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlexp.agents.dqn.loss import row_losses
from rlexp.agents.torch.device import Precision, forward_passes
from rlexp.agents.torch.flat_adam import FlatAdam
from rlexp.agents.torch.staging import BatchStaging
from rlexp.models.q_network import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, SampleBatch

COLUMNS = (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS, IMPORTANCE_WEIGHTS)


@dataclass(frozen=True)
class BatchLoss:
    """What is reported about the loss of a batch, on the learner's device."""

    figures: Tensor
    """The loss, the mean action value and the mean TD error, ``[3]``."""
    td_errors: Tensor
    """Without sign, ``[B]``."""


class AutogradGradient:
    """Writes the gradient of one learner's loss to where its Adam reads it: of any network, on any device."""

    def __init__(
        self,
        online: QNetwork,
        target: QNetwork,
        adam: FlatAdam,
        device: torch.device,
        precision: Precision,
        double_q: bool,
    ) -> None:
        self._online, self._target, self._adam = online, target, adam
        self._device, self._precision, self._double_q = device, precision, double_q
        self._staging = BatchStaging(COLUMNS, device)

    def compute(self, batch: SampleBatch) -> BatchLoss:
        """Replace the gradient by that of a batch, which has COLUMNS."""
        rows = self._staging.load(batch)
        passes = forward_passes(self._precision, self._device)
        result = row_losses(self._online, self._target, rows, self._double_q, passes)
        loss = (rows[IMPORTANCE_WEIGHTS] * result.losses).mean()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        figures = torch.stack([loss.detach(), result.q_tm1.mean(), result.td_errors.mean()])
        return BatchLoss(figures, result.td_errors)
