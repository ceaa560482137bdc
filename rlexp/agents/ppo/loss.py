"""The loss of PPO: pure functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def surrogate_losses(logp: Tensor, old_logp: Tensor, advantages: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of the policy, their derivatives by ``logp``, and the probability ratios, each ``[B]``.

    With ``r = exp(logp - old_logp)`` a loss is ``-min(r A, clip(r, 1 - clip, 1 + clip) A)``
    (Schulman et al. 2017, equation 7). Its derivative is ``-r A``, or 0 where the clipped term is the smaller one.
    """
    ratio = torch.exp(logp - old_logp)
    whole, clipped = ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages
    losses = -torch.min(whole, clipped)
    return losses, losses * (whole <= clipped), ratio


def value_losses(values: Tensor, old_values: Tensor, targets: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Return the losses of the value function, and their derivatives by ``values``, both ``[B]``.

    A loss is the larger of two squared errors, without a factor of one half: that of ``values``, and that of values
    that differ from ``old_values`` by ``clip`` at most. RLlib had this form up to 1.8; it is the one of the published
    results (Engstrom et al. 2020, section 3). Where ``clip`` limits the second one and it is the larger one, the
    derivative is 0.
    """
    moved, error = values - old_values, values - targets
    near_moved = moved.clamp(-clip, clip)
    loss, near_loss = error.square(), (error + (near_moved - moved)).square()
    return torch.max(loss, near_loss), 2.0 * error * ((moved == near_moved) | (loss >= near_loss))


def adapted_kl_coeff(kl_coeff: float, kl: float, kl_target: float) -> float:
    """Return the next coefficient of the KL penalty (Schulman et al. 2017, section 4, with RLlib's factors)."""
    if kl > 2.0 * kl_target:
        return kl_coeff * 1.5
    if kl < 0.5 * kl_target:
        return kl_coeff * 0.5
    return kl_coeff


def explained_variance(targets: Tensor, values: Tensor) -> Tensor:
    """Return which part of the variance of ``targets [B]`` the ``values [B]`` explain: 1 is all, at least -1."""
    unexplained = (targets - values).var(correction=0) / targets.var(correction=0).clamp(min=1e-12)
    return (1.0 - unexplained).clamp(min=-1.0)
