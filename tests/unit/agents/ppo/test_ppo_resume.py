"""A run of PPO that continues from a checkpoint does, bit by bit, what it would have done without a break."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.runs.checkpoints import read_checkpoint
from tests.envs import PIXEL_ENV
from tests.unit.agents.ppo.agents import MATCHING_ENV, make_agent
from tests.unit.agents.test_going_on import assert_same_bits, small_images, timeless


def train(agent: PPOAgent, iterations: int) -> list[dict[str, Any]]:
    return [timeless(agent.train()) for _ in range(iterations)]


def stopped(agent: PPOAgent) -> list[dict[str, Any]]:
    """Stop an iteration after its first sample; the train batch is collected in part then."""
    rows = [timeless(agent.train(lambda: True))]
    assert not agent.optimizer.at_rest
    return rows


def playing(agent: PPOAgent) -> list[dict[str, Any]]:
    """Return the states of the agent's workers, but for the numbers of frames, which are random."""
    states: list[dict[str, Any]] = agent.source.state()["workers"]
    return [{name: state[name] for name in ("recorder", "accumulator")} for state in states]


def assert_continues(env: str, changes: Mapping[str, Any], directory: Path, amid_a_batch: bool = False) -> None:
    """Train four iterations, in one go and with a break, and compare all there is."""
    whole, first = make_agent(env, changes), make_agent(env, changes)
    rows = {agent: train(agent, 2) + (stopped(agent) if amid_a_batch else []) for agent in (whole, first)}
    path = first.save(directory / "checkpoint_000003", {})
    first.stop()
    second = make_agent(env, changes, read_checkpoint(path))
    assert second.optimizer.at_rest != amid_a_batch
    expected, found = rows[whole] + train(whole, 2), rows[first] + train(second, 2)
    assert_same_bits(found, expected)
    with second.optimizer.paused() as learner, whole.optimizer.paused() as expected_learner:
        assert learner.num_updates > 0
        assert_same_bits(learner.state_dict(), expected_learner.state_dict())
    assert_same_bits(second.optimizer.state(), whole.optimizer.state())
    assert_same_bits(playing(second), playing(whole))
    for agent in (second, whole):
        assert agent.drain_events() == []
        agent.stop()


SCHEDULES = {"lr_schedule": [[0, 1e-2], [500, 1e-3]], "entropy_coeff_schedule": [[0, 0.1], [500, 0]]}


@pytest.mark.parametrize(
    ("env", "changes", "amid_a_batch"),
    [
        ("CartPole-v1", SCHEDULES, False),
        ("CartPole-v1", SCHEDULES, True),
        ("CartPole-v1", {"batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter"}, True),
        (MATCHING_ENV, {"env_config": {"space": "box"}, "normalize_actions": True, "grad_norm_clipping": 0.5}, True),
        (PIXEL_ENV, {**small_images(32), "timesteps_per_iteration": 128, "num_sgd_iter": 1}, True),
    ],
    ids=["at rest", "amid a batch", "whole episodes", "Box", "frames"],
)
def test_a_run_with_a_break_is_the_run_without_one(
    env: str, changes: dict[str, Any], amid_a_batch: bool, tmp_path: Path
) -> None:
    assert_continues(env, changes, tmp_path, amid_a_batch)


def test_other_workers_begin_new_episodes_and_keep_the_rows_collected(tmp_path: Path) -> None:
    changes = {"num_workers": 2, "train_batch_size": 256}
    first = make_agent("CartPole-v1", changes)
    train(first, 1)
    first.train(lambda: True)
    sampled = first.optimizer.counters.num_steps_sampled
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    second = make_agent("CartPole-v1", changes, read_checkpoint(path))
    row = second.train()
    assert row["timesteps_total"] > sampled
    assert second.optimizer.at_rest
    # Every step was learned once, also those that the first agent had sampled when it was stopped.
    assert second.optimizer.counters.num_steps_trained == second.optimizer.counters.num_steps_sampled
    second.stop()
