"""PQN's agent: what it learns in small, evaluations, and a run with a break, which is bit by bit the one without."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.agents.pqn.agent import PQNAgent
from rlexp.agents.pqn.players import PQNPolicy
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.pqn import PQNConfig, PQNExperiment
from rlexp.errors import UsageError
from rlexp.runs.checkpoint_contents import Checkpoint, read_checkpoint
from tests.lab.agents import saved
from tests.lab.envs import CONTINUOUS_ENV, IDENTITY_ENV, PIXEL_ENV
from tests.unit.agents.test_agent import assert_same_bits, small_images, timeless

SMALL: Mapping[str, Any] = {
    "num_workers": 0,
    "num_envs_per_worker": 4,
    "sample_batch_size": 16,
    "train_batch_size": 128,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 4,
    "lr": 1e-2,
    "timesteps_per_iteration": 256,
    "epsilon_timesteps": 1000,
    "model": {"fcnet_hiddens": [16]},
}


def make_agent(env: str, changes: Mapping[str, Any], checkpoint: Checkpoint | None = None, seed: int = 3) -> PQNAgent:
    return PQNAgent(env, PQNConfig.model_validate({**SMALL, **changes}), InlineTaskPool(), seed, checkpoint)


def train(agent: PQNAgent, iterations: int) -> list[dict[str, Any]]:
    return [timeless(agent.train()) for _ in range(iterations)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("changes", [{}, {"dueling": True, "hiddens": [8]}, {"soft_q": True, "softmax_temp": 0.1}])
def test_right_action_is_learned(changes: dict[str, Any], num_workers: int) -> None:
    agent = make_agent(IDENTITY_ENV, {**changes, "num_workers": num_workers})
    first = agent.train()
    for _ in range(12):
        agent.train()
    played = agent.evaluate(50).returns.mean()
    agent.stop()
    assert first["episode_reward_mean"] < 0.75
    assert played == 1.0


def test_pixels_are_learned_from() -> None:
    changes = {"preprocessor_pref": None, "model": {"conv_filters": [[8, [4, 4], 2], [16, [5, 5], 1]]}}
    agent = make_agent(PIXEL_ENV, {**changes, "num_envs_per_worker": 8, "lr": 3e-3})
    train(agent, 10)
    assert agent.evaluate(40).returns.mean() == 1.0
    agent.stop()


def test_discretised_actions_are_played_and_others_refused() -> None:
    agent = make_agent(CONTINUOUS_ENV, {"discretize_actions": 3})
    train(agent, 1)
    agent.stop()
    with pytest.raises(UsageError, match="DQN, APEX and PQN need a Discrete one"):
        make_agent(CONTINUOUS_ENV, {})


SCHEDULES = {"lr_schedule": [[0, 1e-2], [500, 1e-3]], "exploration_warmup_timesteps": 100}


@pytest.mark.parametrize(
    ("env", "changes", "amid_a_batch"),
    [
        ("CartPole-v1", SCHEDULES, False),
        ("CartPole-v1", {**SCHEDULES, "soft_q": True}, True),
        ("CartPole-v1", {"batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter"}, True),
        (PIXEL_ENV, {**small_images(32), "timesteps_per_iteration": 128, "num_sgd_iter": 1}, True),
    ],
    ids=["at rest", "softmax amid a batch", "whole episodes", "frames"],
)
def test_a_run_with_a_break_is_the_run_without_one(
    env: str, changes: dict[str, Any], amid_a_batch: bool, tmp_path: Path
) -> None:
    whole, first = make_agent(env, changes), make_agent(env, changes)
    rows = {agent: train(agent, 2) for agent in (whole, first)}
    if amid_a_batch:
        for agent, found in rows.items():
            found.append(timeless(agent.train(lambda: True)))
            assert not agent.optimizer.at_rest
    path = first.save(tmp_path / "checkpoint_000003", {})
    first.stop()
    second = make_agent(env, changes, read_checkpoint(path))
    assert_same_bits(rows[first] + train(second, 2), rows[whole] + train(whole, 2))
    with second.optimizer.paused() as learner, whole.optimizer.paused() as expected:
        assert learner.num_updates > 0
        assert_same_bits(learner.state_dict(), expected.state_dict())
    assert_same_bits(second.optimizer.state(), whole.optimizer.state())
    for agent in (second, whole):
        assert agent.drain_events() == []
        agent.stop()


def test_checkpoint_plays_greedily_or_explores_as_asked(tmp_path: Path) -> None:
    agent = make_agent(IDENTITY_ENV, {})
    train(agent, 13)
    config = PQNConfig.model_validate(SMALL)
    experiment = PQNExperiment(name="evaluated", run="PQN", env=IDENTITY_ENV, config=config)
    path = saved(agent, experiment, tmp_path)
    greedy = evaluate_checkpoint(path, EvaluationRequest(50, 1))
    exploring = evaluate_checkpoint(path, EvaluationRequest(300, 1, explore=True))
    assert greedy.played.returns.tolist() == [1.0] * 50
    assert exploring.exploration == {"epsilon": 0.05}
    assert 0.85 < exploring.played.returns.mean() < 1.0


def test_policies_of_checkpoints_act_greedily() -> None:
    agent = make_agent(IDENTITY_ENV, {})
    policy = agent.policies.make_policy()
    assert isinstance(policy, PQNPolicy)
    with agent.optimizer.paused() as learner:
        policy.set_weights(learner.get_weights())
    obs = np.eye(4, dtype=np.float32)
    actions, outputs = policy.act(obs, np.zeros(4, bool), 0)
    values = policy.action_values(obs)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))
    np.testing.assert_array_equal(outputs["vf_preds"], values.max(axis=1))
    agent.stop()


def test_actors_cannot_join_it() -> None:
    reason = PQNConfig().board_obstacle
    assert reason is not None
    assert "newest weights" in reason
