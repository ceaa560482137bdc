"""Policies of every kind agree with the Q-network whose weights they have, and explore by the noise they are given."""

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
    DQNPolicy,
    NumpyActingNetwork,
    make_acting_network,
)
from rlexp.models.network_config import QNetworkConfig
from rlexp.models.networks import QNetwork
from rlexp.policy import LiveWeights, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, TD_ERRORS, Array, SampleBatch, new
from tests.lab.dqn import NETWORK, make_batch, make_learner, read_only

DISTRIBUTION = replace(NETWORK, head=replace(NETWORK.head, num_atoms=5))
QUANTILES = replace(DISTRIBUTION, head=replace(DISTRIBUTION.head, has_quantiles=True))
NO_RESET = np.zeros(32, bool)


all_outputs = pytest.mark.parametrize(
    "config", [NETWORK, DISTRIBUTION, QUANTILES], ids=["values", "distribution", "quantiles"]
)
all_libraries = pytest.mark.parametrize("num_threads", [None, 1, 2], ids=["numpy", "numpy in a process", "torch"])


def make_pair(config: QNetworkConfig, num_threads: int | None = None) -> tuple[QNetwork, DQNPolicy]:
    """Return a network, and a policy with its weights that computes priorities."""
    torch.manual_seed(0)
    network = QNetwork(config)
    policy = DQNPolicy(config, worker_side_prioritization=True, num_threads=num_threads)
    policy.set_weights({name: tensor.numpy() for name, tensor in network.state_dict().items()})
    return network, policy


@all_libraries
@all_outputs
def test_has_the_outputs_and_values_of_its_network(config: QNetworkConfig, num_threads: int | None) -> None:
    network, policy = make_pair(config, num_threads)
    obs = make_batch()[OBS]
    with torch.inference_mode():
        expected = network.outputs(torch.from_numpy(obs))
        expected_values = network.values(expected).numpy()
    actions, outputs = policy.act(obs, NO_RESET, 0)
    assert outputs[Q_VALUES].reshape(expected.shape) == pytest.approx(expected.numpy(), abs=1e-6)
    assert policy.action_values(obs) == pytest.approx(expected_values, abs=1e-5)
    assert actions.tolist() == policy.compute_actions(obs).tolist() == expected_values.argmax(axis=1).tolist()
    assert len(set(actions.tolist())) > 1 or config is not NETWORK
    assert actions.dtype == np.int64


@all_libraries
@all_outputs
def test_priorities_are_the_losses_of_its_own_network(config: QNetworkConfig, num_threads: int | None) -> None:
    network, policy = make_pair(config, num_threads)
    batch = make_batch()
    rows = {name: torch.from_numpy(batch[name]) for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS)}
    expected = row_losses(network, network, rows, double_q=False).td_errors
    assert policy.postprocess(batch)[TD_ERRORS] == pytest.approx(expected.numpy(), abs=1e-5)


def test_td_errors_by_hand() -> None:
    columns = {
        Q_VALUES: np.array([[1.0, 5.0], [2.0, -1.0]], np.float32),
        ACTIONS: np.array([1, 0]),
        REWARDS: np.array([1.0, -3.0], np.float32),
        DISCOUNTS: np.array([0.5, 0.0], np.float32),
        NEW_Q_VALUES: np.array([[4.0, 6.0], [9.0, 9.0]], np.float32),
    }
    assert make_pair(NETWORK)[1].postprocess(SampleBatch(columns))[TD_ERRORS].tolist() == [1.0, 5.0]


@all_outputs
def test_a_policy_makes_the_same_priorities_of_what_it_saw_as_of_looking_again(config: QNetworkConfig) -> None:
    _, policy = make_pair(config)
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


@pytest.fixture
def weights() -> Weights:
    return make_learner(seed=3).get_weights()


def make_policy(weights: Weights, worker_side_prioritization: bool = True) -> DQNPolicy:
    policy = DQNPolicy(NETWORK, worker_side_prioritization=worker_side_prioritization)
    policy.set_weights(weights)
    return policy


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


@pytest.mark.parametrize("num_threads", [1, 2], ids=["numpy", "torch"])
def test_it_acts_in_place_with_live_weights_and_leaves_them_alone(weights: Weights, num_threads: int) -> None:
    live = LiveWeights({name: array.copy() for name, array in weights.items()})
    obs = make_batch()[OBS]
    policy = DQNPolicy(NETWORK, num_threads=num_threads)
    policy.set_weights(live)
    assert policy.action_values(obs) == pytest.approx(make_policy(weights).action_values(obs), abs=1e-6)
    for array in live.values():
        array[:] = 0.0
    policy.set_weights(live)
    assert not policy.action_values(obs).any()
    policy.set_weights(weights)
    assert policy.action_values(obs).any()
    assert not any(array.any() for array in live.values())


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_weights_raise_no_warning(weights: Weights) -> None:
    make_policy(read_only(weights))


