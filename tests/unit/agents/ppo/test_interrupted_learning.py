"""A stop amid learning, which may take minutes for a train batch: it comes at once, and nothing is lost by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.policy import InterruptedLearningError
from rlexp.rollout.evaluation import ShouldStop
from rlexp.runs.checkpoints import read_checkpoint
from tests.unit.agents.ppo.agents import make_agent
from tests.unit.agents.ppo.batches import make_batch, make_learner
from tests.unit.agents.test_going_on import assert_same_bits, timeless

ONE_CALL: dict[str, Any] = {"sample_batch_size": 32, "train_batch_size": 128, "timesteps_per_iteration": 0}
"""A train batch is one call of the worker, then 16 SGD steps."""


def at_look(number: int) -> ShouldStop:
    """Return a request to stop that comes when it is looked for the ``number``-th time."""
    looks = iter(range(1, 10**6))
    return lambda: next(looks) >= number


def test_an_interrupted_learner_is_as_it_was_before_the_batch() -> None:
    learner, other = make_learner(), make_learner()
    for each in (learner, other):
        each.learn_on_batch(make_batch(seed=1))
    before = learner.state_dict()
    with pytest.raises(InterruptedLearningError):
        learner.learn_on_batch(make_batch(seed=2), at_look(4))
    assert_same_bits(learner.state_dict(), before)
    results = [each.learn_on_batch(make_batch(seed=2)).stats for each in (learner, other)]
    assert results[0] == results[1]
    assert_same_bits(learner.state_dict(), other.state_dict())


def test_the_third_look_stops_the_third_step() -> None:
    learner, looks = make_learner(), []

    def count() -> bool:
        looks.append(learner.num_updates)
        return len(looks) == 3

    with pytest.raises(InterruptedLearningError):
        learner.learn_on_batch(make_batch(), count)
    assert looks == [0, 1, 2]


def test_a_stop_amid_learning_keeps_the_train_batch_and_its_row_has_what_was_sampled() -> None:
    agent = make_agent("CartPole-v1", ONE_CALL)
    row = agent.train(at_look(5))
    assert not agent.optimizer.at_rest
    assert row["info"]["num_updates"] == row["info"]["num_steps_trained"] == 0
    assert row["timesteps_total"] > 100
    sampled = agent.optimizer.counters.num_steps_sampled
    while not agent.optimizer.at_rest:
        agent.optimizer.step()
    assert agent.optimizer.counters.num_steps_sampled == agent.optimizer.counters.num_steps_trained == sampled
    agent.stop()


def test_a_run_that_was_stopped_amid_learning_is_the_run_without_a_break(tmp_path: Path) -> None:
    whole, first = make_agent("CartPole-v1", ONE_CALL), make_agent("CartPole-v1", ONE_CALL)
    whole.train()
    first.train(at_look(5))
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    second = make_agent("CartPole-v1", ONE_CALL, read_checkpoint(path))
    second.optimizer.step()  # what the stop left undone
    assert_same_bits(_state(second), _state(whole))
    assert_same_bits(timeless(second.train()["info"]["learner"]), timeless(whole.train()["info"]["learner"]))
    for agent in (second, whole):
        agent.stop()


def _state(agent: PPOAgent) -> dict[str, Any]:
    with agent.optimizer.paused() as learner:
        return {"learner": learner.state_dict(), "optimizer": agent.optimizer.state()}
