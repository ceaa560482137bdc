"""The DQN agent in one thread, on envs whose answers are known.

The order of seats on the ladder of ε.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents import iteration
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.agents.dqn.players import ladder_places, ladder_places_of_envs
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.errors import EnvError, TrialError, UsageError
from rlexp.runs.checkpoint_contents import read_checkpoint
from tests.lab.envs import CONTINUOUS_ENV, COUNTING_ENV, ENDLESS_ENV, IDENTITY_ENV, RAISING_ENV

SMALL: Mapping[str, Any] = {
    "model": ModelConfig(fcnet_hiddens=(16,)),
    "hiddens": (16,),
    "lr": 5e-3,
    "sample_batch_size": 4,
    "train_batch_size": 32,
    "buffer_size": 1000,
    "learning_starts": 64,
    "schedule_max_timesteps": 1000,
    "exploration_fraction": 0.5,
    "timesteps_per_iteration": 200,
    "min_iter_time_s": 0.0,
}


def make_agent(env: str = IDENTITY_ENV, seed: int = 0, **changes: Any) -> DQNAgent[DQNConfig]:
    return DQNAgent(env, DQNConfig(**{**SMALL, **changes}), InlineTaskPool(), seed)


def learner_state(agent: DQNAgent[DQNConfig]) -> dict[str, bytes]:
    with agent.optimizer.paused() as learner:
        return {name: array.tobytes() for name, array in learner.state_dict().items()}


def weights_after(seed: int, **changes: Any) -> dict[str, bytes]:
    agent = make_agent(seed=seed, **changes)
    for _ in range(2):
        agent.train()
    agent.stop()
    with agent.optimizer.paused() as learner:
        return {name: array.tobytes() for name, array in learner.get_weights().items()}


@pytest.mark.parametrize("parameter_noise", [False, True])
def test_solves_the_identity_env(parameter_noise: bool) -> None:
    agent = make_agent(parameter_noise=parameter_noise)
    started = time.monotonic()
    iterations = 0
    while (mean := agent.evaluate(50).returns.mean()) < 1.0:
        assert iterations < 15, f"mean return {mean} after {iterations} iterations"
        agent.train()
        iterations += 1
    assert iterations > 0, "solved before it learned"
    assert time.monotonic() - started < 30.0
    agent.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_row_of_results_by_hand(num_workers: int) -> None:
    agent = make_agent(COUNTING_ENV, num_workers=num_workers, num_envs_per_worker=3, sample_batch_size=24)
    row = agent.train()
    # 24 steps of an env are episodes of 3, 7 and 12 steps and the two resets between them.
    fragment, num_workers = 3 * 22, max(num_workers, 1)
    fragments = num_workers * math.ceil(200 / (fragment * num_workers))
    assert row["training_iteration"] == 1
    assert row["timesteps_total"] == row["timesteps_this_iter"] == row["info"]["num_steps_sampled"]
    assert row["timesteps_total"] >= 200
    assert row["episodes_total"] == row["episodes_this_iter"] >= fragments * 9 - 9
    assert row["episode_reward_min"] == 6.0
    assert row["episode_reward_max"] == 78.0
    assert row["episode_reward_mean_all"] == row["episode_reward_mean"]
    assert set(row["info"]["exploration_per_worker"]) == {str(index) for index in range(num_workers)}
    agent.stop()


def test_an_iteration_that_is_to_stop_at_once_has_steps_of_its_own() -> None:
    agent = make_agent(timesteps_per_iteration=10**9)
    totals = [agent.train(should_stop=lambda: True)["timesteps_total"] for _ in range(3)]
    assert 0 < totals[0] < totals[1] < totals[2]
    agent.stop()


@pytest.mark.parametrize("changes", [{}, {"noisy": True}, {"soft_q": True}, {"parameter_noise": True}], ids=str)
def test_the_same_seed_gives_the_same_weights_bit_by_bit_and_another_does_not(changes: dict[str, Any]) -> None:
    first, again, other = (weights_after(seed, **changes) for seed in (1, 1, 2))
    assert first == again
    assert all(first[name] != other[name] for name in first)


def test_epsilon_falls_with_the_steps_sampled() -> None:
    agent = make_agent(exploration_final_eps=0.1)
    seen = [agent.stats()["max_exploration"]] + [agent.train()["info"]["max_exploration"] for _ in range(4)]
    assert seen[0] == 1.0
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == pytest.approx(0.1)
    assert agent.reported_epsilon() == math.inf
    agent.stop()


def test_evaluation_is_greedy_and_leaves_training_alone() -> None:
    agent = make_agent(COUNTING_ENV)
    before = learner_state(agent)
    played, again = agent.evaluate(10), agent.evaluate(10)
    assert sorted(played.lengths.tolist()) == [3] * 8 + [7] * 2
    assert played.returns.tolist() == again.returns.tolist()
    assert agent.optimizer.counters.num_steps_sampled == 0
    assert learner_state(agent) == before
    agent.stop()


def test_a_checkpoint_goes_on_with_weights_counters_and_iterations(tmp_path: Path) -> None:
    first = make_agent()
    row = [first.train() for _ in range(2)][-1]
    path = first.save(tmp_path / "checkpoint_000002", {"note": "by a test"})
    state = learner_state(first)
    first.stop()
    restored = DQNAgent(IDENTITY_ENV, first.config, InlineTaskPool(), 5, read_checkpoint(path))
    assert learner_state(restored) == state
    epsilon = restored.stats()["max_exploration"]
    next_row = restored.train()
    assert epsilon == pytest.approx(row["info"]["max_exploration"])
    assert next_row["training_iteration"] == 3
    assert next_row["timesteps_total"] == row["timesteps_total"] + next_row["timesteps_this_iter"]
    assert next_row["episodes_total"] == row["episodes_total"] + next_row["episodes_this_iter"]
    assert next_row["time_total_s"] > row["time_total_s"]
    restored.stop()


def test_an_env_that_it_cannot_play_is_refused() -> None:
    with pytest.raises(UsageError, match="DQN, APEX and PQN need a Discrete one"):
        make_agent(CONTINUOUS_ENV)


def test_the_error_of_an_env_surfaces() -> None:
    agent = make_agent(RAISING_ENV)
    with pytest.raises(EnvError, match=r"tests/lab/envs.py:\d+ in step: RuntimeError: this env raises"):
        agent.train()
    agent.stop()


def test_training_without_samples_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(ENDLESS_ENV)
    monkeypatch.setattr(iteration, "STALL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(agent.optimizer, "step", lambda should_stop: None)
    with pytest.raises(TrialError, match="no worker delivered a sample"):
        agent.train()
    agent.stop()


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 13, 100])
def test_ladder_places_are_each_given_once(number: int) -> None:
    assert sorted(ladder_places(number)) == list(range(number))


def test_first_player_explores_least_and_the_second_is_far_from_it() -> None:
    assert ladder_places(8) == (7, 3, 5, 1, 6, 2, 4, 0)
    assert ladder_places(1) == (0,)


def test_any_number_of_first_players_spans_the_ladder() -> None:
    order = ladder_places(16)
    for present in range(2, 16):
        taken = sorted(order[:present])
        gaps = [after - before for before, after in pairwise(taken)]
        assert max([*gaps, taken[0]]) <= 2 * 16 / present


def test_ladder_places_of_envs_are_each_given_once() -> None:
    given = ladder_places_of_envs(3, 4)
    assert sorted(rung for player in given for rung in player) == list(range(12))
    assert all(max(player) - min(player) == 9 for player in given)
