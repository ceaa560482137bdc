"""The distributions of ``action_distributions`` in torch, for losses, with their derivatives by the inputs."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

import torch
from torch import Tensor

from rlexp.models.action_distributions import (
    LARGEST_LOG_STD,
    LOG_SQRT_2_PI,
    SQUASHED_LOG_STD,
    Actions,
    CategoricalActions,
)

SQUASH_EPSILON: Final = 1e-6
"""Added to ``1 - tanh(u)^2``, whose logarithm would be infinite for large u (Haarnoja et al. 2018's code)."""


class Distribution(Protocol):
    """The distributions of B actions."""

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the logarithm ``[B]`` of the probability, or of its density, of ``actions`` (``numbered_actions``)."""

    def entropy(self) -> Tensor:
        """Return the entropies ``[B]`` in nats."""

    def kl_from(self, other: Self) -> Tensor:
        """Return the KL divergences ``[B]`` of these distributions from ``other``: KL(other || self)."""

    def log_prob_gradient(self, actions: Tensor) -> Tensor:
        """Return the derivatives ``[B, K]`` of ``log_prob`` by the inputs."""

    def entropy_gradient(self) -> Tensor:
        """Return the derivatives ``[B, K]`` of ``entropy`` by the inputs."""

    def kl_gradient(self, other: Self) -> Tensor:
        """Return the derivatives ``[B, K]`` of ``kl_from(other)`` by the inputs."""


class Categoricals:
    """Independent choices; the distribution of ``CategoricalActions``."""

    def __init__(self, actions: CategoricalActions, inputs: Tensor) -> None:
        parts = torch.split(inputs, list(actions.sizes), dim=1) if len(actions.sizes) > 1 else (inputs,)
        self._log_probs = [part.log_softmax(dim=1) for part in parts]

    def log_prob(self, actions: Tensor) -> Tensor:
        taken = [
            log_probs.gather(1, actions[:, choice : choice + 1]).squeeze(1)
            for choice, log_probs in enumerate(self._log_probs)
        ]
        return _sum(taken)

    def entropy(self) -> Tensor:
        return _sum([-(log_probs.exp() * log_probs).sum(dim=1) for log_probs in self._log_probs])

    def kl_from(self, other: Categoricals) -> Tensor:
        pairs = zip(self._log_probs, other._log_probs, strict=True)
        return _sum([(theirs.exp() * (theirs - ours)).sum(dim=1) for ours, theirs in pairs])

    def log_prob_gradient(self, actions: Tensor) -> Tensor:
        one = actions.new_ones((), dtype=torch.float32).expand(len(actions), 1)
        return _beside(
            [
                (-log_probs.exp()).scatter_add_(1, actions[:, choice : choice + 1], one)
                for choice, log_probs in enumerate(self._log_probs)
            ]
        )

    def entropy_gradient(self) -> Tensor:
        parts = []
        for log_probs in self._log_probs:
            probs = log_probs.exp()
            parts.append(-probs * (log_probs - (probs * log_probs).sum(dim=1, keepdim=True)))
        return _beside(parts)

    def kl_gradient(self, other: Categoricals) -> Tensor:
        pairs = zip(self._log_probs, other._log_probs, strict=True)
        return _beside([ours.exp() - theirs.exp() for ours, theirs in pairs])


class Gaussians:
    """Independent normal distributions; the distribution of ``GaussianActions``."""

    def __init__(self, inputs: Tensor) -> None:
        self._mean, log_std = inputs.chunk(2, dim=1)
        self._log_std = log_std.clamp(-LARGEST_LOG_STD, LARGEST_LOG_STD)
        self._is_free = self._log_std == log_std
        """Whether the clamp does not change a deviation; beyond it, nothing depends on the input."""

    def log_prob(self, actions: Tensor) -> Tensor:
        distance = (actions - self._mean) * torch.exp(-self._log_std)
        return (-0.5 * distance.square() - self._log_std - LOG_SQRT_2_PI).sum(dim=1)

    def entropy(self) -> Tensor:
        return (self._log_std + (0.5 + LOG_SQRT_2_PI)).sum(dim=1)

    def kl_from(self, other: Gaussians) -> Tensor:
        variance = torch.exp(2 * other._log_std) + (other._mean - self._mean).square()
        return (self._log_std - other._log_std + 0.5 * variance * torch.exp(-2 * self._log_std) - 0.5).sum(dim=1)

    def log_prob_gradient(self, actions: Tensor) -> Tensor:
        precision = torch.exp(-self._log_std)
        distance = (actions - self._mean) * precision
        return torch.cat([distance * precision, (distance.square() - 1.0) * self._is_free], dim=1)

    def entropy_gradient(self) -> Tensor:
        return torch.cat([torch.zeros_like(self._mean), self._is_free.to(self._mean.dtype)], dim=1)

    def kl_gradient(self, other: Gaussians) -> Tensor:
        moved, precision = self._mean - other._mean, torch.exp(-2 * self._log_std)
        variance = torch.exp(2 * other._log_std) + moved.square()
        return torch.cat([moved * precision, (1.0 - variance * precision) * self._is_free], dim=1)


def distribution_of(actions: Actions, inputs: Tensor) -> Distribution:
    """Return the distributions of B actions from their ``inputs [B, K]``."""
    return Categoricals(actions, inputs) if isinstance(actions, CategoricalActions) else Gaussians(inputs)


def numbered_actions(actions: Actions, taken: Tensor) -> Tensor:
    """Return actions ``[B, *shape]`` as ``log_prob`` takes them: ``[B, D]``, the number of each choice from 0, int64.

    Numbers of continuous actions stay as they are, as float32.
    """
    flat = taken.reshape(len(taken), -1)
    if isinstance(actions, CategoricalActions):
        return flat.to(torch.int64) - torch.tensor(actions.first, device=flat.device)
    return flat.to(torch.float32)


def draw_squashed(inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions ``[B, D]`` of SquashedGaussianActions, and the logarithms of their densities ``[B]``.

    They are the tanh of normally distributed numbers, made from standard normal ``noise [B, D]`` (Haarnoja et al. 2018,
    equation 11 and appendix C). Both results can be differentiated by ``inputs [B, 2 D]``.
    """
    drawn: tuple[Tensor, Tensor] = _SquashedDraw.apply(inputs, noise)  # type: ignore[no-untyped-call]
    return drawn


class _SquashedDraw(torch.autograd.Function):
    """One operation for autograd, as recording each of them takes longer than computing them."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = inputs.chunk(2, dim=1)
        bounded = log_std.clamp(*SQUASHED_LOG_STD)
        moved = bounded.exp() * noise
        actions = torch.tanh(mean + moved)
        slope = 1.0 - actions.square()
        ctx.save_for_backward(actions, slope, moved, log_std == bounded)
        log_probs = -0.5 * noise.square() - bounded - LOG_SQRT_2_PI - torch.log(slope + SQUASH_EPSILON)
        return actions, log_probs.sum(dim=1)

    @staticmethod
    def backward(ctx: Any, of_actions: Tensor, of_log_probs: Tensor) -> tuple[Tensor, None]:
        actions, slope, moved, is_within = ctx.saved_tensors
        of_log_probs = of_log_probs.unsqueeze(1)
        of_numbers = slope * (of_actions + of_log_probs * (2.0 * actions / (slope + SQUASH_EPSILON)))
        of_log_std = (of_numbers * moved - of_log_probs) * is_within
        return torch.cat([of_numbers, of_log_std], dim=1), None


def _beside(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sum(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
