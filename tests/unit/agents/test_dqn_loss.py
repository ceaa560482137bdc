"""The loss, by numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, tensor

from rlexp.agents.dqn.loss import td_errors, weighted_huber

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


def huber(td: list[float], weights: list[float]) -> Tensor:
    return weighted_huber(tensor(td), tensor(weights))


def test_huber_is_half_the_square_up_to_one_and_linear_beyond() -> None:
    # 0.5 * 0.5^2 = 0.125;  0.5;  3 - 0.5 = 2.5
    assert huber([0.5], [1.0]).item() == pytest.approx(0.125)
    assert huber([-1.0], [1.0]).item() == pytest.approx(0.5)
    assert huber([-3.0], [1.0]).item() == pytest.approx(2.5)


def test_each_row_counts_by_its_weight_in_the_mean() -> None:
    # (0.125 * 1 + 2.5 * 0.2 + 0 * 0.5) / 3
    assert huber([0.5, 3.0, 0.0], [1.0, 0.2, 0.5]).item() == pytest.approx((0.125 + 0.5) / 3)


def test_the_gradient_of_a_row_is_bounded_by_its_weight() -> None:
    td = tensor([0.5, -100.0, 100.0]).requires_grad_()
    weighted_huber(td, tensor([1.0, 0.2, 0.5])).backward()  # type: ignore[no-untyped-call]
    assert td.grad is not None
    assert torch.allclose(td.grad, tensor([0.5, -0.2, 0.5]) / 3)
