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
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from torch import nn

from rlexp.agents.actor_critic.policy import ActorCriticPolicy
from rlexp.agents.ddpg.policy import Players
from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.agents.pqn.players import PQNPolicy
from rlexp.agents.replay_memory_probe import RandomPolicy
from rlexp.config.keys.pqn import PQNConfig, PQNModelConfig
from rlexp.models.action_distributions import actions_of
from rlexp.models.network_config import QNetworkConfig, torso_config_of
from rlexp.models.networks import ActorCritic, PolicyNetwork, QNetwork
from rlexp.policy import Policy, Weights
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch, new
from tests.lab import critics, pqn
from tests.lab.doubles import NUM_ACTIONS, CountingPolicy, ScriptedPolicy, StepPolicy
from tests.lab.dqn import NETWORK, make_batch
from tests.lab.ppo import CHOICES, NUMBERS, network_config

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
    action_space: Space[Any]
    observation_shape: tuple[int, ...] = (3,)
    """Of images, if it is not that of vectors."""


def network_weights(make: Callable[[], nn.Module], number: int) -> Weights:
    torch.manual_seed(number)
    return {name: parameter.detach().numpy().copy() for name, parameter in make().named_parameters()}


def dqn(config: QNetworkConfig, exploration: PolicyExploration | None, prioritizes: bool = True) -> Subject:
    make = partial(DQNPolicy, config, exploration, prioritizes)
    return Subject(make, partial(network_weights, partial(QNetwork, config)), Discrete(config.num_actions))


def ppo(
    action_space: Space[Any], seed: int | None = 0, observation_shape: tuple[int, ...] = (3,), **model: Any
) -> Subject:
    config = network_config(action_space, observation_shape, **model)
    make = partial(ActorCriticPolicy, config, actions_of(action_space), seed)
    weights = partial(network_weights, partial(ActorCritic, config))
    return Subject(make, weights, action_space, observation_shape)


def pqn_policy(
    exploration: PolicyExploration | None, observation_shape: tuple[int, ...] = (3,), **model: Any
) -> Subject:
    torso = torso_config_of(PQNConfig(model=PQNModelConfig(**{"fcnet_hiddens": (16,), **model})))
    config = replace(pqn.NETWORK, observation_shape=observation_shape, torso=torso)
    weights = partial(network_weights, partial(QNetwork, config))
    return Subject(partial(PQNPolicy, config, exploration), weights, Discrete(4), observation_shape)


def critic_policy(
    run: str, action_space: Space[Any] = NUMBERS, observation_shape: tuple[int, ...] = (3,), **keys: Any
) -> Subject:
    policies = critics.policies_of(run, action_space, observation_shape, num_envs_per_worker=NUM_ENVS, **keys)
    make = Players(policies).parts(0, 0, None).make_policy
    weights = partial(network_weights, partial(PolicyNetwork, policies.network))
    return Subject(make, weights, action_space, observation_shape)


def version(number: int) -> Weights:
    return {"version": np.array(float(number))}