@pytest.mark.usefixtures("warnings_each_time")
def test_read_only_batches_and_observations_raise_no_warning(weights: Weights) -> None:
    batch = SampleBatch(read_only(make_batch().columns))
    policy = make_policy(weights)
    policy.postprocess(batch)
    policy.compute_actions(batch[OBS])


NUM_ENVS = 200
NONE_RESETTING = np.zeros(NUM_ENVS, bool)
FIRST_RESETTING = np.arange(NUM_ENVS) == 0


def noisy(stddev: float, seed: int = 0) -> PolicyExploration:
    return PolicyExploration(ConstantEpsilon((0.0,) * NUM_ENVS), seed, 0, parameter_noise_stddev=stddev)


def make_perturbed(weights: Weights, stddev: float, seed: int = 0) -> DQNPolicy:
    policy = DQNPolicy(NETWORK, noisy(stddev, seed=seed), worker_side_prioritization=True)
    policy.set_weights(weights)
    return policy


def explored(policy: DQNPolicy, obs: Array, resetting: Array = NONE_RESETTING) -> list[int]:
    actions: list[int] = policy.act(obs, resetting, 0)[0].tolist()
    return actions


def test_parameter_noise_explores_and_nothing_else(weights: Weights) -> None:
    batch = make_batch(count=NUM_ENVS)
    plain, policy = make_policy(weights), make_perturbed(weights, stddev=1.0)
    greedy = plain.compute_actions(batch[OBS]).tolist()
    assert explored(policy, batch[OBS]) != greedy
    assert policy.compute_actions(batch[OBS]).tolist() == greedy
    assert policy.postprocess(batch)[TD_ERRORS] == pytest.approx(plain.postprocess(batch)[TD_ERRORS], abs=1e-6)


def test_parameter_noise_lasts_until_the_first_env_resets(weights: Weights) -> None:
    obs = make_batch(count=NUM_ENVS)[OBS]
    policy = make_perturbed(weights, stddev=1.0)
    first = explored(policy, obs)
    assert explored(policy, obs, ~FIRST_RESETTING) == first
    second = explored(policy, obs, FIRST_RESETTING)
    assert second != first
    # An agent that comes and goes rests for several steps.
    assert explored(policy, obs, FIRST_RESETTING) == second
    assert explored(policy, obs) == second
    assert explored(policy, obs, FIRST_RESETTING) != second


def test_parameter_noise_lies_on_the_newest_weights(weights: Weights) -> None:
    newer = make_learner(seed=4).get_weights()
    obs = make_batch(count=NUM_ENVS)[OBS]
    policy, other = make_perturbed(weights, stddev=0.1), make_perturbed(newer, stddev=0.1)
    assert explored(policy, obs) != explored(other, obs)
    policy.set_weights(newer)
    assert explored(policy, obs) == explored(other, obs)


def test_parameter_noise_goes_by_its_seed(weights: Weights) -> None:
    def played(seed: int) -> list[list[int]]:
        policy = make_perturbed(weights, stddev=1.0, seed=seed)
        steps = [
            (make_batch(step, NUM_ENVS)[OBS], FIRST_RESETTING if step % 7 == 6 else NONE_RESETTING)
            for step in range(50)
        ]
        return [explored(policy, *step) for step in steps]

    assert played(seed=1) == played(seed=1)
    assert played(seed=1) != played(seed=2)


@pytest.mark.parametrize(("stddev", "epsilon"), [(0.3, 0.0001), (0.03, 1.0)])
def test_parameter_noise_becomes_as_strong_as_epsilon(weights: Weights, stddev: float, epsilon: float) -> None:
    obs = make_batch(count=NUM_ENVS)[OBS]
    network = make_acting_network(NETWORK, noisy(stddev), num_threads=None)
    network.load(weights)
    greedy = network.outputs(obs).argmax(axis=1)
    agreeing: list[float] = []
    for step in range(1500):
        resetting = FIRST_RESETTING if step % 10 == 9 else NONE_RESETTING
        perturbed = network.exploring_outputs(obs, np.full(NUM_ENVS, epsilon), resetting)
        agreeing.append(float((perturbed.argmax(axis=1) == greedy).mean()))
    before, after = np.mean(agreeing[:100]), np.mean(agreeing[-100:])
    assert (after > before + 0.2) if epsilon < 0.5 else (after < before - 0.15)
