"""The keys that say how training goes on, is measured and is evaluated; each test fails where its key is ignored."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlexp.agents.checkpoint import EvaluationRequest, evaluate_checkpoint
from rlexp.agents.dqn.players import DQNPolicies
from rlexp.policy import LearnResult
from rlexp.rollout import evaluation
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.agents import MAKERS, STEPS, CountingPool, both_agents, make_apex, make_dqn, poll, weights_of
from tests.lab.checkpoints import trained_with
from tests.lab.doubles import ScriptedPolicy
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV, IDENTITY_ENV, EndlessEnv, IdentityEnv

PAYING_ENV = "tests.behaviour.test_keys_training:PayingEnv"
PAID_IDENTITY_ENV = "tests.behaviour.test_keys_training:PaidIdentityEnv"


class PayingEnv(EndlessEnv):
    """Never ends by itself; pays what its keyword argument says."""

    def __init__(self, pay: float = 1.0) -> None:
        super().__init__()
        self._pay = pay

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, self._pay, terminated, truncated, info


class PaidIdentityEnv(IdentityEnv):
    """An IdentityEnv whose right action pays what its keyword argument says."""

    def __init__(self, pay: float = 1.0) -> None:
        super().__init__()
        self._pay = pay

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward * self._pay, terminated, truncated, info


@pytest.mark.key("training_intensity")
@both_agents
@pytest.mark.parametrize("intensity", [0.5, 4.0])
def test_so_many_steps_are_trained_per_step_sampled(run: str, intensity: float) -> None:
    agent = MAKERS[run](training_intensity=intensity, timesteps_per_iteration=200)
    begun, ended = agent.train()["info"], agent.train(lambda: agent.optimizer.counters.num_steps_sampled >= 2500)
    while ended["timesteps_total"] < 2500:
        ended = agent.train()
    trained = ended["info"]["num_steps_trained"] - begun["num_steps_trained"]
    assert trained / (ended["timesteps_total"] - begun["num_steps_sampled"]) == pytest.approx(intensity, rel=0.05)


@pytest.mark.key("training_intensity")
def test_without_it_dqn_trains_a_batch_for_each_fragment() -> None:
    agent = make_dqn(training_intensity=None, learning_starts=STEPS, timesteps_per_iteration=1000)
    info = agent.train()["info"]
    assert (info["num_steps_sampled"], info["num_updates"]) == (1000, 1000 // STEPS)


@pytest.mark.key("timesteps_per_iteration")
@both_agents
@pytest.mark.parametrize("timesteps", [100, 300])
def test_an_iteration_is_so_many_steps(run: str, timesteps: int) -> None:
    agent = MAKERS[run](timesteps_per_iteration=timesteps)
    assert [agent.train()["timesteps_this_iter"] for _ in range(2)] == [timesteps] * 2


@pytest.mark.key("min_iter_time_s")
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_an_iteration_lasts_at_least_so_long(seconds: float) -> None:
    agent = make_dqn(min_iter_time_s=seconds, timesteps_per_iteration=STEPS, learning_starts=1000)
    row = agent.train()
    assert row["time_this_iter_s"] >= seconds
    assert (row["timesteps_this_iter"] > STEPS) == (seconds > 0.0)


@pytest.mark.key("timesteps_per_iteration", "min_iter_time_s")
@both_agents
@pytest.mark.parametrize("nothing", [None, 0])
def test_iteration_without_minimum_is_one_step_that_sampled_or_trained(run: str, nothing: int | None) -> None:
    agent = MAKERS[run](timesteps_per_iteration=nothing, min_iter_time_s=nothing)
    moved, begun = [], (0, 0)
    for _ in range(30):
        info = agent.train()["info"]
        ended = (info["num_steps_sampled"], info["num_steps_trained"])
        moved.append((ended[0] - begun[0], ended[1] - begun[1]))
        begun = ended
    assert all(sampled > 0 or trained > 0 for sampled, trained in moved)
    assert max(sampled for sampled, _ in moved) == STEPS
    assert begun[1] > 0


@pytest.mark.key("metrics_smoothing_episodes")
@pytest.mark.parametrize(("window", "mean", "lowest"), [(1, 28.0, 28.0), (2, 17.0, 6.0), (100, 17.0, 6.0)])
def test_results_are_taken_over_the_newest_episodes(window: int, mean: float, lowest: float) -> None:
    # 11 steps of a CountingEnv are an episode of 3 steps that returns 6, a reset, and one of 7 that returns 28.
    fragment: dict[str, Any] = {"num_envs_per_worker": 1, "sample_batch_size": 11, "timesteps_per_iteration": 10}
    agent = make_dqn(COUNTING_ENV, metrics_smoothing_episodes=window, **fragment)
    row = agent.train()
    assert row["episodes_total"] == 2
    assert (row["episode_reward_mean"], row["episode_reward_min"]) == (mean, lowest)


@pytest.mark.key("evaluation_interval", "evaluation_num_episodes")
@pytest.mark.parametrize("num_episodes", [1, 13])
def test_every_so_many_iterations_so_many_episodes_are_evaluated(num_episodes: int) -> None:
    agent = make_dqn(IDENTITY_ENV, evaluation_interval=2, evaluation_num_episodes=num_episodes)
    rows = [agent.train(), agent.train(), agent.train(), agent.train()]
    assert ["evaluation" in row for row in rows] == [False, True, False, True]
    assert rows[1]["evaluation"]["episodes_this_iter"] == num_episodes


@pytest.mark.key("evaluation_interval")
@pytest.mark.parametrize("interval", [None, 0])
def test_without_an_interval_nothing_is_evaluated(interval: int | None) -> None:
    agent = make_dqn(IDENTITY_ENV, evaluation_interval=interval)
    assert "evaluation" not in agent.train()


class RightPolicy(ScriptedPolicy):
    """Always takes the action that pays in IdentityEnv."""

    def compute_actions(self, obs: Array) -> Array:
        return np.asarray(obs.argmax(axis=1))


@pytest.mark.key("evaluation_config.explore", "evaluation_config.exploration_final_eps")
@pytest.mark.parametrize(
    ("evaluation", "epsilon"),
    [
        ({}, 0.0),
        ({"explore": False, "exploration_final_eps": 1.0}, 0.0),
        ({"explore": True}, 0.4),
        ({"explore": True, "exploration_final_eps": 1.0}, 1.0),
        ({"explore": True, "exploration_final_eps": 0.0}, 0.0),
    ],
)
def test_evaluations_explore_as_they_are_told(
    evaluation: dict[str, Any], epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_dqn(IDENTITY_ENV, exploration_final_eps=0.4, evaluation_config=evaluation)
    monkeypatch.setattr(DQNPolicies, "make_policy", lambda *args: RightPolicy())
    returns = agent.evaluate(800).returns
    # A random action is right in one case of four.
    assert returns.mean() == pytest.approx(1.0 - 0.75 * epsilon, abs=0.09 if epsilon else 0.0)


@pytest.mark.key("evaluation_config.horizon", "horizon")
@pytest.mark.parametrize(("given", "played"), [(None, 5), (9, 9)])
def test_evaluation_episodes_have_a_horizon_of_their_own(given: int | None, played: int) -> None:
    agent = make_dqn(horizon=5, evaluation_config={"horizon": given}, evaluation_interval=1)
    row = agent.train()
    assert (row["episode_len_mean"], row["evaluation"]["episode_len_mean"]) == (5.0, played)


@pytest.mark.key("evaluation_timeout_s")
def test_evaluation_without_an_end_reports_what_ended_and_training_goes_on() -> None:
    agent = make_dqn(ENDLESS_ENV, evaluation_interval=1, evaluation_timeout_s=0.05)
    rows = [agent.train(), agent.train()]
    events = agent.drain_events()
    assert [row["evaluation"]["episodes_this_iter"] for row in rows] == [0, 0]
    assert math.isnan(rows[0]["evaluation"]["episode_reward_mean"])
    assert rows[1]["timesteps_total"] > rows[0]["timesteps_total"]
    assert events[0].startswith("0 of 10 evaluation episodes ended within 0 s, ")
    assert events[0].endswith("set evaluation_config.horizon, or a longer evaluation_timeout_s")


def test_requested_stop_ends_an_evaluation_and_leaves_out_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "REPORT_PERIOD_S", 0.0)
    agent = make_dqn(ENDLESS_ENV, evaluation_interval=1)
    steps: list[int] = []
    row = agent.train(lambda: len(steps) >= 3, lambda num_ended, num_env_steps: steps.append(num_env_steps))
    next_row = agent.train(lambda: True)
    assert steps == sorted(steps)
    assert len(steps) == 3
    assert "evaluation" not in row
    assert "evaluation" not in next_row
    assert agent.drain_events() == []


@pytest.mark.key("evaluation_config.explore", "evaluation_config.env_config", "evaluation_num_episodes")
def test_checkpoint_is_evaluated_as_its_own_run_evaluates(tmp_path: Path) -> None:
    evaluation = {"explore": True, "exploration_final_eps": 0.6, "env_config": {"pay": 7.0}}
    keys: dict[str, Any] = {"evaluation_interval": 1, "evaluation_num_episodes": 13, "evaluation_config": evaluation}
    agent = make_dqn(PAID_IDENTITY_ENV, seed=3, **keys)
    agent.train()
    row = agent.train()
    config = agent.config.model_dump(mode="json") | {"seed": 3}
    experiment = {"name": "e", "run": "DQN", "env": PAID_IDENTITY_ENV, "config": config}
    path = agent.save(tmp_path / "checkpoint_000002", {"experiment": experiment})
    trained_with(PAID_IDENTITY_ENV)
    own = evaluate_checkpoint(path, EvaluationRequest())
    assert (own.explores, own.exploration) == (True, {"epsilon": 0.6})
    assert len(own.played.returns) == row["evaluation"]["episodes_this_iter"] == 13
    assert own.played.returns.mean() == row["evaluation"]["episode_reward_mean"]
    assert set(own.played.returns.tolist()) == {0.0, 7.0}
    other = evaluate_checkpoint(path, EvaluationRequest(num_episodes=40, seed=5, explore=False))
    assert (len(other.played.returns), other.explores) == (40, False)
    assert other.played.returns.mean() != own.played.returns.mean()


@pytest.mark.key("evaluation_config.env_config")
def test_evaluations_lay_their_env_config_over_that_of_training() -> None:
    env_config: dict[str, Any] = {"env_config": {"pay": 2.0}, "horizon": 5, "evaluation_interval": 1}
    for changed, paid in (({}, 10.0), ({"env_config": {"pay": 7.0}}, 35.0)):
        agent = make_dqn(PAYING_ENV, evaluation_config=changed, **env_config)
        row = agent.train()
        assert (row["episode_reward_mean"], row["evaluation"]["episode_reward_mean"]) == (10.0, paid)


def pool_of(agent: Any) -> CountingPool:
    assert isinstance(agent.pool, CountingPool)
    return agent.pool


@pytest.mark.key("optimizer.num_replay_buffer_shards")
@pytest.mark.parametrize("num_shards", [1, 3])
def test_replay_is_split_over_so_many_shards(num_shards: int) -> None:
    agent = make_apex(optimizer={"num_replay_buffer_shards": num_shards}, timesteps_per_iteration=600)
    fills = agent.train()["info"]["replay_fill_per_shard"]
    assert sum(name.startswith("replay-") for name in pool_of(agent).placed) == num_shards
    assert len(fills) == num_shards
    assert min(fills) > 0


@pytest.mark.key("optimizer.max_weight_sync_delay")
@pytest.mark.parametrize("fragments", [1, 3])
def test_a_worker_gets_new_weights_after_so_many_steps(fragments: int) -> None:
    agent = make_apex(num_workers=1, optimizer={"max_weight_sync_delay": fragments * STEPS})
    versions = []
    for version in range(1, 14):
        agent.source.publish(version, weights_of(agent))
        versions += [info.weights_version for _, info in poll(agent)[-1:]]
    changes = [i for i in range(1, len(versions)) if versions[i] != versions[i - 1]]
    assert set(np.diff(changes)) == {fragments}


@pytest.mark.key("optimizer.sample_queue_depth")
@pytest.mark.parametrize("depth", [1, 3])
def test_so_many_sample_calls_per_worker_are_under_way(depth: int) -> None:
    agent = make_apex(num_workers=2, optimizer={"sample_queue_depth": depth})
    agent.source.poll(0)
    assert pool_of(agent).calls["sample"] == 2 * depth
    agent.source.poll(0)
    assert pool_of(agent).calls["sample"] == 4 * depth


class SlowLearner:
    """Holds an agent's learner in its first update until it is released."""

    def __init__(self, agent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.released = threading.Event(), threading.Event()
        with agent.optimizer.paused() as learner:
            self._learn_on_batch = learner.learn_on_batch
            monkeypatch.setattr(learner, "learn_on_batch", self._learn)

    def _learn(self, batch: SampleBatch) -> LearnResult:
        self.entered.set()
        assert self.released.wait(60.0)
        result: LearnResult = self._learn_on_batch(batch)
        return result


@pytest.mark.key("optimizer.learner_queue_depth")
@pytest.mark.parametrize("depth", [1, 5])
def test_no_more_batches_wait_for_the_learner(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_apex(num_workers=1, optimizer={"learner_queue_depth": depth})
    learner = SlowLearner(agent, monkeypatch)
    agent.train(learner.entered.is_set)
    sizes = []
    for _ in range(20):
        agent.optimizer.step()
        sizes.append(agent.optimizer.stats()["learner_queue_size"])
    learner.released.set()
    assert max(sizes) == sizes[-1] == depth


@pytest.mark.key("optimizer.replay_queue_depth")
@pytest.mark.parametrize("depth", [1, 4])
def test_so_many_batches_are_asked_of_a_shard_ahead(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_apex(
        num_workers=1,
        optimizer={"replay_queue_depth": depth, "num_replay_buffer_shards": 2, "learner_queue_depth": 100},
        learning_starts=2,
    )
    learner, calls = SlowLearner(agent, monkeypatch), []
    for _ in range(12):
        before = pool_of(agent).calls["replay"]
        agent.optimizer.step()
        calls.append(pool_of(agent).calls["replay"] - before)
    learner.released.set()
    assert max(calls) == calls[-2] == 2 * depth


@pytest.mark.key("optimizer.debug")
@pytest.mark.parametrize("debug", [False, True])
def test_debug_tells_where_the_drivers_time_goes(debug: bool) -> None:
    agent = make_apex(optimizer={"debug": debug})
    info = agent.train()["info"]
    assert ("timing_s" in info) == debug
    if debug:
        assert info["timing_s"].keys() == {
            "wait",
            "store_samples",
            "feed_learner",
            "return_priorities",
            "publish_weights",
        }
        assert sum(info["timing_s"].values()) > 0


def test_dqn_which_has_no_debug_does_not() -> None:
    agent = make_dqn()
    assert "timing_s" not in agent.train()["info"]
