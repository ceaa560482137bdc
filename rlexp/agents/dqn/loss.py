"""The Q-learning loss as pure functions on tensors, with the papers' subscripts: t-1 acts, t follows."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def td_errors(
    q_tm1: Tensor, a_tm1: Tensor, r_t: Tensor, discount_t: Tensor, q_t_value: Tensor, q_t_selector: Tensor
) -> Tensor:
    """Return ``r_t + discount_t q_t_value[argmax q_t_selector] - q_tm1[a_tm1]``, shape ``[B]``.

    ``q_*`` are action values ``[B, A]``, ``a_tm1 [B]`` the actions taken, ``r_t [B]`` the (n-step) rewards
    and ``discount_t [B]`` the true discounts, 0 after a termination. With the online network as selector
    and the target network as value this is double Q-learning (van Hasselt et al. 2016, equation 4); with
    the target network as both, Q-learning (Mnih et al. 2015). The target carries no gradient.
    """
    a_t = q_t_selector.argmax(dim=1, keepdim=True)
    target_tm1 = r_t + discount_t * q_t_value.gather(1, a_t).squeeze(1)
    return target_tm1.detach() - q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)


def weighted_huber(td: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over ``[B]`` of importance weight times Huber loss with its bend at 1."""
    return (weights * functional.huber_loss(td, td.new_zeros(td.shape), reduction="none", delta=1.0)).mean()
