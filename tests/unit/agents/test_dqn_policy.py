from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rlexp.agents.dqn.loss import td_errors
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.models import QNetwork
from rlexp.policy import Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, SampleBatch
from tests.unit.agents.batches import NETWORK, make_batch, make_learner, read_only


@pytest.fixture
def weights() -> Weights:
    return make_learner(seed=3).get_weights()


def make_policy(weights: Weights, worker_side_prioritization: bool = True) -> DQNPolicy:
    policy = DQNPolicy(NETWORK, worker_side_prioritization, noise_seed=None)
    policy.set_weights(weights)
    return policy


def values(weights: Weights, batch: SampleBatch, column: str) -> Tensor:
    network = QNetwork(NETWORK)
    network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    found: Tensor = network(torch.tensor(batch[column])).detach()
    return found


def test_acts_greedily_with_the_weights_given(weights: Weights) -> None:
    batch = make_batch()
    actions = make_policy(weights).compute_actions(batch[OBS])
    assert actions.tolist() == values(weights, batch, OBS).argmax(dim=1).tolist()
    assert len(set(actions.tolist())) > 1
    assert actions.dtype == np.int64


def test_td_errors_are_those_of_the_loss_with_the_same_weights(weights: Weights) -> None:
    batch = make_batch()
    found = make_policy(weights).postprocess(batch)[TD_ERRORS]
    q_t = values(weights, batch, NEW_OBS)
    expected = td_errors(
        values(weights, batch, OBS),
        torch.tensor(batch[ACTIONS]),
        torch.tensor(batch[REWARDS]),
        torch.tensor(batch[DISCOUNTS]),
        q_t_value=q_t,
        q_t_selector=q_t,
    )
    assert found == pytest.approx(expected.abs().numpy(), abs=1e-6)
    assert found.shape == (batch.count,)


def test_td_errors_equal_the_learners_before_its_first_update() -> None:
    learner, batch = make_learner(seed=3), make_batch()
    found = make_policy(learner.get_weights()).postprocess(batch)[TD_ERRORS]
    assert found == pytest.approx(learner.learn_on_batch(batch).td_errors, abs=1e-5)


def test_postprocessing_keeps_the_rows_and_adds_nothing_where_priorities_are_not_the_workers(weights: Weights) -> None:
    batch = make_batch()
    with_priorities = make_policy(weights).postprocess(batch)
    assert set(with_priorities) == {*batch, TD_ERRORS}
    assert all(with_priorities[name] is batch[name] for name in batch)
    assert make_policy(weights, worker_side_prioritization=False).postprocess(batch) is batch


def test_a_batch_without_rows_is_taken(weights: Weights) -> None:
    assert make_policy(weights).postprocess(make_batch(count=0)).count == 0


def test_new_weights_change_what_it_does(weights: Weights) -> None:
    obs = make_batch(count=200)[OBS]
    policy = make_policy(weights)
    before = policy.compute_actions(obs)
    policy.set_weights(make_learner(seed=4).get_weights())
    assert (policy.compute_actions(obs) != before).any()


def test_it_keeps_a_copy_of_its_weights(weights: Weights) -> None:
    mine = {name: array.copy() for name, array in weights.items()}
    obs = make_batch()[OBS]
    policy = make_policy(mine)
    before = policy.compute_actions(obs)
    for array in mine.values():
        array[:] = 0.0
    assert policy.compute_actions(obs).tolist() == before.tolist()


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_weights_raise_no_warning(weights: Weights) -> None:
    make_policy(read_only(weights))


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_batches_and_observations_raise_no_warning(weights: Weights) -> None:
    batch = SampleBatch(read_only(make_batch().columns))
    policy = make_policy(weights)
    policy.postprocess(batch)
    policy.compute_actions(batch[OBS])
