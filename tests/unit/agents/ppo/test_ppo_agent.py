"""PPO's agent: what it makes of its keys, with workers and with checkpoints.

A stop amid learning, which may take minutes for a train batch: it comes at once, and nothing is lost by it.

Evaluations of PPO: greedy, or drawn as workers do; by the agent, from a checkpoint, by the command, and filmed.

PPO learns in small what the observation says, with each of its distributions; and fails with a remedy.

A run of PPO that continues from a checkpoint does, bit by bit, what it would have done without a break.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint, film_checkpoint
from rlexp.agents.ppo.agent import PPOAgent
from rlexp.cli import app
from rlexp.config.keys.ppo import PPOConfig, PPOExperiment
from rlexp.errors import CheckpointError, TrialError
from rlexp.policy import InterruptedLearningError, LearnResult
from rlexp.rollout.evaluation import ShouldStop
from rlexp.runs.checkpoint_contents import read_checkpoint
from rlexp.sample_batch import SampleBatch
from tests.lab.agents import saved
from tests.lab.envs import FILMED_ENV, IDENTITY_ENV, PIXEL_ENV
from tests.lab.ppo import MATCHING_ENV, SMALL, make_agent, make_batch, make_learner
from tests.unit.agents.test_agent import assert_same_bits, small_images, timeless

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


SMALL_CALLS = {"sample_batch_size": 4, "timesteps_per_iteration": 0}
"""A train batch of 128 is 8 calls."""


@pytest.mark.parametrize(("num_workers", "is_async", "in_flight"), [(1, True, 8), (3, True, 8), (1, False, 0)])
def test_workers_that_overlap_sample_a_whole_train_batch_while_the_learner_learns(
    num_workers: int, is_async: bool, in_flight: int
) -> None:
    agent = make_agent("CartPole-v1", {**SMALL_CALLS, "num_workers": num_workers, "sample_async": is_async})
    found: list[int] = []
    with agent.optimizer.paused() as learner:
        learn_on_batch = learner.learn_on_batch

        def learn(batch: SampleBatch, should_stop: ShouldStop) -> LearnResult:
            found.append(agent.source.num_in_flight)
            return learn_on_batch(batch)

        learner.learn_on_batch = learn  # type: ignore[assignment, method-assign]
    for _ in range(3):
        agent.train()
    agent.stop()
    assert found == [in_flight] * 3


def test_a_checkpoint_of_another_model_is_refused_with_the_difference_and_a_remedy(tmp_path: Path) -> None:
    first = make_agent("CartPole-v1", {})
    path = first.save(tmp_path / "checkpoint_000001", {})
    first.stop()
    with pytest.raises(CheckpointError, match=r"size mismatch for policy_torso\.0\.weight") as refused:
        make_agent("CartPole-v1", {"model": {"fcnet_hiddens": [8]}}, read_checkpoint(path))
    assert "\n" not in refused.value.message
    assert refused.value.hint is not None
    assert "same algorithm, env and model" in refused.value.hint


NUMBERS = {"env_config": {"space": "box"}}


def checkpoint(directory: Path, env: str, changes: dict[str, Any], iterations: int = 0) -> Path:
    """Return a checkpoint of an agent that has trained for ``iterations``."""
    agent = make_agent(env, changes)
    for _ in range(iterations):
        agent.train()
    config = PPOConfig.model_validate({**SMALL, **changes})
    experiment = PPOExperiment(name="evaluated", run="PPO", env=env, config=config)
    return saved(agent, experiment, directory)


@pytest.mark.parametrize(("env", "changes"), [(IDENTITY_ENV, {}), (MATCHING_ENV, NUMBERS)], ids=["choices", "numbers"])
def test_checkpoint_plays_greedily_or_explores_as_asked(env: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = checkpoint(tmp_path, env, changes, iterations=3)

    def returns(explore: bool | None, seed: int) -> list[float]:
        played = evaluate_checkpoint(path, EvaluationRequest(50, seed, explore))
        assert played.explores == bool(explore)
        assert played.exploration == {}
        found: list[float] = played.played.returns.tolist()
        return found

    greedy, drawn = returns(None, 1), returns(True, 1)
    assert returns(False, 1) == greedy != drawn == returns(True, 1)
    assert np.mean(greedy) > np.mean(drawn)
    assert returns(True, 2) != drawn


def test_evaluation_with_explore_is_the_config_of_the_run(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, IDENTITY_ENV, {"evaluation_config": {"explore": True}}, iterations=1)
    explores = evaluate_checkpoint(path, EvaluationRequest(50, 1))
    greedy = evaluate_checkpoint(path, EvaluationRequest(50, 1, explore=False))
    assert (explores.explores, greedy.explores) == (True, False)
    assert explores.played.returns.mean() < greedy.played.returns.mean()


def test_evaluation_sees_observations_as_the_filter_of_training_does(tmp_path: Path) -> None:
    changes = {"observation_filter": "MeanStdFilter"}
    path = checkpoint(tmp_path, MATCHING_ENV, {**NUMBERS, **changes}, iterations=12)
    assert evaluate_checkpoint(path, EvaluationRequest(100, 1)).played.returns.mean() > 0.9


@pytest.mark.parametrize("explore", [False, True])
def test_checkpoint_is_filmed(explore: bool, tmp_path: Path) -> None:
    pictures, fps = film_checkpoint(checkpoint(tmp_path, FILMED_ENV, {}), EvaluationRequest(explore=explore))
    assert fps == 10.0
    assert len(list(pictures)) == 11


def test_command_evaluates_a_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, IDENTITY_ENV, {}, iterations=4)
    arguments = ["evaluate", str(path), "--episodes", "30", "--seed", "1", "--json"]
    outputs = [CliRunner().invoke(app, [*arguments, *more]).stdout for more in ((), ("--explore",))]
    greedy, drawn = (json.loads(output) for output in outputs)
    assert greedy["returns"] == [1.0] * 30
    assert 0.5 < drawn["return_mean"] <= 1.0
    assert [greedy["explores"], drawn["explores"]] == [False, True]


CHOICES = {"env_config": {"space": "multi-discrete"}}
FREE_AND_SHARED = {"model": {"fcnet_hiddens": [16], "free_log_std": True, "vf_share_layers": True}}


@pytest.mark.parametrize(
    ("env", "changes", "first", "goal"),
    [
        (IDENTITY_ENV, {}, 0.75, 0.95),
        (MATCHING_ENV, CHOICES, 0.85, 0.95),
        (MATCHING_ENV, NUMBERS, 0.8, 0.9),
        (MATCHING_ENV, {**NUMBERS, **FREE_AND_SHARED}, 0.8, 0.9),
    ],
    ids=["Discrete", "MultiDiscrete", "Box", "Box with free deviations and a shared torso"],
)
def test_right_action_is_learned(env: str, changes: dict[str, Any], first: float, goal: float) -> None:
    """The best of all actions that do not depend on the observation pay .25, .75 and .75."""
    agent = make_agent(env, changes)
    rewards = [agent.train()["episode_reward_mean"]]
    while rewards[-1] < goal and len(rewards) < 20:
        rewards.append(agent.train()["episode_reward_mean"])
    agent.stop()
    assert rewards[0] < first
    assert rewards[-1] >= goal


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rewards_that_overflow_the_loss_end_the_trial_with_a_remedy(num_workers: int) -> None:
    env_config = {"space": "multi-discrete", "scale": 1e30}
    agent = make_agent(MATCHING_ENV, {"env_config": env_config, "num_workers": num_workers})
    with pytest.raises(TrialError, match=r"the loss is (nan|inf) and its gradient") as caught:
        agent.train()
    agent.stop()
    assert caught.value.hint is not None
    assert "clip_rewards" in caught.value.hint


@pytest.mark.parametrize(
    ("env", "keys"),
    [(IDENTITY_ENV, {}), (MATCHING_ENV, NUMBERS), (PIXEL_ENV, small_images(32))],
    ids=["Discrete", "Box", "images"],
)
def test_a_fragment_that_only_resets_adds_no_rows(env: str, keys: dict[str, Any]) -> None:
    """Episodes of one step, in fragments of one step: each second fragment is the reset."""
    short = {"num_envs_per_worker": 1, "sample_batch_size": 1, "train_batch_size": 8, "sgd_minibatch_size": 4}
    agent = make_agent(env, {**keys, **short, "timesteps_per_iteration": 0})
    row = agent.train()
    agent.stop()
    assert row["timesteps_total"] == agent.optimizer.counters.num_steps_trained == 4


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
