"""Several agents learn one policy: what each row of experience is, what is counted, and that every algorithm plays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, LoadedCheckpoint, evaluate_checkpoint
from rlexp.agents.trained_policy import TrainedPolicy
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.env_ids import RLLIB_ENVS
from rlexp.config.keys.experiment import Experiment
from rlexp.envs.make import make_vector_env
from rlexp.envs.registry import EnvConfig
from rlexp.rollout.evaluation import EvaluationLimits, film_episode, play_episodes, played_to_end
from rlexp.rollout.filters import Moments
from rlexp.rollout.folds import NStep
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import DISCOUNTS, NEW_OBS, OBS, REWARDS, SampleBatch
from tests.lab import agents, critics, evolution, impala, ppo, pqn
from tests.lab.agents import agent_for, checkpoint_of, poll, saved, weights_of
from tests.lab.doubles import ScriptedPolicy
from tests.lab.parallel import LIVES, MASKED_RELAY, RELAY, Relay
from tests.lab.rollout import spec_of, whole
from tests.lab.user_callbacks import CALLS, classes_of

CART_POLES = RLLIB_ENVS["MultiAgentCartPole"]
PENDULUMS = RLLIB_ENVS["MultiAgentPendulum"]
GAMMA = 0.5
OF_DQN = {
    **agents.TINY,
    "sample_batch_size": 4,
    "learning_starts": 32,
    "timesteps_per_iteration": 40,
}
CASES: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "DQN": ("DQN", CART_POLES, {**OF_DQN, "n_step": 3}),
    "DQN, noise and filter": (
        "DQN",
        CART_POLES,
        {**OF_DQN, "parameter_noise": True, "observation_filter": "MeanStdFilter"},
    ),
    "DQN, masks": ("DQN", MASKED_RELAY, {**OF_DQN, "worker_side_prioritization": True}),
    "APEX": ("APEX", CART_POLES, OF_DQN),
    "PPO": ("PPO", CART_POLES, ppo.TINY),
    "PPO, masks, whole episodes": ("PPO", MASKED_RELAY, {**ppo.TINY, "batch_mode": "complete_episodes"}),
    "A2C": ("A2C", CART_POLES, {}),
    "IMPALA": ("IMPALA", CART_POLES, impala.TINY),
    "PQN": ("PQN", CART_POLES, pqn.TINY),
    "SAC": ("SAC", PENDULUMS, {**critics.TINY, **critics.OF_SAC, "timesteps_per_iteration": 60}),
    "TD3": ("TD3", PENDULUMS, {**critics.TINY, "timesteps_per_iteration": 60}),
    "ES": ("ES", CART_POLES, {**evolution.TINY, **evolution.OWN["ES"]}),
}


def experiment_of(case: str, **more: Any) -> Experiment:
    run, env, keys = CASES[case]
    own = {} if env == MASKED_RELAY else {"env_config": {"num_agents": 3}, "horizon": 30}
    config = {**keys, **own, "min_iter_time_s": 0.0, **more}
    return AGENTS[run].model_validate({"name": "several", "run": run, "env": env, "config": config})


@pytest.mark.parametrize("case", CASES)
def test_every_algorithm_trains_and_evaluates(case: str) -> None:
    agent = agent_for(experiment_of(case))
    rows = [agent.train() for _ in range(3)]
    row, played = rows[-1], agent.evaluate(3)
    agents = ["a", "b", "c"] if CASES[case][1] == MASKED_RELAY else ["agent_0", "agent_1", "agent_2"]
    assert list(row["agent_reward_mean"]) == agents
    assert row["episode_reward_mean"] == pytest.approx(sum(row["agent_reward_mean"].values()))
    assert played.is_complete
    assert np.sum([played.of_agents[agent] for agent in agents], axis=0) == pytest.approx(played.returns)


@pytest.mark.parametrize("case", ["DQN", "PPO", "SAC", "DQN, noise and filter"])
def test_a_run_goes_on_from_a_checkpoint_bit_by_bit(case: str, tmp_path: Path) -> None:
    experiment = experiment_of(case)
    agent = agent_for(experiment)
    agent.train()
    resumed = agent_for(experiment, checkpoint_of(agent, tmp_path))
    rows = [each.train() for each in (agent, resumed)]
    assert rows[0]["episode_reward_mean"] == rows[1]["episode_reward_mean"]
    assert rows[0]["agent_reward_mean"] == rows[1]["agent_reward_mean"]
    weights = [weights_of(each) for each in (agent, resumed)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


def expected_rows(n_step: int, num_episodes: int) -> set[tuple[float, ...]]:
    """Return each n-step row of a Relay's first episodes, computed agent by agent."""
    rows: set[tuple[float, ...]] = set()
    for number, (first, last, how) in enumerate(LIVES.values()):
        for start in range(first, last):
            end = min(start + n_step, last)
            reward = sum(10.0**number * GAMMA**k for k in range(end - start))
            discount = 0.0 if end == last and how != "truncated" else GAMMA ** (end - start)
            rows |= {(number, start, episode, reward, discount, end) for episode in range(num_episodes)}
    return rows


