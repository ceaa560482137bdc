"""The keys that say how PPO collects a train batch, with which processes, and what is in its rows.

And the keys of an LSTM under ``config.model``. Each test fails if its key is ignored.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.models.memory import PREVIOUS, SEQUENCE_STARTS
from rlexp.rollout.folds import ADVANTAGES, DIST_INPUTS, LOGP, VALUE_TARGETS, VF_PREDS
from rlexp.sample_batch import ACTIONS, OBS, Array, SampleBatch
from tests.lab.agents import (
    Update,
    endless_observations,
    poll,
    rows,
    standardised,
    updates_of,
    weights_of,
)
from tests.lab.envs import COUNTING_ENV, episode_length, episode_terminates
from tests.lab.ppo import LENGTH, NUM_ENVS, WHOLE_EPISODES, make_ppo, network_of, sample_ppo


def env_ids(batch: SampleBatch) -> set[float]:
    return set(batch[OBS][:, 0].tolist())


@pytest.mark.key("train_batch_size", "sample_batch_size", "num_envs_per_worker", "num_workers")
@pytest.mark.parametrize(
    ("size", "num_workers", "num_envs", "length", "rows"),
    [
        (40, 0, 2, 10, 40),
        (41, 0, 2, 10, 60),
        (40, 2, 2, 5, 40),
        (45, 2, 2, 5, 50),
        (40, 3, 2, 10, 60),
        (40, 2, 1, 40, 80),
    ],
)
def test_train_batch_is_whole_fragments_of_each_worker(
    size: int, num_workers: int, num_envs: int, length: int, rows: int
) -> None:
    agent = make_ppo(
        train_batch_size=size, num_workers=num_workers, num_envs_per_worker=num_envs, sample_batch_size=length
    )
    updates = updates_of(agent, 3)
    assert [update.batch.count for update in updates] == [rows] * 3
    assert [update.num_steps_sampled for update in updates] == [rows, 2 * rows, 3 * rows]
    assert [len(env_ids(update.batch)) for update in updates] == [max(num_workers, 1) * num_envs] * 3


@pytest.mark.key("sample_batch_size")
@pytest.mark.parametrize(("num_workers", "num_envs", "length"), [(0, 1, 40), (2, 1, 20), (3, 2, 7)])
def test_auto_divides_a_train_batch_among_all_envs(num_workers: int, num_envs: int, length: int) -> None:
    changes: dict[str, Any] = {"num_workers": num_workers, "num_envs_per_worker": num_envs}
    count = max(num_workers, 1)
    samples = sample_ppo(1, sample_batch_size="auto", **changes)[:count]
    assert [info.num_env_steps for _, info in samples] == [length * num_envs] * count
    (update,) = updates_of(make_ppo(sample_batch_size="auto", **changes), 1)
    assert update.batch.count == length * num_envs * count


def acted_by(agent: Any, update: Update, batch: SampleBatch) -> bool:
    """Return whether a train batch was sampled with the weights that the learner had before ``update``."""
    with torch.no_grad():
        inputs = network_of(agent, update.before)(torch.tensor(batch[OBS]))[0].numpy()
    return np.allclose(inputs, batch[DIST_INPUTS], rtol=1e-4, atol=1e-5)


@pytest.mark.key("sample_async")
@pytest.mark.parametrize(("num_workers", "sample_async"), [(2, False), (2, True), (0, True)])
def test_train_batches_are_sampled_ahead_with_the_weights_from_before(num_workers: int, sample_async: bool) -> None:
    agent = make_ppo("CartPole-v1", num_workers=num_workers, sample_async=sample_async)
    updates = updates_of(agent, 4)
    is_ahead = sample_async and num_workers > 0
    assert acted_by(agent, updates[0], updates[0].batch)
    for before, update in pairwise(updates):
        assert acted_by(agent, update, update.batch) == (not is_ahead)
        assert acted_by(agent, before, update.batch) == is_ahead


@pytest.mark.key("timesteps_per_iteration")
@pytest.mark.parametrize(("timesteps", "sampled"), [(0, 40), (None, 40), (40, 40), (100, 120)])
def test_an_iteration_is_whole_train_batches(timesteps: int | None, sampled: int) -> None:
    agent = make_ppo(timesteps_per_iteration=timesteps)
    rows = [agent.train() for _ in range(2)]
    assert [row["timesteps_this_iter"] for row in rows] == [sampled] * 2
    assert [row["info"]["num_steps_trained"] for row in rows] == [sampled, 2 * sampled]


@pytest.mark.key("num_cpus_for_driver")
@pytest.mark.usefixtures("threads")
def test_the_driver_learns_with_as_many_threads_as_it_reserves_cpus() -> None:
    make_ppo(num_cpus_for_driver=3).stop()
    assert torch.get_num_threads() == 3


@pytest.mark.key("num_threads_per_worker")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("given", "threads_used"), [(None, 4), (1, 4), (2, 2)])
def test_only_workers_with_several_threads_act_in_torch(given: int | None, threads_used: int) -> None:
    # Workers are placed in this process, after the driver set its own threads; NumPy leaves those of torch alone.
    make_ppo(num_workers=1, num_threads_per_worker=given, num_cpus_for_driver=4).stop()
    assert torch.get_num_threads() == threads_used


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


def first_rows(**model: Any) -> SampleBatch:
    """Return the rows of one fragment, which has no end of an episode."""
    ((batch, _),) = sample_ppo(1, model={"fcnet_hiddens": [8], "use_lstm": True, **model})
    return batch


@pytest.mark.key("model.use_lstm", "model.lstm_cell_size")
def test_a_network_has_an_lstm_of_that_size() -> None:
    assert "memory.lstm.weight_hh_l0" not in weights_of(make_ppo())
    recurrent = make_ppo(model={"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 6})
    assert weights_of(recurrent)["memory.lstm.weight_hh_l0"].shape == (4 * 6, 6)


@pytest.mark.key("model.max_seq_len")
@pytest.mark.parametrize(("longest", "starts"), [(4, [0, 4, 8]), (20, [0])])
def test_fragments_are_cut_into_sequences(longest: int, starts: list[int]) -> None:
    found = np.flatnonzero(first_rows(max_seq_len=longest)[SEQUENCE_STARTS])
    assert found.tolist() == [env * LENGTH + start for env in range(NUM_ENVS) for start in starts]


@pytest.mark.key("model.lstm_use_prev_action", "model.lstm_use_prev_reward")
def test_the_lstm_sees_the_action_and_the_reward_before() -> None:
    assert PREVIOUS not in first_rows()
    actions = first_rows(lstm_use_prev_action=True)
    width = actions[PREVIOUS].shape[1]
    seen = np.eye(width, dtype=np.float32)[actions[ACTIONS][: LENGTH - 1]]
    np.testing.assert_array_equal(actions[PREVIOUS][1:LENGTH], seen)
    rewards = first_rows(lstm_use_prev_reward=True)
    assert rewards[PREVIOUS].shape == (NUM_ENVS * LENGTH, 1)
    assert not rewards[PREVIOUS][0].any()
    assert rewards[PREVIOUS][1:LENGTH].any()
