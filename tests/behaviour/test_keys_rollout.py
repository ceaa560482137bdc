"""The keys that say how workers explore, and what they record and send; each test fails where its key is ignored."""

from __future__ import annotations

import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlexp.agents.agent import Agent
from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.agents.dqn import players
from rlexp.agents.dqn.exploration import EpsilonGreedy, epsilon_ladder
from rlexp.agents.dqn.players import DQNPolicies
from rlexp.agents.workers import ObservationFilters
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import EnvError, TrialError, UsageError
from rlexp.models.networks import QNetwork
from rlexp.rollout import fragment
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array
from rlexp.schedules import derive_seed
from tests.lab.agents import (
    NUM_ENVS,
    checkpoint_of,
    endless_observations,
    make_agent,
    make_apex,
    poll,
    rows,
    sample,
    standardised,
    weights_of,
)
from tests.lab.checkpoints import trained_with
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import (
    COUNTING_ENV,
    ENDLESS_ENV,
    ENV_IDS,
    IDENTITY_ENV,
    RAISING_ENV,
    IdentityEnv,
    episode_length,
    episode_terminates,
)

SIGMAS = 5


def acted_by(agent: Agent[Any], t: int = 0) -> list[list[float]]:
    """Return the ε of each env at the first step of each worker after ``t`` sampled steps; none where none explores."""
    acted: dict[EpsilonGreedy, list[float]] = {}
    explore = EpsilonGreedy.__call__

    def remember(self: EpsilonGreedy, actions: Array, epsilons: Array, *masks: Array | None) -> Array:
        acted.setdefault(self, epsilons.tolist())
        return explore(self, actions, epsilons, *masks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpsilonGreedy, "__call__", remember)
        poll(agent, t)
    return list(acted.values())


def epsilon_at(t: int, **changes: Any) -> float:
    """Return the ε of every env at its worker's first step after ``t`` sampled steps; the driver must report it too."""
    agent = make_agent(sample_batch_size=1, num_envs_per_worker=2, **changes)
    acted = acted_by(agent, t) or [[0.0, 0.0]]
    agent.optimizer.counters.num_steps_sampled = t
    reported = agent.stats()
    agent.stop()
    assert acted == [[reported["min_exploration"], reported["max_exploration"]]]
    assert acted[0][0] == acted[0][1]
    return acted[0][0]


@pytest.mark.key("exploration_initial_eps", "exploration_final_eps", "epsilon_timesteps")
@pytest.mark.parametrize(("t", "epsilon"), [(0, 0.8), (50, 0.5), (100, 0.2), (10**6, 0.2)])
def test_epsilon_goes_from_its_first_to_its_last_value(t: int, epsilon: float) -> None:
    schedule = {"exploration_initial_eps": 0.8, "exploration_final_eps": 0.2, "epsilon_timesteps": 100}
    assert epsilon_at(t, **schedule) == pytest.approx(epsilon)


@pytest.mark.key("exploration_fraction", "schedule_max_timesteps")
def test_epsilon_takes_a_fraction_of_the_whole_schedule() -> None:
    of_1000 = {"exploration_final_eps": 0.0, "schedule_max_timesteps": 1000}
    assert epsilon_at(100, exploration_fraction=0.2, **of_1000) == pytest.approx(0.5)
    assert epsilon_at(100, exploration_fraction=0.4, **of_1000) == pytest.approx(0.75)
    assert epsilon_at(100, exploration_fraction=0.2, exploration_final_eps=0.0, schedule_max_timesteps=2000) == 0.75


