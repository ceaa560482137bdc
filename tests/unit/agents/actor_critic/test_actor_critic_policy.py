"""PPO's policy: draws where workers explore, and acts greedily elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from rlexp.agents.actor_critic.policy import ActorCriticPolicy, StochasticPlayer
from rlexp.errors import NotFiniteError
from rlexp.models.action_distributions import actions_of
from rlexp.rollout.folds import DIST_INPUTS, LOGP, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from tests.lab.ppo import CHOICES, NUMBERS, make_learner, network_config

NUM_ENVS = 64


def make_policy(seed: int | None, num_threads: int | None = None) -> ActorCriticPolicy:
    policy = ActorCriticPolicy(network_config(CHOICES), actions_of(CHOICES), seed, num_threads)
    policy.set_weights(make_learner().get_weights())
    return policy


def observations() -> Array:
    return np.random.default_rng(0).normal(size=(NUM_ENVS, 3)).astype(np.float32)


def acted(policy: ActorCriticPolicy) -> list[int]:
    actions: list[int] = policy.act(observations(), np.zeros(NUM_ENVS, bool), 0)[0].tolist()
    return actions


def test_each_seed_draws_other_actions_and_none_draws_the_most_likely() -> None:
    assert acted(make_policy(0)) == acted(make_policy(0))
    assert acted(make_policy(0)) != acted(make_policy(1))
    greedy = make_policy(None)
    assert acted(greedy) == greedy.compute_actions(observations()).tolist() != acted(make_policy(0))


def test_a_player_that_explores_draws_by_its_own_seed() -> None:
    policy = make_policy(None)
    first, again, other = (StochasticPlayer(policy, seed).compute_actions(observations()) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert first.tolist() != policy.compute_actions(observations()).tolist()


def test_rows_have_the_log_probability_of_the_action_by_its_own_inputs() -> None:
    for space in (CHOICES, NUMBERS):
        policy = ActorCriticPolicy(network_config(space), actions_of(space), 0)
        policy.set_weights(make_learner(space).get_weights())
        obs = observations()
        actions, outputs = policy.act(obs, np.zeros(NUM_ENVS, bool), 0)
        batch = policy.postprocess(SampleBatch({OBS: obs, ACTIONS: actions, **outputs}))
        expected = actions_of(space).log_prob(outputs[DIST_INPUTS], actions)
        np.testing.assert_array_equal(batch[LOGP], expected)
        assert outputs[VF_PREDS].shape == (NUM_ENVS,)


def test_torch_acts_as_numpy_does() -> None:
    one, other = make_policy(0, num_threads=1), make_policy(0, num_threads=2)
    assert type(one._network) is not type(other._network)
    for name, output in one.outputs(observations()).items():
        np.testing.assert_allclose(other.outputs(observations())[name], output, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_finite_play_no_evaluation() -> None:
    policy = make_policy(None)
    policy.set_weights({name: np.full_like(array, np.nan) for name, array in make_learner().get_weights().items()})
    for player in (policy, StochasticPlayer(policy, 0)):
        with pytest.raises(NotFiniteError, match="outputs are NaN or infinite"):
            player.compute_actions(observations())