SUBJECTS = {
    "numpy": dqn(NETWORK, EXPLORATION),
    "numpy, greedy": dqn(NETWORK, None),
    "numpy, priorities not of workers": dqn(NETWORK, EXPLORATION, prioritizes=False),
    "noise": critic_policy("DDPG"),
    "gaussian noise": critic_policy("TD3"),
    "noise, uniform at first": critic_policy("DDPG", pure_exploration_steps=10**6),
    "noise, greedy": critic_policy("DDPG", explore=False),
    "noise, torch": critic_policy("DDPG", observation_shape=(12, 12, 3)),
    "squashed": critic_policy("SAC"),
    "choices of SAC": critic_policy("SAC", Discrete(4)),
    "torch": dqn(DISTRIBUTION, EXPLORATION),
    "softmax": dqn(NETWORK, replace(EXPLORATION, softmax_temp=0.5)),
    "noisy": dqn(NOISY, EXPLORATION),
    "parameter noise": dqn(NETWORK, replace(EXPLORATION, parameter_noise_stddev=0.5)),
    "PPO, choice": ppo(CHOICES),
    "PPO, greedy": ppo(CHOICES, seed=None),
    "PPO, choices": ppo(MultiDiscrete([3, 4], start=[1, -1]), shares_torso=True),
    "PPO, bits": ppo(MultiBinary((2, 2))),
    "PPO, numbers": ppo(NUMBERS),
    "PPO, one number": ppo(Box(-1.0, 1.0, (), np.float64)),
    "PPO, images": ppo(NUMBERS, observation_shape=(10, 10, 3), conv_filters=((4, (4, 4), 4),)),
    "PQN": pqn_policy(EXPLORATION),
    "PQN, greedy": pqn_policy(None),
    "PQN, images": pqn_policy(EXPLORATION, (10, 10, 3), conv_filters=((4, (4, 4), 4),)),
    "random": Subject(lambda: RandomPolicy(Discrete(4)), version, Discrete(4)),
    "scripted": Subject(partial(ScriptedPolicy, EXPLORATION), version, Discrete(NUM_ACTIONS)),
    "scripted steps": Subject(partial(StepPolicy, EXPLORATION), version, Discrete(NUM_ACTIONS)),
    "scripted counts": Subject(partial(CountingPolicy, EXPLORATION), version, Discrete(NUM_ACTIONS)),
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


def observations(subject: Subject, step: int) -> Array:
    if len(subject.observation_shape) == 1:
        return make_batch(step, NUM_ENVS)[OBS]
    shape = (NUM_ENVS, *subject.observation_shape)
    return np.random.default_rng(step).integers(0, 256, shape, np.uint8)


def played(subject: Subject, policy: Policy, steps: range) -> list[list[Any]]:
    """Return the actions of ``steps``; in some of them, some envs reset."""
    envs = np.arange(NUM_ENVS)
    acts = [policy.act(observations(subject, step), envs == step % 12 - 5, step * NUM_ENVS) for step in steps]
    return [actions.tolist() for actions, _ in acts]


def remembered(subject: Subject, policy: Policy) -> SampleBatch:
    """Return rows with the columns that a fold makes of the policy's outputs."""
    obs, new_obs = observations(subject, 0), observations(subject, 1)
    columns = {OBS: obs, NEW_OBS: new_obs, ACTIONS: policy.compute_actions(obs)}
    new_outputs = {new(name): output for name, output in policy.outputs(new_obs).items()}
    return make_batch(count=NUM_ENVS).with_columns(**columns, **policy.outputs(obs), **new_outputs)


def test_there_is_an_action_of_the_space_for_each_observation(subject: Subject) -> None:
    policy, space = made(subject, 1), subject.action_space
    obs, resetting = observations(subject, 0), np.zeros(NUM_ENVS, bool)
    for actions in (policy.compute_actions(obs), policy.act(obs, resetting, 0)[0]):
        assert actions.shape == (NUM_ENVS, *(space.shape or ()))
        assert actions.dtype == space.dtype


def test_the_outputs_keep_their_names_and_have_a_row_for_each_observation(subject: Subject) -> None:
    policy = made(subject, 1)
    names = set(policy.outputs(observations(subject, 0)))
    for step in range(STEPS):
        _, outputs = policy.act(observations(subject, step), np.full(NUM_ENVS, step == 3), step)
        assert set(outputs) == names
        assert all(len(output) == NUM_ENVS for output in outputs.values())


def test_postprocess_keeps_the_rows(subject: Subject) -> None:
    policy = made(subject, 1)
    batch = remembered(subject, policy)
    found = policy.postprocess(batch)
    for name in {OBS, ACTIONS, NEW_OBS, REWARDS, DISCOUNTS}:
        np.testing.assert_array_equal(found[name], batch[name])


def test_postprocess_reads_no_observations_unless_it_says_so(subject: Subject) -> None:
    policy = made(subject, 1)
    batch = remembered(subject, policy)
    if not policy.postprocess_reads_obs:
        numbers = np.zeros((NUM_ENVS, 1), np.int64)
        expected = policy.postprocess(batch)
        found = policy.postprocess(batch.with_columns(obs=numbers, new_obs=numbers))
        assert set(found) == set(expected)
        for name in set(expected) - {OBS, NEW_OBS}:
            np.testing.assert_array_equal(found[name], expected[name])


def test_only_the_newest_weights_act(subject: Subject) -> None:
    obs = observations(subject, 0)
    actions = made(subject, 1, 2).compute_actions(obs)
    assert actions.tolist() == made(subject, 2).compute_actions(obs).tolist()


def test_a_policy_continues_from_the_state_of_another(subject: Subject) -> None:
    policy, other = made(subject, 1), made(subject, 1)
    played(subject, policy, range(STEPS))
    state: dict[str, Any] = deepcopy(policy.state())
    expected = played(subject, policy, range(STEPS, 2 * STEPS))
    other.load(state)
    assert played(subject, other, range(STEPS, 2 * STEPS)) == expected
