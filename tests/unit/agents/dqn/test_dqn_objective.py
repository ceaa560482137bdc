from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rlexp.agents.dqn.loss import cross_entropies, huber, row_losses, td_errors
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS
from tests.lab.dqn import NETWORK, make_batch

DISTRIBUTIONAL = replace(NETWORK, head=replace(NETWORK.head, num_atoms=11))


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


@pytest.mark.parametrize("config", [NETWORK, DISTRIBUTIONAL], ids=["values", "distributions"])
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
