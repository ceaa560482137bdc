"""The loss, by numbers worked by hand; the gradient that is computed by hand is the one of autograd."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, tensor

from rlexp.agents.dqn.dense_loss import DenseGradient
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.loss import (
    AutogradGradient,
    cross_entropies,
    huber,
    projected_distribution,
    quantile_losses,
    row_losses,
    td_errors,
)
from rlexp.agents.torch.flat_adam import FlatAdam, FlatParameters
from rlexp.errors import TrialError
from rlexp.models.dense_gradients import is_dense
from rlexp.models.network_config import HeadConfig, QNetworkConfig, TorsoConfig
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, IMPORTANCE_WEIGHTS, NEW_OBS, OBS, REWARDS, SampleBatch
from rlexp.schedules import PiecewiseSchedule
from tests.lab.dqn import NETWORK, make_batch

CPU = torch.device("cpu")

TORSO: dict[str, Any] = {
    "fcnet_hiddens": (16, 8),
    "fcnet_activation": "relu",
    "conv_filters": None,
    "conv_activation": "relu",
    "post_fcnet_hiddens": (),
    "post_fcnet_activation": "relu",
    "zero_mean": False,
}
HEAD: dict[str, Any] = {
    "hiddens": (),
    "dueling": False,
    "noisy": False,
    "sigma0": 0.5,
    "num_atoms": 1,
    "v_min": -1.0,
    "v_max": 1.0,
    "has_quantiles": False,
}


def network_config(
    torso: dict[str, Any] | None = None, head: dict[str, Any] | None = None, sees_byte_vectors: bool = False
) -> QNetworkConfig:
    parts = TorsoConfig(**TORSO | (torso or {})), HeadConfig(**HEAD | (head or {}))
    return QNetworkConfig((3,), 4, *parts, sees_byte_vectors)


def batch_of(rows: int, seed: int = 0, as_bytes: bool = False) -> SampleBatch:
    rng = np.random.default_rng(seed)

    def obs() -> np.ndarray[Any, Any]:
        if as_bytes:
            return rng.integers(0, 256, (rows, 3)).astype(np.uint8)
        return rng.normal(size=(rows, 3)).astype(np.float32)

    return SampleBatch(
        {
            OBS: obs(),
            ACTIONS: rng.integers(0, 4, rows),
            REWARDS: (3 * rng.normal(size=rows)).astype(np.float32),  # on both sides of the bend of the Huber loss
            DISCOUNTS: rng.choice([0.0, 0.9], rows).astype(np.float32),
            NEW_OBS: obs(),
            IMPORTANCE_WEIGHTS: rng.random(rows).astype(np.float32),
        }
    )


NETWORKS = {
    "plain": network_config(),
    "dueling": network_config(head={"dueling": True}),
    "dueling with hidden layers": network_config(head={"dueling": True, "hiddens": (12, 6)}),
    "wide": network_config(torso={"fcnet_hiddens": (160, 128)}, head={"dueling": True, "hiddens": (128,)}),
    "tanh": network_config(torso={"fcnet_activation": "tanh"}, head={"hiddens": (12,)}),
    "elu and linear": network_config(
        torso={"fcnet_activation": "elu", "post_fcnet_hiddens": (7,), "post_fcnet_activation": "linear"}
    ),
    "without a torso": network_config(torso={"fcnet_hiddens": ()}, head={"dueling": True, "hiddens": (6,)}),
    "one layer": network_config(torso={"fcnet_hiddens": ()}),
    "bytes": network_config(sees_byte_vectors=True),
    "noisy": network_config(head={"noisy": True}),
    "noisy without a torso": network_config(torso={"fcnet_hiddens": ()}, head={"noisy": True, "hiddens": (6,)}),
    "atoms": network_config(head={"num_atoms": 11}),
    "two atoms": network_config(head={"num_atoms": 2, "dueling": True}),
    "quantiles": network_config(head={"num_atoms": 7, "has_quantiles": True, "dueling": True, "hiddens": (6,)}),
    "two noisy quantiles": network_config(head={"num_atoms": 2, "has_quantiles": True, "noisy": True}),
    "all of Rainbow's": network_config(head={"num_atoms": 11, "dueling": True, "noisy": True, "hiddens": (12,)}),
}


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradient_equals_autograds(name: str, double_q: bool) -> None:
    config = NETWORKS[name]
    torch.manual_seed(3)
    online, target = QNetwork(config), QNetwork(config).requires_grad_(False)
    parameters, target_parameters = FlatParameters(online), FlatParameters(target)
    adam = FlatAdam(parameters, 1e-8, None)
    for network in (online, target):
        network.resample_noise(torch.Generator().manual_seed(4))
    batch = batch_of(32, as_bytes=config.sees_byte_vectors)
    expected = AutogradGradient(online, target, adam, CPU, "float32", double_q, pytest.fail).compute(batch)
    gradient = adam.gradient.clone()
    adam.gradient.fill_(7.0)  # nothing of it may be left
    by_hand = DenseGradient(config, (online, parameters), (target, target_parameters), adam, double_q)
    found = by_hand.compute(batch)
    assert gradient.abs().max() > 0
    torch.testing.assert_close(adam.gradient, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.td_errors, expected.td_errors.numpy(), rtol=1e-5, atol=1e-6)
    figures = found.loss, found.mean_q, found.mean_td_error
    np.testing.assert_allclose(figures, expected.figures.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("num_atoms", "has_quantiles"), [(1, False), (11, False), (11, True)])
def test_a_loss_that_is_not_finite_is_reported_and_nothing_else(num_atoms: int, has_quantiles: bool) -> None:
    config = network_config(head={"num_atoms": num_atoms, "has_quantiles": has_quantiles})
    learner_config = DQNLearnerConfig(PiecewiseSchedule(((0, 1e-3),)), 1e-8, 0.5, True, 64, True, "cpu")
    learner = DQNLearner(config, learner_config, 1)
    state = dict(learner.state_dict())
    state["network.torso.0.weight"] = np.full_like(state["network.torso.0.weight"], np.nan)
    learner.load_state_dict(state)
    with pytest.raises(TrialError, match="the loss is nan"):
        learner.learn_on_batch(batch_of(16))


def test_other_networks_are_left_to_autograd() -> None:
    assert not is_dense(network_config(torso={"fcnet_activation": "swish"}))
    assert not is_dense(replace(network_config(), observation_shape=(84, 84, 4)))


def test_an_activation_of_no_layer_does_not_matter() -> None:
    assert is_dense(network_config(torso={"post_fcnet_activation": "swish"}))


Q_TM1 = tensor([[1.0, 2.0], [3.0, 4.0], [0.0, 5.0]])
A_TM1 = tensor([1, 0, 1])
R_T = tensor([1.0, -1.0, 10.0])
DISCOUNT_T = tensor([0.9, 0.5, 0.0])
TARGET_Q_T = tensor([[10.0, 20.0], [30.0, 5.0], [7.0, 7.5]])
ONLINE_Q_T = tensor([[0.2, 0.1], [0.3, 0.4], [0.0, 1.0]])


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


SUPPORT = tensor([-1.0, 0.0, 1.0])


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


def quantile_loss_pair_by_pair(predicted: Tensor, target: Tensor) -> float:
    """Return equation 10 of Dabney et al. 2018 for one row, as the paper writes it: one pair of quantiles at a time."""
    count, loss = len(predicted), 0.0
    for index in range(count):
        middle = (2 * index + 1) / (2 * count)
        for sample in range(count):
            td = float(target[sample] - predicted[index])
            bent = 0.5 * td**2 if abs(td) <= 1 else abs(td) - 0.5
            loss += abs(middle - (td < 0)) * bent / count
    return loss


@settings(deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(2, 9))
def test_a_quantile_loss_is_that_of_the_paper(seed: int, count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    theta_tm1, theta_t = (2 * torch.randn(3, 2, count, generator=generator) for _ in range(2))
    a_tm1, a_t = tensor([0, 1, 1]), torch.eye(2)[tensor([1, 0, 1])]
    r_t, discount_t = torch.randn(3, generator=generator), tensor([0.0, 1.0, 0.9])
    found = quantile_losses(theta_tm1, a_tm1, r_t, discount_t, theta_t, a_t)
    targets = r_t[:, None] + discount_t[:, None] * theta_t[[0, 1, 2], [1, 0, 1]]
    expected = [quantile_loss_pair_by_pair(theta_tm1[row, a_tm1[row]], targets[row]) for row in range(3)]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_quantiles_learn_returns_with_equal_probabilities() -> None:
    """The reward is 0 or 10. Below tau 0.5 a quantile is 0 but for the bend of the loss: there (1 - tau) x = tau."""
    theta = torch.zeros(1, 1, 4, requires_grad=True)
    rewards = tensor([0.0, 10.0])
    adam = torch.optim.Adam([theta], lr=0.1)
    for _ in range(1000):
        quantiles = theta.expand(2, 1, 4)
        taken = torch.zeros(2, dtype=torch.int64), rewards, torch.zeros(2)
        adam.zero_grad()
        quantile_losses(quantiles, *taken, quantiles, quantiles.mean(dim=2)).sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert theta.flatten().tolist() == pytest.approx([1 / 7, 3 / 5, 10 - 3 / 5, 10 - 1 / 7], abs=0.01)


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


DISTRIBUTIONAL = replace(NETWORK, head=replace(NETWORK.head, num_atoms=11))
QUANTILES = replace(DISTRIBUTIONAL, head=replace(DISTRIBUTIONAL.head, has_quantiles=True))


@pytest.fixture(autouse=True)
def seeded_weights() -> None:
    torch.manual_seed(0)


@pytest.fixture
def rows() -> dict[str, Tensor]:
    return {name: torch.tensor(column) for name, column in make_batch().columns.items()}


@pytest.mark.parametrize("double_q", [True, False])
def test_the_next_action_is_the_online_networks_choice_with_double_q_only(
    rows: dict[str, Tensor], double_q: bool
) -> None:
    online, target = QNetwork(NETWORK), QNetwork(NETWORK)
    result = row_losses(online, target, rows, double_q)
    q_tm1, q_t_value = online(rows[OBS]), target(rows[NEW_OBS])
    selectors = {True: online(rows[NEW_OBS]), False: q_t_value}
    taken = rows[ACTIONS], rows[REWARDS], rows[DISCOUNTS]
    td, other = (td_errors(q_tm1, *taken, q_t_value, selectors[choice]) for choice in (double_q, not double_q))
    assert torch.allclose(result.td_errors, td.abs())
    assert not torch.allclose(td, other)
    assert torch.allclose(result.losses, huber(td))
    assert torch.equal(result.q_tm1, q_tm1)


@pytest.mark.parametrize("double_q", [True, False])
def test_of_distributions_it_is_the_cross_entropy(rows: dict[str, Tensor], double_q: bool) -> None:
    online, target = QNetwork(DISTRIBUTIONAL), QNetwork(DISTRIBUTIONAL)
    result = row_losses(online, target, rows, double_q)
    taken = rows[ACTIONS], rows[REWARDS], rows[DISCOUNTS]
    logits_t = target.outputs(rows[NEW_OBS])
    selector = online(rows[NEW_OBS]) if double_q else target(rows[NEW_OBS])
    expected = cross_entropies(online.outputs(rows[OBS]), *taken, logits_t, selector, online.support)
    assert torch.allclose(result.losses, expected)
    assert torch.equal(result.td_errors, result.losses)
    assert torch.allclose(result.q_tm1, online(rows[OBS]))


@pytest.mark.parametrize("double_q", [True, False])
def test_of_quantiles_priorities_are_errors_of_the_means(rows: dict[str, Tensor], double_q: bool) -> None:
    online, target = QNetwork(QUANTILES), QNetwork(QUANTILES)
    result = row_losses(online, target, rows, double_q)
    taken = rows[ACTIONS], rows[REWARDS], rows[DISCOUNTS]
    q_t_value = target(rows[NEW_OBS])
    selector = online(rows[NEW_OBS]) if double_q else q_t_value
    expected = quantile_losses(online.outputs(rows[OBS]), *taken, target.outputs(rows[NEW_OBS]), selector)
    assert torch.allclose(result.losses, expected)
    assert torch.allclose(result.td_errors, td_errors(online(rows[OBS]), *taken, q_t_value, selector).abs())
    assert torch.allclose(result.q_tm1, online.outputs(rows[OBS]).mean(dim=2))


@pytest.mark.parametrize("config", [NETWORK, DISTRIBUTIONAL, QUANTILES], ids=["values", "distributions", "quantiles"])
def test_only_the_losses_carry_a_gradient_and_only_to_the_online_network(
    rows: dict[str, Tensor], config: QNetworkConfig
) -> None:
    online, target = QNetwork(config), QNetwork(config)
    result = row_losses(online, target, rows, double_q=True)
    assert not result.td_errors.requires_grad
    assert not result.q_tm1.requires_grad
    result.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in online.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())
