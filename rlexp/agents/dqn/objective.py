"""What a row of a batch costs and how surprising it is: for the learner, and for a worker's first priorities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rlexp.agents.dqn.loss import cross_entropies, huber, td_errors
from rlexp.models.q_network import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS


@dataclass(frozen=True)
class RowLosses:
    """One number per row of a batch ``[B]``, and the values they came from."""

    losses: Tensor
    """What the update lowers: the Huber loss of the TD error, or the cross-entropy of the distributions."""
    td_errors: Tensor
    """What priorities are made of, without gradient: the absolute TD error, or the cross-entropy."""
    q_tm1: Tensor
    """Action values ``[B, A]`` of the rows' observations, without gradient."""


def row_losses(online: QNetwork, target: QNetwork, rows: Mapping[str, Tensor], double_q: bool) -> RowLosses:
    """Return the losses of rows with OBS, ACTIONS, REWARDS, DISCOUNTS and NEW_OBS; only OBS carries a gradient."""
    outputs_tm1 = online.outputs(rows[OBS])
    with torch.no_grad():
        outputs_t = target.outputs(rows[NEW_OBS])
        q_t_selector = online(rows[NEW_OBS]) if double_q else target.values(outputs_t)
    taken = rows[ACTIONS], rows[REWARDS], rows[DISCOUNTS]
    if online.num_atoms == 1:
        q_tm1 = online.values(outputs_tm1)
        td = td_errors(q_tm1, *taken, target.values(outputs_t), q_t_selector)
        return RowLosses(huber(td), td.detach().abs(), q_tm1.detach())
    losses = cross_entropies(outputs_tm1, *taken, outputs_t, q_t_selector, online.support)
    return RowLosses(losses, losses.detach(), online.values(outputs_tm1.detach()))
