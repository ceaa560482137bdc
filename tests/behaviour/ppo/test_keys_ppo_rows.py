"""The keys of PPO that say what is in the rows of a train batch; each test fails where its key is ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array
from tests.behaviour.learning_agents import updates_of
from tests.behaviour.ppo.ppo_agents import (
    LENGTH,
    NUM_ENVS,
    WHOLE_EPISODES,
    make_ppo,
    network_of,
    sample_ppo,
)
from tests.behaviour.rollout_agents import endless_observations, poll, rows, standardised
from tests.envs import COUNTING_ENV, episode_length, episode_terminates

MEAN_STD: dict[str, Any] = {"observation_filter": "MeanStdFilter"}


def returns(obs: Array, gamma: float) -> Array:
    """Return the discounted sums of a CountingEnv's rewards from ``obs [B, 3]`` to the end of the episode."""
    sums = []
    for episode, step in obs[:, 1:].astype(int):
        rewards = np.arange(step + 1, episode_length(episode) + 1)
        sums.append(float((rewards * gamma ** np.arange(len(rewards))).sum()))
    return np.array(sums)


@pytest.mark.key("gamma", "lambda", "use_gae")
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.9, 1.0), (0.9, 0.5), (0.6, 0.5)])
def test_advantages_are_sums_of_td_errors_by_gamma_and_lambda(gamma: float, lambda_: float) -> None:
    # The first value of the next fragment is the one that the last TD error of a fragment needs.
    changes: dict[str, Any] = {"num_envs_per_worker": 1, "gamma": gamma, "lambda": lambda_}
    (first, _), (second, _) = sample_ppo(2, **changes)
    values = np.append(first[VF_PREDS], second[VF_PREDS][0])
    td_errors = 1.0 + gamma * values[1:] - values[:-1]
    for step in range(LENGTH):
        decays = (gamma * lambda_) ** np.arange(LENGTH - step)
        assert first[ADVANTAGES][step] == pytest.approx((decays * td_errors[step:]).sum(), rel=1e-4)
    np.testing.assert_allclose(first[VALUE_TARGETS], first[ADVANTAGES] + values[:-1], rtol=1e-4)


@pytest.mark.key("use_gae", "use_critic", "gamma", "lambda")
@pytest.mark.parametrize("use_critic", [True, False])
def test_without_gae_targets_are_returns_and_advantages_what_the_critic_leaves(use_critic: bool) -> None:
    # An episode that is truncated has the value of its last observation after it, unless there is no critic.
    changes: dict[str, Any] = {"gamma": 0.9, "lambda": 0.3, "use_critic": use_critic, **WHOLE_EPISODES}
    samples = sample_ppo(2, COUNTING_ENV, **changes)
    obs, advantages, targets = (rows(samples, name) for name in (OBS, ADVANTAGES, VALUE_TARGETS))
    is_known = np.array([episode_terminates(int(episode)) or not use_critic for episode in obs[:, 1]])
    expected = returns(obs, 0.9)[is_known]
    np.testing.assert_allclose(targets[is_known], expected, rtol=1e-4)
    values = rows(samples, VF_PREDS)[is_known] if use_critic else 0.0
    np.testing.assert_allclose(advantages[is_known], expected - values, rtol=1e-4)
    if use_critic:
        assert not np.allclose(targets[~is_known], returns(obs, 0.9)[~is_known], rtol=1e-3)


@pytest.mark.key("horizon")
def test_horizon_truncates_so_the_value_of_the_last_observation_counts() -> None:
    changes: dict[str, Any] = {"horizon": 4, "gamma": 0.9, "num_envs_per_worker": 1, "lambda": 0.0}
    agent = make_ppo(**changes)
    with agent.optimizer.paused() as learner:
        network = network_of(agent, learner.state_dict())
    ((batch, _),) = poll(agent)
    agent.stop()
    last = batch[OBS][:, 2] == 3
    with torch.no_grad():
        following = network(torch.tensor(batch[OBS] + np.array([0, 0, 1], np.float32)))[1].numpy()
    assert last.sum() == 2
    assert batch.count == LENGTH - 2, "the steps that reset the env are no rows"
    np.testing.assert_allclose(batch[ADVANTAGES], 1.0 + 0.9 * following - batch[VF_PREDS], rtol=1e-4, atol=1e-5)