@pytest.mark.key("exploration_warmup_timesteps")
@pytest.mark.parametrize("timesteps", [0, 100])
def test_epsilon_keeps_its_first_value_during_warmup(timesteps: int) -> None:
    schedule = {
        "exploration_initial_eps": 0.8,
        "exploration_final_eps": 0.2,
        "epsilon_timesteps": timesteps,
        "exploration_warmup_timesteps": 500,
    }
    assert epsilon_at(499, **schedule) == 0.8
    assert epsilon_at(500 + timesteps // 2, **schedule) == pytest.approx(0.5 if timesteps else 0.2)
    assert epsilon_at(500 + timesteps, **schedule) == pytest.approx(0.2)


def play(**changes: Any) -> tuple[Array, Array, Array]:
    """Return observations, actions and Q values of a few thousand steps of a worker that does not learn."""
    agent = make_agent(IDENTITY_ENV, num_envs_per_worker=8, sample_batch_size=800, **changes)
    weights = weights_of(agent)
    network = QNetwork(agent.policies.network).eval()
    network.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
    ((batch, _),) = poll(agent)
    agent.stop()
    with torch.inference_mode():
        values = network(torch.tensor(batch[OBS])).numpy()
    return batch[OBS], batch[ACTIONS], values


def assert_frequencies(actions: Array, chances: Array) -> None:
    """Fail where an action is drawn more than SIGMAS deviations more or less often than its chance says."""
    counts = np.bincount(actions, minlength=len(chances))
    deviations = np.sqrt(len(actions) * chances * (1 - chances))
    assert (np.abs(counts - len(actions) * chances) <= SIGMAS * deviations + 1e-6).all(), (counts, chances)


@pytest.mark.key("soft_q", "softmax_temp")
@pytest.mark.parametrize("temperature", [0.02, 0.2, 50.0])
def test_soft_q_draws_by_the_softmax_of_the_values(temperature: float) -> None:
    obs, actions, values = play(soft_q=True, softmax_temp=temperature)
    for shown in range(IdentityEnv.NUM_ACTIONS):
        mine = obs[:, shown] == 1
        logits = values[mine][0] / temperature
        chances = np.exp(logits - logits.max())
        assert_frequencies(actions[mine], chances / chances.sum())


@pytest.mark.key("soft_q")
@pytest.mark.parametrize("per_worker_exploration", [False, True])
def test_soft_q_takes_the_place_of_epsilon(per_worker_exploration: bool) -> None:
    assert epsilon_at(0, soft_q=True, per_worker_exploration=per_worker_exploration) == 0.0


@pytest.mark.key("noisy")
@pytest.mark.parametrize("per_worker_exploration", [False, True])
def test_noise_takes_the_place_of_epsilon(per_worker_exploration: bool) -> None:
    assert epsilon_at(0, noisy=True, per_worker_exploration=per_worker_exploration) == 0.0


@pytest.mark.key("epsilon_with_noisy")
@pytest.mark.parametrize(("per_worker_exploration", "epsilon"), [(False, 0.7), (True, 0.4)])
def test_noise_leaves_epsilon_as_it_is_where_both_explore(per_worker_exploration: bool, epsilon: float) -> None:
    schedule = {"exploration_initial_eps": 0.7, "epsilon_ladder": "worker"}
    both = {"noisy": True, "epsilon_with_noisy": True, "per_worker_exploration": per_worker_exploration}
    assert epsilon_at(0, **both, **schedule) == epsilon


NO_EPSILON = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}


@pytest.mark.key("parameter_noise", "parameter_noise_initial_stddev")
def test_parameter_noise_perturbs_what_workers_do() -> None:
    _, actions, values = play(**NO_EPSILON)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))
    obs, actions, values = play(parameter_noise=True, **NO_EPSILON)
    different = {tuple(actions[shown] for shown in each) for each in np.split(np.arange(len(obs)), len(obs) // 8)}
    assert (actions != values.argmax(axis=1)).any()
    assert len(different) > 1
    _, actions, values = play(parameter_noise=True, parameter_noise_initial_stddev=1e-9, **NO_EPSILON)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))


@pytest.mark.key("parameter_noise")
def test_parameter_noise_leaves_epsilon_as_it_is() -> None:
    schedule = {"exploration_final_eps": 0.2, "epsilon_timesteps": 100}
    assert epsilon_at(0, parameter_noise=True, **schedule) == 1.0
    assert epsilon_at(50, parameter_noise=True, **schedule) == pytest.approx(0.6)
    assert epsilon_at(0, parameter_noise=True, per_worker_exploration=True, epsilon_ladder="worker") == 0.4


