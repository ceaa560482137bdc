"""ActingPolicy networks of every kind agree with the Q-network whose weights they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.loss import row_losses
from rlexp.agents.dqn.policy import (
    NEW_Q_VALUES,
    Q_VALUES,
    ActingNetwork,
    DQNPolicy,
    NumpyActingNetwork,
    absolute_td_errors,
    make_acting_network,
)
from rlexp.models import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, SampleBatch, new
from tests.unit.agents.batches import NETWORK, make_batch

DISTRIBUTION = replace(NETWORK, head=replace(NETWORK.head, num_atoms=5))
NO_EPSILON = np.zeros(32)
NO_RESET = np.zeros(32, bool)


def make_pair(config: QNetworkConfig, num_threads: int | None = None) -> tuple[QNetwork, ActingNetwork]:
    torch.manual_seed(0)
    network = QNetwork(config)
    acting = make_acting_network(config, None, num_threads)
    acting.load({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    return network, acting


@pytest.mark.parametrize("num_threads", [None, 1, 2], ids=["numpy", "numpy in a process of its own", "torch"])
@pytest.mark.parametrize("config", [NETWORK, DISTRIBUTION], ids=["values", "distribution"])
def test_has_the_outputs_and_values_of_its_network(config: QNetworkConfig, num_threads: int | None) -> None:
    network, acting = make_pair(config, num_threads)
    obs = make_batch()[OBS]
    with torch.inference_mode():
        expected_outputs = network.outputs(torch.from_numpy(obs))
        expected_values = network.values(expected_outputs)
    outputs = acting.outputs(obs)
    assert outputs.reshape(expected_outputs.shape) == pytest.approx(expected_outputs.numpy(), abs=1e-6)
    assert acting.values(outputs) == pytest.approx(expected_values.numpy(), abs=1e-5)
    assert (acting.exploring_outputs(obs, NO_EPSILON, NO_RESET) == outputs).all()


@pytest.mark.parametrize("config", [NETWORK, DISTRIBUTION], ids=["values", "distribution"])
def test_priorities_are_the_losses_of_its_own_network(config: QNetworkConfig) -> None:
    network, acting = make_pair(config)
    batch = make_batch()
    found = acting.td_errors(
        batch.with_columns(**{Q_VALUES: acting.outputs(batch[OBS]), NEW_Q_VALUES: acting.outputs(batch[NEW_OBS])})
    )
    rows = {name: torch.from_numpy(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)}
    expected = row_losses(network, network, rows, double_q=False).td_errors
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


def test_td_errors_by_hand() -> None:
    batch = SampleBatch(
        {
            Q_VALUES: np.array([[1.0, 5.0], [2.0, -1.0]], np.float32),
            ACTIONS: np.array([1, 0]),
            REWARDS: np.array([1.0, -3.0], np.float32),
            DISCOUNTS: np.array([0.5, 0.0], np.float32),
            NEW_Q_VALUES: np.array([[4.0, 6.0], [9.0, 9.0]], np.float32),
        }
    )
    assert absolute_td_errors(batch).tolist() == [1.0, 5.0]


@pytest.mark.parametrize("config", [NETWORK, DISTRIBUTION], ids=["values", "distribution"])
def test_a_policy_makes_the_same_priorities_of_what_it_saw_as_of_looking_again(config: QNetworkConfig) -> None:
    network, _ = make_pair(config)
    policy = DQNPolicy(config, worker_side_prioritization=True)
    policy.set_weights({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    batch = make_batch()
    _, outputs = policy.act(batch[OBS], NO_RESET, 0)
    new_outputs = {new(name): output for name, output in policy.outputs(batch[NEW_OBS]).items()}
    assert {*outputs, *new_outputs} == {Q_VALUES, NEW_Q_VALUES}
    remembered = policy.postprocess(batch.with_columns(**outputs, **new_outputs))
    assert set(remembered) == {*batch, TD_ERRORS}
    assert remembered[TD_ERRORS] == pytest.approx(policy.postprocess(batch)[TD_ERRORS], abs=1e-6)


@pytest.mark.parametrize("parameter_noise_stddev", [None, 0.5])
@pytest.mark.parametrize("worker_side_prioritization", [True, False])
def test_a_policy_remembers_only_what_its_own_weights_saw_and_only_for_priorities(
    parameter_noise_stddev: float | None, worker_side_prioritization: bool
) -> None:
    network, _ = make_pair(NETWORK)
    schedule = ConstantEpsilon((0.0,) * 32)
    exploration = PolicyExploration(schedule, 0, 0, parameter_noise_stddev=parameter_noise_stddev)
    policy = DQNPolicy(NETWORK, exploration, worker_side_prioritization)
    policy.set_weights({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    obs = make_batch()[OBS]
    _, outputs = policy.act(obs, NO_RESET, 0)
    remembers = worker_side_prioritization and parameter_noise_stddev is None
    assert set(outputs) == set(policy.outputs(obs)) == ({Q_VALUES} if remembers else set())
    assert policy.postprocess_reads_obs == (worker_side_prioritization and not remembers)


@pytest.mark.parametrize(("num_threads", "in_numpy"), [(None, True), (1, True), (2, False)])
def test_a_network_that_may_use_several_threads_is_computed_by_torch(num_threads: int | None, in_numpy: bool) -> None:
    assert isinstance(make_acting_network(NETWORK, None, num_threads), NumpyActingNetwork) is in_numpy
