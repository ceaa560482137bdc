"""The Q-learning losses as pure functions on tensors, and their gradient by autograd.

``_tm1`` is the step that acted, ``_t`` the one after it. ``dense_loss.py`` has the gradient of small networks by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rlexp.agents.torch.device import BatchStaging, CapturedWork, Precision, forward_passes
from rlexp.agents.torch.flat_adam import FlatAdam
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, SampleBatch


def td_errors(
    q_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, q_t_value: Tensor, q_t_selector: Tensor
) -> Tensor:
    """Return ``r_t + discount_t q_t_value[argmax q_t_selector] - q_tm1[a_tm1]``, shape ``[B]``.

    ``q_*`` are action values ``[B, A]``, and ``a_tm1 [B]`` the actions taken. ``r_t [B]`` are the (n-step) rewards,
    ``discount_t [B]`` the true discounts, 0 after a termination. With the online network as selector
    and the target network as value this is double Q-learning (van Hasselt et al. 2016, equation 4); with
    the target network as both, Q-learning (Mnih et al. 2015). The target carries no gradient.
    """
    a_t = q_t_selector.argmax(dim=1, keepdim=True)
    target_tm1 = r_t + discount_t * q_t_value.gather(1, a_t).squeeze(1)
    return target_tm1.detach() - q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)


def huber(td: Tensor) -> Tensor:
    """Return the Huber loss ``[...]`` of TD errors ``[...]``, with its bend at 1."""
    return functional.huber_loss(td, td.new_zeros(td.shape), reduction="none", delta=1.0)


def projected_distribution(p_t: Tensor, r_t: Tensor, discount_t: Tensor, support: Tensor) -> Tensor:
    """Return the distribution ``[B, N]`` of ``r_t + discount_t z``, z ~ ``p_t [B, N]``, on ``support [N]``.

    Each shifted atom divides its probability between its two neighbours on the evenly spaced support, in proportion to
    closeness. Atoms outside of the support count as its outermost atoms (Bellemare et al. 2017, equation 7).
    """
    last = len(support) - 1
    shifted = r_t.unsqueeze(1) + discount_t.unsqueeze(1) * support
    position = ((shifted - support[0]) * (last / (support[-1] - support[0]))).clamp(0, last)
    lower = position.long().clamp(0, last - 1)
    upper_share = (position - lower) * p_t
    projected = torch.zeros_like(p_t).scatter_add_(1, lower, p_t - upper_share)
    return projected.scatter_add_(1, lower + 1, upper_share)


def cross_entropies(
    logits_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    logits_t: Tensor,
    q_t_selector: Tensor,
    support: Tensor,
) -> Tensor:
    """Return the cross-entropy ``[B]`` between the projected target distribution and the predicted one.

    ``logits_* [B, A, N]`` are over ``support [N]``; ``q_t_selector [B, A]`` chooses the next action. The
    target carries no gradient (Bellemare et al. 2017, algorithm 1).
    """
    rows = torch.arange(len(a_tm1), device=a_tm1.device)
    p_t = logits_t[rows, q_t_selector.argmax(dim=1)].softmax(dim=1)
    target_tm1 = projected_distribution(p_t, r_t, discount_t, support).detach()
    return -(target_tm1 * logits_tm1[rows, a_tm1].log_softmax(dim=1)).sum(dim=1)


def quantile_losses(
    theta_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, theta_t: Tensor, q_t_selector: Tensor
) -> Tensor:
    """Return the Huber loss ``[B]`` of quantile regression (Dabney et al. 2018, equation 10, with kappa 1).

    ``theta_* [B, A, N]`` are N quantiles of the return of each action; ``q_t_selector [B, A]`` chooses the next action.
    The target carries no gradient.
    """
    rows = torch.arange(len(a_tm1), device=a_tm1.device)
    target_tm1 = r_t.unsqueeze(1) + discount_t.unsqueeze(1) * theta_t[rows, q_t_selector.argmax(dim=1)]
    td = target_tm1.detach().unsqueeze(1) - theta_tm1[rows, a_tm1].unsqueeze(2)
    middles = (torch.arange(td.shape[1], device=td.device) + 0.5) / td.shape[1]
    weights = (middles.unsqueeze(1) - (td < 0).float()).abs()
    return (weights * huber(td)).mean(dim=2).sum(dim=1)


@dataclass(frozen=True)
class RowLosses:
    """One number per row of a batch ``[B]``, and the action values of the rows."""

    losses: Tensor
    """What the update minimises: the Huber loss of the TD error or quantiles, or the cross-entropy of distributions."""
    td_errors: Tensor
    """The source of priorities, without gradient: the absolute TD error, or the cross-entropy."""
    q_tm1: Tensor
    """Action values ``[B, A]`` of the rows' observations, without gradient."""