@pytest.mark.key("parameter_noise")
def test_parameter_noise_stays_out_of_evaluations() -> None:
    agents = [make_agent(IDENTITY_ENV, parameter_noise=noise) for noise in (False, True)]
    returns = [agent.evaluate(20).returns.tolist() for agent in agents]
    assert returns[0] == returns[1]
    for agent in agents:
        agent.stop()


@pytest.mark.key("explore")
@pytest.mark.parametrize(
    "changes", [{}, {"soft_q": True}, {"per_worker_exploration": True}, {"parameter_noise": True}], ids=str
)
def test_without_exploring_workers_act_greedily(changes: dict[str, Any]) -> None:
    _, explored, values = play(**changes)
    assert (explored != values.argmax(axis=1)).any()
    _, actions, values = play(explore=False, **changes)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))
    assert epsilon_at(0, explore=False, **changes) == 0.0


@pytest.mark.key("explore", "soft_q", "noisy")
@pytest.mark.parametrize("changes", [{"explore": False}, {"soft_q": True}, {"noisy": True}], ids=str)
def test_every_episode_counts_where_no_ladder_explores(changes: dict[str, Any]) -> None:
    agent = make_agent(per_worker_exploration=True, **changes)
    assert agent.reported_epsilon() == math.inf


def epsilons(**changes: Any) -> list[list[float]]:
    """Return the ε that each worker of an Ape-X agent acts with, which must be what the agent reports."""
    agent = make_apex(IDENTITY_ENV, **{"sample_batch_size": 1, **changes})
    acted = acted_by(agent)
    reported = agent.stats()
    agent.stop()
    assert reported["exploration_per_worker"] == {str(index): np.mean(each) for index, each in enumerate(acted)}
    assert (reported["min_exploration"], reported["max_exploration"]) == (min(map(min, acted)), max(map(max, acted)))
    return acted


@pytest.mark.key("per_worker_exploration", "epsilon_ladder", "num_workers")
def test_each_worker_or_each_env_has_its_rung() -> None:
    agent: dict[str, Any] = {"num_workers": 3, "num_envs_per_worker": 2, "per_worker_exploration": True}
    by_worker, by_env = epsilon_ladder(3), epsilon_ladder(6)
    assert epsilons(**agent) == [[epsilon] * 2 for epsilon in by_worker]
    assert epsilons(epsilon_ladder="worker", **agent)[0] == [0.4, 0.4]
    assert epsilons(epsilon_ladder="env", **agent) == [list(by_env[i : i + 2]) for i in (0, 2, 4)]
    alone = {**agent, "num_workers": 1}
    assert epsilons(**alone) == [list(epsilon_ladder(2))]
    assert epsilons(epsilon_ladder="worker", **alone) == [[0.4, 0.4]]


@pytest.mark.key("per_worker_exploration")
def test_without_a_ladder_all_workers_follow_the_schedule() -> None:
    found = epsilons(num_workers=2, per_worker_exploration=False)
    assert found == [[1.0, 1.0]] * 2


MEAN_STD: dict[str, Any] = {"observation_filter": "MeanStdFilter"}


@pytest.mark.key("sample_batch_size", "num_envs_per_worker")
@pytest.mark.parametrize(("length", "num_envs"), [(4, 1), (6, 3)])
def test_a_fragment_is_so_many_steps_of_so_many_envs(length: int, num_envs: int) -> None:
    ((batch, info),) = sample(1, ENDLESS_ENV, sample_batch_size=length, num_envs_per_worker=num_envs)
    assert info.num_env_steps == length * num_envs
    assert len(set(batch[OBS][:, 0].tolist())) == num_envs


@pytest.mark.key("n_step", "gamma")
@pytest.mark.parametrize(("n_step", "gamma"), [(1, 0.9), (3, 0.9), (3, 0.5)])
def test_rewards_are_folded_over_n_steps_with_gamma(n_step: int, gamma: float) -> None:
    samples = sample(4, n_step=n_step, gamma=gamma)
    for obs, reward, discount in zip(*(rows(samples, name) for name in (OBS, REWARDS, DISCOUNTS)), strict=True):
        episode, step = int(obs[1]), int(obs[2])
        m = min(n_step, episode_length(episode) - step)
        assert reward == pytest.approx(sum(gamma**k * (step + k + 1) for k in range(m)))
        terminated = step + m == episode_length(episode) and episode_terminates(episode)
        assert discount == pytest.approx(0.0 if terminated else gamma**m)


