"""What every Policy promises, for the policies that act and for the doubles of tests."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.replay_memory_probe import RandomPolicy
from rlexp.models import QNetworkConfig
from rlexp.models.q_network import QNetwork
from rlexp.policy import Policy, Weights
from rlexp.sample_batch import NEW_OBS, OBS, Array, SampleBatch, new
from tests.doubles.policies import CountingPolicy, ScriptedPolicy, StepPolicy
from tests.unit.agents.batches import NETWORK, make_batch

NUM_ENVS = 8
STEPS = 15
"""So many that parameter noise adapts, and its first env resets."""
DISTRIBUTION = replace(NETWORK, head=replace(NETWORK.head, num_atoms=5))
NOISY = replace(NETWORK, head=replace(NETWORK.head, noisy=True))
EXPLORATION = PolicyExploration(ConstantEpsilon((0.3,) * NUM_ENVS), seed=0, worker_index=1)


@dataclass(frozen=True)
class Subject:
    """A kind of policy, and weights for it."""

    make: Callable[[], Policy]
    weights: Callable[[int], Weights]
    """By their number; later ones are newer."""


def network_weights(config: QNetworkConfig, number: int) -> Weights:
    torch.manual_seed(number)
    return {name: parameter.detach().numpy().copy() for name, parameter in QNetwork(config).named_parameters()}


def dqn(config: QNetworkConfig, exploration: PolicyExploration | None, prioritizes: bool = True) -> Subject:
    make = partial(DQNPolicy, config, exploration, prioritizes)
    return Subject(make, partial(network_weights, config))


def version(number: int) -> Weights:
    return {"version": np.array(float(number))}


SUBJECTS = {
    "numpy": dqn(NETWORK, EXPLORATION),
    "numpy, greedy": dqn(NETWORK, None),
    "numpy, priorities not of workers": dqn(NETWORK, EXPLORATION, prioritizes=False),
    "torch": dqn(DISTRIBUTION, EXPLORATION),
    "softmax": dqn(NETWORK, replace(EXPLORATION, softmax_temp=0.5)),
    "noisy": dqn(NOISY, EXPLORATION),
    "parameter noise": dqn(NETWORK, replace(EXPLORATION, parameter_noise_stddev=0.5)),
    "random": Subject(lambda: RandomPolicy(Discrete(4)), version),
    "scripted": Subject(partial(ScriptedPolicy, EXPLORATION), version),
    "scripted steps": Subject(partial(StepPolicy, EXPLORATION), version),
    "scripted counts": Subject(partial(CountingPolicy, EXPLORATION), version),
}


@pytest.fixture(params=SUBJECTS.values(), ids=tuple(SUBJECTS))
def subject(request: pytest.FixtureRequest) -> Subject:
    found: Subject = request.param
    return found


def made(subject: Subject, *numbers: int) -> Policy:
    """Return a new policy that was given the weights of ``numbers``, in order."""
    policy = subject.make()
    for number in numbers:
        policy.set_weights(subject.weights(number))
    return policy


def observations(step: int) -> Array:
    return make_batch(step, NUM_ENVS)[OBS]


def played(policy: Policy, steps: range) -> list[list[int]]:
    """Return the actions of ``steps``; in some of them, some envs reset."""
    acts = [policy.act(observations(step), np.arange(NUM_ENVS) == step % 12 - 5, step * NUM_ENVS) for step in steps]
    return [actions.tolist() for actions, _ in acts]


def remembered(policy: Policy, batch: SampleBatch) -> SampleBatch:
    """Return ``batch`` with the columns that a fold makes of the policy's outputs."""
    outputs = dict(policy.outputs(batch[OBS]))
    new_outputs = {new(name): output for name, output in policy.outputs(batch[NEW_OBS]).items()}
    return batch.with_columns(**outputs, **new_outputs)


def test_there_is_an_action_for_each_observation(subject: Subject) -> None:
    policy = made(subject, 1)
    resetting = np.zeros(NUM_ENVS, bool)
    for actions in (policy.compute_actions(observations(0)), policy.act(observations(0), resetting, 0)[0]):
        assert actions.shape == (NUM_ENVS,)
        assert np.issubdtype(actions.dtype, np.integer)


def test_the_outputs_keep_their_names_and_have_a_row_for_each_observation(subject: Subject) -> None:
    policy = made(subject, 1)
    names = set(policy.outputs(observations(0)))
    for step in range(STEPS):
        _, outputs = policy.act(observations(step), np.full(NUM_ENVS, step == 3), step)
        assert set(outputs) == names
        assert all(len(output) == NUM_ENVS for output in outputs.values())


def test_postprocess_keeps_the_rows(subject: Subject) -> None:
    policy = made(subject, 1)
    batch = make_batch(count=NUM_ENVS)
    found = policy.postprocess(remembered(policy, batch))
    for name in batch:
        np.testing.assert_array_equal(found[name], batch[name])


def test_postprocess_reads_no_observations_unless_it_says_so(subject: Subject) -> None:
    policy = made(subject, 1)
    batch = remembered(policy, make_batch(count=NUM_ENVS))
    if not policy.postprocess_reads_obs:
        numbers = np.zeros((NUM_ENVS, 1), np.int64)
        expected = policy.postprocess(batch)
        found = policy.postprocess(batch.with_columns(obs=numbers, new_obs=numbers))
        assert set(found) == set(expected)
        for name in set(expected) - {OBS, NEW_OBS}:
            np.testing.assert_array_equal(found[name], expected[name])


def test_only_the_newest_weights_act(subject: Subject) -> None:
    actions = made(subject, 1, 2).compute_actions(observations(0))
    assert actions.tolist() == made(subject, 2).compute_actions(observations(0)).tolist()


def test_a_policy_continues_from_the_state_of_another(subject: Subject) -> None:
    policy, other = made(subject, 1), made(subject, 1)
    played(policy, range(STEPS))
    state: dict[str, Any] = deepcopy(policy.state())
    expected = played(policy, range(STEPS, 2 * STEPS))
    other.load(state)
    assert played(other, range(STEPS, 2 * STEPS)) == expected