def row_losses(
    online: QNetwork,
    target: QNetwork,
    rows: Mapping[str, Tensor],
    double_q: bool,
    forward_passes: AbstractContextManager[Any] | None = None,
) -> RowLosses:
    """Return the losses of rows with OBS, ACTIONS, REWARDS, DISCOUNTS and NEW_OBS; only OBS carries a gradient.

    The networks compute within ``forward_passes``; the losses use their outputs as float32.
    """
    with nullcontext() if forward_passes is None else forward_passes:
        outputs_tm1 = online.outputs(rows[OBS]).float()
        with torch.no_grad():
            seen_t = target.seen(rows[NEW_OBS])
            outputs_t = target.outputs_of(seen_t).float()
            selector_t = online.outputs_of(seen_t).float() if double_q else outputs_t
    with torch.no_grad():
        q_t_selector = online.values(selector_t)
        if online.masking is not None:
            q_t_selector = online.masking.of_tensors(q_t_selector, rows[NEW_OBS])
    taken = rows[ACTIONS], rows[REWARDS], rows[DISCOUNTS]
    if online.is_categorical:
        losses = cross_entropies(outputs_tm1, *taken, outputs_t, q_t_selector, online.support)
        return RowLosses(losses, losses.detach(), online.values(outputs_tm1.detach()))
    q_tm1 = online.values(outputs_tm1)
    td = td_errors(q_tm1, *taken, target.values(outputs_t), q_t_selector)
    has_quantiles = online.num_atoms > 1
    losses = quantile_losses(outputs_tm1, *taken, outputs_t, q_t_selector) if has_quantiles else huber(td)
    return RowLosses(losses, td.detach().abs(), q_tm1.detach())


COLUMNS = (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS, IMPORTANCE_WEIGHTS)


@dataclass(frozen=True)
class BatchLoss:
    """The reported parts of a batch's loss, on the learner's device."""

    figures: Tensor
    """The loss, the mean action value and the mean TD error, ``[3]``."""
    td_errors: Tensor
    """Absolute TD errors, ``[B]``."""


class AutogradGradient:
    """Writes the gradient of a learner's loss to where its Adam reads it, for any network and device."""

    def __init__(
        self,
        online: QNetwork,
        target: QNetwork,
        adam: FlatAdam,
        device: torch.device,
        precision: Precision,
        double_q: bool,
        note: Callable[[str], None],
    ) -> None:
        self._online, self._target, self._adam = online, target, adam
        self._device, self._precision, self._double_q = device, precision, double_q
        self._staging = BatchStaging(COLUMNS, device)
        self._backward = CapturedWork(self._backward_of, [online], device, note)

    def compute(self, batch: SampleBatch) -> BatchLoss:
        """Replace the gradient by the gradient of a batch, which has COLUMNS."""
        figures, td_errors = self._backward(self._staging.load(batch))
        return BatchLoss(figures, td_errors)

    def _backward_of(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        passes = forward_passes(self._precision, self._device)
        result = row_losses(self._online, self._target, rows, self._double_q, passes)
        loss = (rows[IMPORTANCE_WEIGHTS] * result.losses).mean()
        self._adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        figures = torch.stack([loss.detach(), result.q_tm1.mean(), result.td_errors.mean()])
        return figures, result.td_errors