@pytest.mark.key("clip_rewards")
@pytest.mark.parametrize(
    ("clip_rewards", "low", "high"), [(None, 1, 12), (False, 1, 12), (True, 1, 1), (2.5, 1, 2.5), ((4, 8), 4, 8)]
)
def test_advantages_are_of_clipped_rewards_and_the_results_of_whole_ones(
    clip_rewards: Any, low: float, high: float
) -> None:
    changes: dict[str, Any] = {"gamma": 0.0, "use_critic": False, **WHOLE_EPISODES}
    samples = sample_ppo(3, COUNTING_ENV, clip_rewards=clip_rewards, **changes)
    np.testing.assert_allclose(rows(samples, ADVANTAGES), (rows(samples)[:, 2] + 1).clip(low, high))
    assert {value for _, info in samples for value in info.episodes.returns.tolist()} == {6.0, 28.0, 78.0}


@pytest.mark.key("batch_mode")
@pytest.mark.parametrize(("batch_mode", "is_whole"), [("complete_episodes", True), ("truncate_episodes", False)])
def test_whole_episodes_are_learned_where_batch_mode_says_so(batch_mode: str, is_whole: bool) -> None:
    batches = [update.batch for update in updates_of(make_ppo(COUNTING_ENV, batch_mode=batch_mode), 3)]
    episodes = [(tuple(row[:2]), row[2]) for batch in batches for row in batch[OBS].astype(int).tolist()]
    assert len(set(episodes)) == len(episodes), "no row is learned in two train batches"
    steps_of = [
        (batch[OBS][:, 1] == episode).sum() / NUM_ENVS / episode_length(int(episode))
        for batch in batches
        for episode in set(batch[OBS][:, 1].tolist())
    ]
    assert all(float(share).is_integer() for share in steps_of) == is_whole
    assert all(batch.count >= 40 for batch in batches) or not is_whole


@pytest.mark.key("observation_filter")
def test_rows_have_the_standardised_observations_that_the_policy_saw() -> None:
    raw, filtered = (rows(sample_ppo(2, num_envs_per_worker=3, **changes)) for changes in ({}, MEAN_STD))
    for step in range(1, 20):
        now, so_far = slice(3 * step, 3 * step + 3), slice(0, 3 * step + 3)
        np.testing.assert_allclose(filtered[now], standardised(raw[now], raw[so_far]), rtol=1e-4, atol=1e-5)
    agent = make_ppo(**MEAN_STD)
    with agent.optimizer.paused() as learner:
        network = network_of(agent, learner.state_dict())
    ((batch, _),) = poll(agent)
    agent.stop()
    with torch.no_grad():
        np.testing.assert_allclose(batch[DIST_INPUTS], network(torch.tensor(batch[OBS]))[0].numpy(), atol=1e-5)


@pytest.mark.key("observation_filter", "synchronize_filters")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("synchronize", [True, False])
def test_filters_are_merged_after_each_train_batch(num_workers: int, synchronize: bool) -> None:
    count = max(num_workers, 1)
    ids = [batch[OBS][:NUM_ENVS, 0] for batch, _ in sample_ppo(1, num_workers=num_workers)[:count]]
    agent = make_ppo(num_workers=num_workers, synchronize_filters=synchronize, **MEAN_STD)
    agent.train()
    start = agent.optimizer.counters.num_steps_sampled // (NUM_ENVS * count)
    fragments = poll(agent)[:count]  # nothing was in flight when the filters were merged
    agent.stop()
    for mine, (batch, _) in zip(ids, fragments, strict=True):
        found = batch[OBS].reshape(LENGTH, NUM_ENVS, 3)
        # The first observation of a fragment was seen, and so standardised, at the end of the one before.
        for t in range(1, LENGTH):
            raw = np.array([(env_id, 0, start + t) for env_id in mine])
            seen = (np.concatenate(ids), start) if synchronize else (mine, start + t)
            np.testing.assert_allclose(found[t], standardised(raw, endless_observations(*seen)), rtol=1e-4, atol=1e-4)


@pytest.mark.key("explore")
@pytest.mark.parametrize("explore", [True, False])
def test_workers_draw_their_actions_where_they_explore(explore: bool) -> None:
    ((batch, _),) = sample_ppo(1, COUNTING_ENV, explore=explore, sample_batch_size=20)
    likely = batch[DIST_INPUTS].argmax(axis=1)
    assert (batch[ACTIONS] == likely).all() == (not explore)
    probabilities = np.exp(batch[DIST_INPUTS]) / np.exp(batch[DIST_INPUTS]).sum(axis=1, keepdims=True)
    taken = probabilities[np.arange(batch.count), batch[ACTIONS]]
    np.testing.assert_allclose(batch[LOGP], np.log(taken), rtol=1e-4)


@pytest.mark.key("seed")
def test_other_seeds_play_other_envs_and_draw_other_actions() -> None:
    first, again, other = (
        [rows(sample_ppo(1, seed=seed), name).tolist() for name in (OBS, ACTIONS)] for seed in (3, 3, 4)
    )
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