def unfinished(observations: Array) -> list[tuple[int, int]]:
    """Return the (env, episode) pairs of which ``observations`` hold some steps, but not all."""
    steps = Counter((int(env), int(episode)) for env, episode, _ in observations)
    return [pair for pair, count in steps.items() if count != episode_length(pair[1])]


@pytest.mark.key("batch_mode")
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("length", [1, 4, 25])
def test_complete_episodes_are_sent_whole_and_once(length: int, n_step: int) -> None:
    # Ten env steps per episode on the way: what one batch leaves, a later one must bring.
    samples = sample(30, batch_mode="complete_episodes", sample_batch_size=length, n_step=n_step)
    for batch, info in samples:
        assert unfinished(batch[OBS]) == []
        assert batch.count == info.num_rows >= length * NUM_ENVS
    everything = [tuple(row) for row in rows(samples).astype(int).tolist()]
    assert len(set(everything)) == len(everything)
    for env in {env for env, _, _ in everything}:
        episodes = sorted({episode for each, episode, _ in everything if each == env})
        assert episodes == list(range(len(episodes)))


@pytest.mark.key("batch_mode")
def test_truncated_fragments_are_sent_as_they_are() -> None:
    samples = sample(3, batch_mode="truncate_episodes", sample_batch_size=4)
    assert [bool(unfinished(batch[OBS])) for batch, _ in samples] == [False, True, True]


@pytest.mark.key("batch_mode", "n_step")
def test_both_modes_fold_the_same_transitions() -> None:
    whole = sample(6, batch_mode="complete_episodes", n_step=3)
    steps = sample(12, batch_mode="truncate_episodes", n_step=3)
    columns = (OBS, REWARDS, DISCOUNTS, NEW_OBS)

    def transitions(samples: Any) -> set[tuple[float, ...]]:
        return {tuple(np.hstack(row).tolist()) for row in zip(*(rows(samples, name) for name in columns), strict=True)}

    assert transitions(whole) <= transitions(steps)


@pytest.mark.key("batch_mode", "horizon")
def test_horizon_ends_the_episodes_that_are_waited_for() -> None:
    ((batch, info),) = sample(1, ENDLESS_ENV, batch_mode="complete_episodes", horizon=7, sample_batch_size=3)
    assert np.bincount(batch[OBS][:, 2].astype(int)).tolist() == [NUM_ENVS] * 7
    assert info.num_env_steps == 3 * 3 * NUM_ENVS - NUM_ENVS, "the reset after the seventh step is no step"


@pytest.mark.key("batch_mode")
def test_steps_whose_episodes_never_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment, "MAX_WAITING_BYTES", 10_000)
    with pytest.raises(TrialError, match="episodes that have not ended"):
        sample(1, ENDLESS_ENV, batch_mode="complete_episodes")


def recorder_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("recorder")]


@pytest.mark.key("sample_async")
@pytest.mark.parametrize(("sample_async", "versions"), [(False, [0, 1, 2, 3]), (True, [0, 0, 1, 2])])
def test_a_worker_that_records_ahead_acts_with_weights_a_fragment_older(
    sample_async: bool, versions: list[int]
) -> None:
    agent = make_agent(sample_async=sample_async)
    acted_with = []
    for version in range(1, 5):
        acted_with.append(poll(agent)[0][1].weights_version)
        agent.source.publish(version, weights_of(agent))
    assert acted_with == versions
    assert len(recorder_threads()) == sample_async
    agent.stop()
    assert recorder_threads() == []


@pytest.mark.key("sample_async")
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_recording_ahead_loses_and_changes_nothing(batch_mode: str) -> None:
    changes: dict[str, Any] = {"batch_mode": batch_mode, "n_step": 3, "explore": False}
    in_turn, ahead = (sample(6, sample_async=sample_async, **changes) for sample_async in (False, True))
    for column in (OBS, REWARDS, DISCOUNTS, NEW_OBS):
        np.testing.assert_array_equal(rows(in_turn, column), rows(ahead, column))
    assert [info.num_env_steps for _, info in in_turn] == [info.num_env_steps for _, info in ahead]