@pytest.mark.parametrize("length", [1, 4, 7, 13])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_rows_are_those_of_each_agent_whatever_the_cut(length: int, n_step: int, batch_mode: Any) -> None:
    spec = spec_of(RELAY, ScriptedPolicy, 1, NStep(n_step, GAMMA), fragment_length=length, batch_mode=batch_mode)
    worker = RolloutWorker(spec)
    sent = [worker.sample(0) for _ in range(1 + 40 // length)]
    worker.stop()
    batch = SampleBatch.concat([whole(rows) for rows, _ in sent])
    number, step, episode = batch[OBS].T
    episode = episode - episode.min()
    columns = number, step, episode, batch[REWARDS], batch[DISCOUNTS], batch[NEW_OBS][:, 1]
    found = list(zip(*(column.tolist() for column in columns), strict=True))
    last = int(episode.max())
    assert last > 3
    assert len(set(found)) == len(found)
    assert expected_rows(n_step, last) <= set(found) <= expected_rows(n_step, last + 1)
    assert {each for _, info in sent for each in info.episodes.returns.tolist()} == {353.0}
    of_agents = [info.episodes.of_agents for _, info in sent if len(info.episodes.returns)]
    assert {name: set(values.tolist()) for name, values in of_agents[0].items()} == {
        "a": {3.0},
        "b": {50.0},
        "c": {300.0},
    }


def test_a_step_of_an_env_counts_once_and_resting_agents_are_not_observed() -> None:
    spec = spec_of(RELAY, ScriptedPolicy, 2, fragment_length=12, observation_filter=Moments.none((3,)))
    worker = RolloutWorker(spec)
    rows, info = worker.sample(0)
    assert info.num_env_steps == 2 * 10  # the sixth and the twelfth step are resets
    assert info.num_rows == 2 * 2 * (3 + 5 + 3)
    assert info.episodes.lengths.tolist() == [5] * 4
    assert info.observed is not None
    # Each agent has an observation more than steps, and of the third episode the first two have begun.
    assert info.observed.count == 2 * (2 * (4 + 6 + 4) + 2)
    assert len(whole(rows)) == info.num_rows
    worker.stop()


def test_resting_agents_are_not_observed_in_es() -> None:
    [(_, info)] = poll(evolution.make_agent("ES", RELAY, observation_filter="MeanStdFilter", eval_prob=0.0))
    # Nine episodes in two envs are five in each, with an idle one; nobody acts on what the last step returns.
    assert info.observed is not None
    assert info.observed.count == 2 * (5 * (4 + 6 + 4) - 2)


def test_hooks_see_the_part_of_each_agent_as_an_episode() -> None:
    CALLS.clear()
    worker = RolloutWorker(
        replace(spec_of(RELAY, ScriptedPolicy, 1, fragment_length=8), callbacks=classes_of("Recorder"))
    )
    _, info = worker.sample(0)
    calls = [(name, call.episode.agent, int(call.obs[1])) for name, call in CALLS if name != "step"]
    starts = [("start", "a", 0), ("start", "b", 0), ("start", "c", 2)]
    assert calls == [*starts, ("end", "a", 3), ("end", "b", 5), ("end", "c", 5), *starts]
    ends = [call for name, call in CALLS if name == "end"]
    assert [(end.episode_return, end.length, end.info) for end in ends] == [
        (3.0, 3, {"number": 0}),
        (50.0, 5, {"number": 1}),
        (300.0, 3, {"number": 2}),
    ]
    assert isinstance(ends[0].episode.env, Relay)
    assert info.episodes.own_metrics["steps"].tolist() == [3, 5, 3]
    worker.stop()
    CALLS.clear()


def test_an_evaluation_plays_episodes_of_all_agents_and_films_one() -> None:
    vector = make_vector_env(EnvConfig(RELAY), 2)
    limits = EvaluationLimits(100, None)
    played = played_to_end(play_episodes(ScriptedPolicy(), vector, 3, 0, limits))
    assert (played.returns.tolist(), played.lengths.tolist()) == ([353.0] * 3, [5] * 3)
    assert {name: values.tolist() for name, values in played.of_agents.items()}["c"] == [300.0] * 3
    assert played.num_env_steps == 2 * 11
    pictures = list(film_episode(ScriptedPolicy(), make_vector_env(EnvConfig(RELAY), 1), 0, 100))
    assert [int(picture[0, 0, 0]) for picture in pictures] == [0, 1, 2, 3, 4, 5]


def test_a_loaded_policy_acts_on_the_observation_of_one_agent(tmp_path: Path) -> None:
    experiment = experiment_of("PPO")
    agent = agent_for(experiment)
    agent.train()
    path = saved(agent, experiment, tmp_path)
    played = evaluate_checkpoint(path, EvaluationRequest(num_episodes=2)).played
    policy = TrainedPolicy(LoadedCheckpoint.load(path), False, 0)
    env: Any = policy.make_env()
    observations, _ = env.reset(seed=0)
    actions = {agent: policy.act(observations[agent]) for agent in env.agents}
    assert actions.keys() == played.of_agents.keys()
    assert len(env.step(actions)) == 5
