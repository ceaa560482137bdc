"""PQN's learner and agent: its update, what it learns in small, evaluations, and a run with a break."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.agents.pqn.agent import PQNAgent, PQNLearner
from rlexp.agents.pqn.players import PQNPolicy
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.config.keys.pqn import PQNConfig, PQNExperiment
from rlexp.errors import TrialError, UsageError
from rlexp.policy import InterruptedLearningError
from rlexp.rollout.folds import VALUE_TARGETS
from rlexp.runs.checkpoint_contents import Checkpoint, read_checkpoint
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from tests.lab.agents import Update, saved
from tests.lab.envs import CONTINUOUS_ENV, IDENTITY_ENV, PIXEL_ENV
from tests.lab.pqn import distance, in_double, make_batch, make_learner, reference, values_of
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


def learned(learner: PQNLearner, batch: SampleBatch) -> Update:
    before = learner.state_dict()
    return Update(batch, learner.learn_on_batch(batch), before, learner.state_dict())


@pytest.mark.parametrize("clipping", [None, 0.05])
def test_a_batch_is_learned_as_in_double_precision(clipping: float | None) -> None:
    learner = make_learner(num_sgd_iter=5, sgd_minibatch_size=32, grad_norm_clipping=clipping, adam_epsilon=1e-3)
    update = learned(learner, make_batch())
    keys: dict[str, Any] = {"num_sgd_iter": 5, "grad_norm_clipping": clipping, "adam_epsilon": 1e-3, "lr": 1e-3}
    expected, loss = reference(PQNConfig.model_validate(keys), update)
    assert distance(update, expected) < 1e-6
    assert update.result.stats["loss"] == pytest.approx(loss, rel=1e-5)
    assert distance(update, in_double(update.before)) > 1e-3


def test_figures_are_of_the_last_epoch() -> None:
    batch = make_batch()
    update = learned(make_learner(num_sgd_iter=1, sgd_minibatch_size=32), batch)
    values = values_of(in_double(update.before), batch[OBS]).detach().numpy()
    errors = values[np.arange(len(batch)), batch[ACTIONS]] - batch[VALUE_TARGETS]
    stats = update.result.stats
    assert stats["loss"] == pytest.approx(0.5 * (errors**2).mean(), rel=1e-5)
    assert stats["mean_q"] == pytest.approx(values.mean(), rel=1e-4)
    assert stats["mean_td_error"] == pytest.approx(abs(errors).mean(), rel=1e-5)
    assert stats["lr"] == 1e-3
    assert set(stats) == {"loss", "mean_q", "mean_td_error", "grad_norm", "lr"}


def test_an_interrupted_learner_is_as_it_was_before_the_batch() -> None:
    learner, other = make_learner(), make_learner()
    for each in (learner, other):
        each.learn_on_batch(make_batch(seed=1))
    before, looks = learner.state_dict(), iter(range(100))
    with pytest.raises(InterruptedLearningError):
        learner.learn_on_batch(make_batch(seed=2), lambda: next(looks) == 3)
    assert_same_bits(learner.state_dict(), before)
    results = [each.learn_on_batch(make_batch(seed=2)).stats for each in (learner, other)]
    assert results[0] == results[1]
    assert_same_bits(learner.state_dict(), other.state_dict())


def test_targets_that_overflow_the_loss_end_the_trial_with_a_remedy() -> None:
    batch = make_batch().with_columns(**{VALUE_TARGETS: np.full(32, 1e30, np.float32)})
    with pytest.raises(TrialError, match=r"the loss is (nan|inf) and its gradient") as caught:
        make_learner().learn_on_batch(batch)
    assert caught.value.hint is not None
    assert "clip_rewards" in caught.value.hint