@pytest.mark.key("sample_async", "seed")
def test_recording_ahead_is_reproducible() -> None:
    weights = []
    for _ in range(2):
        agent = make_agent(sample_async=True, **MEAN_STD)
        for _ in range(2):
            agent.train()
        weights.append({name: array.tobytes() for name, array in weights_of(agent).items()})
    assert weights[0] == weights[1]


@pytest.mark.key("sample_async")
def test_the_error_of_an_env_surfaces_from_the_thread() -> None:
    agent = make_agent(RAISING_ENV, sample_async=True, sample_batch_size=3)
    poll(agent)
    with pytest.raises(EnvError, match="this env raises"):
        poll(agent)
    agent.stop()
    agent.stop()
    assert recorder_threads() == []


@pytest.mark.key("observation_filter")
def test_observations_are_standardised_by_all_that_were_seen_before() -> None:
    raw, filtered = (rows(sample(2, ENDLESS_ENV, num_envs_per_worker=3, **changes)) for changes in ({}, MEAN_STD))
    assert filtered.dtype == np.float32
    for step in range(1, 20):
        now, so_far = slice(3 * step, 3 * step + 3), slice(0, 3 * step + 3)
        np.testing.assert_allclose(filtered[now], standardised(raw[now], raw[so_far]), rtol=1e-4, atol=1e-5)


