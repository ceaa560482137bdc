"""The losses of PPO against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rlexp.agents.ppo.learner import adapted_kl_coeff, explained_variance, surrogate_losses, value_losses


def tensors(*columns: float) -> list[torch.Tensor]:
    return [torch.tensor([number]) for number in columns]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (2.0, 1.0, -1.3, 0.0),
        (2.0, -1.0, 2.0, 2.0),
        (0.5, 1.0, -0.5, -0.5),
        (0.5, -1.0, 0.7, 0.0),
        (1.2, 1.0, -1.2, -1.2),
        (1.0, -3.0, 3.0, 3.0),
    ],
)
def test_the_surrogate_loss_is_the_worse_of_both(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logp, old_logp, advantages = tensors(math.log(ratio) - 1.5, -1.5, advantage)
    losses, derivatives, ratios = surrogate_losses(logp, old_logp, advantages, 0.3)
    assert losses.tolist() == pytest.approx([loss])
    assert derivatives.tolist() == pytest.approx([gradient])
    assert ratios.tolist() == pytest.approx([ratio])


@pytest.mark.parametrize(
    ("value", "old_value", "target", "loss", "gradient"),
    [
        (2.0, 1.0, 4.0, 6.25, 0.0),  # it has moved by more than .5 towards the target: no further
        (2.0, 1.0, 1.0, 1.0, 2.0),  # it has moved away: back
        (1.25, 1.0, 4.0, 7.5625, -5.5),  # within the limit: a plain square
        (0.0, 1.0, 4.0, 16.0, -8.0),
    ],
)
def test_the_value_loss_is_the_larger_square(
    value: float, old_value: float, target: float, loss: float, gradient: float
) -> None:
    values, old_values, targets = tensors(value, old_value, target)
    losses, derivatives = value_losses(values, old_values, targets, 0.5)
    assert losses.tolist() == pytest.approx([loss])
    assert derivatives.tolist() == pytest.approx([gradient])


def test_derivatives_of_the_losses_equal_those_of_autograd() -> None:
    generator = torch.Generator().manual_seed(3)
    logp, old_logp, advantages, values, old_values, targets = torch.randn(6, 1000, generator=generator)
    logp.requires_grad_()
    values.requires_grad_()
    policy_losses, of_logp, _ = surrogate_losses(logp, old_logp, advantages, 0.3)
    vf_losses, of_values = value_losses(values, old_values, targets, 0.5)
    torch.autograd.backward([policy_losses.sum() + vf_losses.sum()])
    assert logp.grad is not None
    assert values.grad is not None
    torch.testing.assert_close(of_logp, logp.grad)
    torch.testing.assert_close(of_values, values.grad)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.021, 0.3), (0.004, 0.1), (0.01, 0.2), (0.02, 0.2), (0.005, 0.2), (math.inf, 0.3)]
)
def test_kl_coeff_is_adapted_where_kl_is_beyond_a_factor_of_two(kl: float, expected: float) -> None:
    assert adapted_kl_coeff(0.2, kl, kl_target=0.01) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("targets", "values", "expected"),
    [
        ((1.0, 2.0, 3.0), (1.0, 2.0, 2.0), 2 / 3),
        ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), 1.0),
        ((1.0, 2.0, 3.0), (11.0, 12.0, 13.0), 1.0),  # a constant error has no variance
        ((1.0, 2.0, 3.0), (5.0, 5.0, 5.0), 0.0),
        ((1.0, 2.0, 3.0), (9.0, 0.0, -9.0), -1.0),
        ((2.0, 2.0, 2.0), (1.0, 2.0, 3.0), -1.0),
        ((2.0,), (3.0,), 1.0),
    ],
)
def test_explained_variance_by_hand(targets: tuple[float, ...], values: tuple[float, ...], expected: float) -> None:
    assert float(explained_variance(torch.tensor(targets), torch.tensor(values))) == pytest.approx(expected)
