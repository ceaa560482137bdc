"""The loss, by numbers worked by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from rlexp.agents.dqn.loss import cross_entropies, huber, projected_distribution, td_errors

Q_TM1 = tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 5.0]])
A_TM1 = tensor([1, 0, 1])
R_T = tensor([1.0, -1.0, 10.0])
DISCOUNT_T = tensor([0.9, 0.5, 0.0])
TARGET_Q_T = tensor([[10.0, 20.0], [30.0, 5.0], [7.0, 7.5]])
ONLINE_Q_T = tensor([[0.2, 0.1], [0.3, 0.4], [0.0, 1.0]])


def test_q_learning_takes_the_highest_value_of_the_target_network() -> None:
    td = td_errors(Q_TM1, A_TM1, R_T, DISCOUNT_T, TARGET_Q_T, TARGET_Q_T)
    # 1 + 0.9 * 20 - 2;  -1 + 0.5 * 30 - 3;  10 + 0 - 5
    assert td.tolist() == pytest.approx([17.0, 11.0, 5.0])


def test_double_q_learning_takes_the_target_networks_value_of_the_online_networks_choice() -> None:
    td = td_errors(Q_TM1, A_TM1, R_T, DISCOUNT_T, TARGET_Q_T, ONLINE_Q_T)
    # 1 + 0.9 * 10 - 2;  -1 + 0.5 * 5 - 3;  10 + 0 - 5
    assert td.tolist() == pytest.approx([8.0, -1.5, 5.0])


def test_only_the_value_of_the_action_taken_carries_a_gradient() -> None:
    q_tm1, q_t_value, q_t_selector = (q.clone().requires_grad_() for q in (Q_TM1, TARGET_Q_T, ONLINE_Q_T))
    td_errors(q_tm1, A_TM1, R_T, DISCOUNT_T, q_t_value, q_t_selector).sum().backward()  # type: ignore[no-untyped-call]
    assert q_tm1.grad is not None
    assert q_tm1.grad.tolist() == [[0.0, -1.0], [-1.0, 0.0], [0.0, -1.0]]
    assert q_t_value.grad is None
    assert q_t_selector.grad is None


def test_huber_is_half_the_square_up_to_one_and_linear_beyond() -> None:
    # 0.5 * 0.5^2 = 0.125;  0.5;  3 - 0.5 = 2.5
    assert huber(tensor([0.5, -1.0, -3.0])).tolist() == pytest.approx([0.125, 0.5, 2.5])


def test_the_gradient_of_a_row_is_bounded() -> None:
    td = tensor([0.5, -100.0, 100.0]).requires_grad_()
    huber(td).sum().backward()  # type: ignore[no-untyped-call]
    assert td.grad is not None
    assert td.grad.tolist() == pytest.approx([0.5, -1.0, 1.0])


SUPPORT = tensor([-1.0, 0.0, 1.0])


def test_a_shifted_distribution_is_shared_out_to_the_nearest_atoms() -> None:
    # All on atom 1: 0.25 + 0.5 * 1 = 0.75, three quarters to atom 1 and one to atom 0.
    p_t = tensor([[0.0, 0.0, 1.0]])
    assert projected_distribution(p_t, tensor([0.25]), tensor([0.5]), SUPPORT).tolist() == [[0.0, 0.25, 0.75]]
    # A termination leaves the reward alone: -0.5 lies between the atoms -1 and 0.
    assert projected_distribution(p_t, tensor([-0.5]), tensor([0.0]), SUPPORT).tolist() == [[0.5, 0.5, 0.0]]


def test_what_lies_outside_the_support_falls_on_its_ends() -> None:
    p_t = tensor([[0.2, 0.3, 0.5]])
    assert projected_distribution(p_t, tensor([7.0]), tensor([1.0]), SUPPORT).tolist() == [[0.0, 0.0, 1.0]]


def projected_atom_by_atom(p_t: Tensor, r_t: Tensor, discount_t: Tensor, support: Tensor) -> Tensor:
    """Equation 7 of Bellemare et al. as it stands there, in double precision."""
    v_min, spacing = float(support[0]), float(support[-1] - support[0]) / (len(support) - 1)
    projected = torch.zeros(p_t.shape, dtype=torch.float64)
    for row, source, target in itertools.product(range(len(p_t)), range(len(support)), range(len(support))):
        shifted = float(r_t[row]) + float(discount_t[row]) * (v_min + spacing * source)
        shifted = min(max(shifted, v_min), float(support[-1]))
        share = 1 - abs(shifted - (v_min + spacing * target)) / spacing
        projected[row, target] += max(share, 0.0) * float(p_t[row, source])
    return projected


@settings(deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_atoms=st.integers(2, 12),
    v_min=st.floats(-20, 20, width=32),
    width=st.floats(0.5, 40, width=32),
)
def test_a_projection_is_that_of_the_paper(seed: int, num_atoms: int, v_min: float, width: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    support = torch.linspace(v_min, v_min + width, num_atoms)
    p_t = torch.rand(3, num_atoms, generator=generator).softmax(dim=1)
    r_t = width * torch.randn(3, generator=generator)
    discount_t = tensor([0.0, 1.0, float(torch.rand((), generator=generator))])
    projected = projected_distribution(p_t, r_t, discount_t, support)
    assert torch.allclose(projected.double(), projected_atom_by_atom(p_t, r_t, discount_t, support), atol=2e-4)
    assert torch.allclose(projected.sum(dim=1), torch.ones(3))
    assert (projected >= -1e-6).all()


def test_what_is_no_number_stays_in_its_row() -> None:
    p_t = tensor([[0.2, 0.3, 0.5], [0.2, 0.3, 0.5]])
    projected = projected_distribution(p_t, tensor([math.nan, 0.0]), tensor([1.0, 1.0]), SUPPORT)
    assert projected[0].isnan().any()
    assert projected[1].tolist() == pytest.approx([0.2, 0.3, 0.5])


def test_the_cross_entropy_is_taken_at_the_actions_taken_and_chosen() -> None:
    logits_tm1 = torch.zeros(1, 2, 3)
    logits_tm1[0, 1] = tensor([0.0, 0.0, 2.0])
    logits_t = torch.full((1, 2, 3), -100.0)
    logits_t[0, 0, 2] = 100.0  # action 0 is certain of 1, action 1 of -1
    logits_t[0, 1, 0] = 100.0
    args = (tensor([1]), tensor([0.0]), tensor([1.0]), logits_t)
    chosen_0 = cross_entropies(logits_tm1, *args, tensor([[1.0, 0.0]]), SUPPORT)
    chosen_1 = cross_entropies(logits_tm1, *args, tensor([[0.0, 1.0]]), SUPPORT)
    normaliser = math.log(2 + math.exp(2))
    assert chosen_0.item() == pytest.approx(normaliser - 2)
    assert chosen_1.item() == pytest.approx(normaliser)