class WatchingPolicy(ScriptedPolicy):
    """Remembers what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Array] = []

    def compute_actions(self, obs: Array) -> Array:
        self.seen.append(obs)
        return super().compute_actions(obs)


@pytest.mark.key("observation_filter")
def test_the_policy_acts_on_what_the_replay_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = WatchingPolicy()
    monkeypatch.setattr(players, "DQNPolicy", lambda *args: policy)
    np.testing.assert_array_equal(rows(sample(1, ENDLESS_ENV, **MEAN_STD)), np.concatenate(policy.seen))


@pytest.mark.key("observation_filter", "synchronize_filters")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("synchronize", [True, False])
def test_filters_are_merged_over_the_workers_after_an_iteration(num_workers: int, synchronize: bool) -> None:
    ids = [batch[OBS][:NUM_ENVS, 0] for batch, _ in sample(1, ENDLESS_ENV, num_workers=num_workers)]
    agent = make_agent(ENDLESS_ENV, num_workers=num_workers, synchronize_filters=synchronize, **MEAN_STD)
    length = agent.config.sample_batch_size
    agent.train()
    delivered = agent.optimizer.counters.num_steps_sampled // (NUM_ENVS * len(ids))
    if num_workers:
        poll(agent)  # was under way when the filters were merged
    fragments = poll(agent)
    start = delivered + (length if num_workers else 0)
    for mine, (batch, _) in zip(ids, fragments, strict=True):
        found = batch[OBS].reshape(length, NUM_ENVS, 3)
        # The first observation of a fragment was seen, and so standardised, at the end of the one before.
        for t in range(1, length):
            raw = np.array([(env_id, 0, start + t) for env_id in mine])
            seen = (np.concatenate(ids), delivered) if synchronize else (mine, start + t)
            np.testing.assert_allclose(found[t], standardised(raw, endless_observations(*seen)), rtol=1e-4, atol=1e-4)


@pytest.mark.key("observation_filter")
@pytest.mark.parametrize("synchronize", [True, False])
def test_checkpoints_hold_the_filters_and_workers_go_on_with_them(synchronize: bool, tmp_path: Path) -> None:
    changes: dict[str, Any] = {**MEAN_STD, "num_workers": 2, "synchronize_filters": synchronize}
    agent = make_agent(ENDLESS_ENV, **changes)
    agent.train()
    checkpoint = checkpoint_of(agent, tmp_path)
    kept = checkpoint.arrays["filters"]
    ids = [batch[OBS][:NUM_ENVS, 0] for batch, _ in sample(1, ENDLESS_ENV, num_workers=2)]
    groups = [np.concatenate(ids)] if synchronize else ids
    last_step = agent.optimizer.counters.num_steps_sampled // (2 * NUM_ENVS)
    for row, group in enumerate(groups):
        seen = endless_observations(group, last_step)
        assert kept["count"][row] == len(seen)
        np.testing.assert_allclose(kept["mean"][row], seen.mean(axis=0))
        np.testing.assert_allclose(kept["squares"][row] / (len(seen) - 1), seen.var(axis=0, ddof=1))
    restored = make_agent(ENDLESS_ENV, checkpoint, **changes)
    first = poll(restored)[0][0][OBS][:NUM_ENVS]
    env_seed = derive_seed(restored.stream_seed, "worker", 0, "env")  # new episodes, as workers elsewhere begin them
    raw = np.array([((env_seed + env) % ENV_IDS, 0, 0) for env in range(NUM_ENVS)])
    expected = standardised(raw, np.concatenate([endless_observations(groups[0], last_step), raw]))
    np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.key("observation_filter")
@pytest.mark.parametrize("synchronize", [True, False])
def test_evaluations_see_what_training_saw(synchronize: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(synchronize_filters=synchronize, num_workers=2, **MEAN_STD)
    agent.train()
    experiment = {"name": "e", "run": "DQN", "env": COUNTING_ENV, "config": agent.config.model_dump(mode="json")}
    path = agent.save(tmp_path / "checkpoint_000001", {"experiment": experiment})
    policies = [WatchingPolicy(), WatchingPolicy()]
    monkeypatch.setattr(DQNPolicies, "make_policy", lambda *args, **kwargs: policies[0])
    agent.evaluate(2)
    monkeypatch.setattr(DQNPolicies, "make_policy", lambda *args, **kwargs: policies[1])
    trained_with(COUNTING_ENV)
    evaluate_checkpoint(path, EvaluationRequest(2))
    kept = read_checkpoint(path).arrays["filters"]
    counts = kept["count"][:, None]
    mean = (counts * kept["mean"]).sum(axis=0) / counts.sum()
    squares = (kept["squares"] + counts * (kept["mean"] - mean) ** 2).sum(axis=0)
    for policy in policies:
        for step in range(3):
            expected = ((0, step) - mean[1:]) / np.sqrt(squares[1:] / (counts.sum() - 1))
            np.testing.assert_allclose(policy.seen[step][0, 1:], expected, rtol=1e-4)


@pytest.mark.key("observation_filter")
def test_images_are_not_filtered() -> None:
    images = gym.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    with pytest.raises(UsageError, match=r"MeanStdFilter does not suit images"):
        ObservationFilters(DQNConfig(observation_filter="MeanStdFilter"), images, {})
    assert ObservationFilters(DQNConfig(), images, {}).of_worker(0) is None


@pytest.mark.key("clip_rewards")
@pytest.mark.parametrize(
    ("clip_rewards", "low", "high"), [(None, 1, 12), (False, 1, 12), (True, 1, 1), (2.5, 1, 2.5), ((4, 8), 4, 8)]
)
def test_the_learner_sees_clipped_rewards_and_the_results_whole_ones(
    clip_rewards: Any, low: float, high: float
) -> None:
    samples = sample(3, clip_rewards=clip_rewards)
    np.testing.assert_allclose(rows(samples, REWARDS), (rows(samples)[:, 2] + 1).clip(low, high))
    assert {value for _, info in samples for value in info.episodes.returns.tolist()} == {6.0, 28.0, 78.0}


@pytest.mark.key("clip_rewards", "preprocessor_pref")
@pytest.mark.parametrize(("preprocessor_pref", "largest"), [("deepmind", 1), ("rllib", 12), (None, 12)])
def test_null_clips_by_sign_where_games_are_prepared_as_deepmind_did(
    preprocessor_pref: Any, largest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.workers.has_game_frames", lambda env, env_config: env == COUNTING_ENV)
    assert rows(sample(3, preprocessor_pref=preprocessor_pref), REWARDS).max() == largest
