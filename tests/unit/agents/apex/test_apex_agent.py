"""The Ape-X agent with its learner thread, but without Ray."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlexp.agents.apex.agent import ApexAgent
from rlexp.agents.dqn.exploration import epsilon_ladder
from rlexp.agents.dqn.learner import DQNLearner
from rlexp.cluster.pool.pool import Actor, InlineTaskPool, Resources
from rlexp.config.keys.apex import ApexConfig, AsyncReplayOptimizerConfig
from rlexp.config.keys.model import ModelConfig
from rlexp.policy import LearnResult, Weights
from rlexp.rollout.evaluation import ShouldStop, never
from rlexp.rollout.worker import WorkerSpec
from rlexp.sample_batch import Array, SampleBatch
from tests.lab.envs import COUNTING_ENV, IDENTITY_ENV, UNEVEN_ENV

OPTIMIZER = AsyncReplayOptimizerConfig(
    num_replay_buffer_shards=2, learner_queue_depth=4, max_weight_sync_delay=40, sample_queue_depth=1
)
SMALL: Mapping[str, Any] = {
    "model": ModelConfig(fcnet_hiddens=(16,)),
    "hiddens": (16,),
    "lr": 5e-3,
    "num_workers": 0,
    "num_envs_per_worker": 4,
    "sample_batch_size": 4,
    "train_batch_size": 32,
    "buffer_size": 1000,
    "learning_starts": 64,
    "target_network_update_freq": 500,
    "n_step": 1,
    "timesteps_per_iteration": 200,
    "min_iter_time_s": 0.0,
    "optimizer": OPTIMIZER,
}


class YieldingPool(InlineTaskPool):
    """Lets the learner's thread run where a pool with other processes would wait for them."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def wait(self, timeout: float) -> bool:
        self._never.wait(min(timeout, 0.002))
        return False


def make_agent(env: str = IDENTITY_ENV, **changes: Any) -> ApexAgent:
    return ApexAgent(env, ApexConfig(**{**SMALL, **changes}), YieldingPool(), seed=0)


def has_learned(agent: ApexAgent, updates: int) -> Callable[[], bool]:
    return lambda: agent.optimizer.counters.num_steps_trained >= updates * agent.config.train_batch_size


@pytest.mark.parametrize(
    ("num_workers", "replay_storage"), [(0, "auto"), (2, "auto"), (2, "shared_memory"), (0, "shared_memory")]
)
def test_solves_the_identity_env(num_workers: int, replay_storage: str) -> None:
    agent = make_agent(num_workers=num_workers, replay_storage=replay_storage, timesteps_per_iteration=10**9)
    goal = 0
    while agent.evaluate(50).returns.mean() < 1.0:
        goal += 100
        assert goal <= 3000, f"not solved after {goal - 100} updates"
        agent.train(should_stop=has_learned(agent, goal))
    assert goal > 0, "solved before it learned"
    agent.stop()


class SpecPool(YieldingPool):
    """Remembers what its workers are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: list[WorkerSpec] = []

    def place(
        self, name: str, resources: Resources | None, make: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Actor[Any]:
        self.specs += [each for each in args if isinstance(each, WorkerSpec)]
        return super().place(name, resources, make, *args, **kwargs)


@pytest.mark.parametrize("has_memory", [True, False])
def test_workers_read_weights_where_the_system_gives_shared_memory(
    has_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_memory:
        monkeypatch.delattr(os, "memfd_create")
    pool = SpecPool()
    agent = ApexAgent(IDENTITY_ENV, ApexConfig(**{**SMALL, "num_workers": 2}), pool, seed=0)
    assert [spec.weights is not None for spec in pool.specs] == [has_memory] * 2
    assert agent.train()["info"]["num_weight_syncs"] >= 1
    agent.stop()


@pytest.mark.parametrize(
    ("changes", "several"),
    [({}, True), ({"training_intensity": 2.0}, False), ({"replay_storage": "shared_memory"}, False)],
)
def test_workers_send_several_fragments_at_once_only_where_nobody_waits_for_single_ones(
    changes: dict[str, Any], several: bool
) -> None:
    pool = SpecPool()
    agent = ApexAgent(COUNTING_ENV, ApexConfig(**{**SMALL, "num_workers": 2, **changes}), pool, seed=0)
    agent.stop()
    assert [(spec.message.num_fragments > 1) for spec in pool.specs] == [several] * 2
    handles = [spec.weights for spec in pool.specs]
    assert [(handle.index, handle.max_delay) for handle in handles if handle is not None] == [(0, 40), (1, 40)]


@pytest.mark.parametrize(("fragment_s", "expected"), [(0.005, 4), (0.024, 4), (0.04, 2), (0.06, 1)])
def test_a_message_has_four_fragments_of_a_worker_that_shares_its_core(fragment_s: float, expected: int) -> None:
    pool = SpecPool()
    agent = ApexAgent(COUNTING_ENV, ApexConfig(**{**SMALL, "num_workers": 2}), pool, seed=0)
    agent.stop()
    fragment_bytes = 400 * 52  # of CartPole: 50 steps of 8 envs
    num_fragments = 1
    while pool.specs[0].message.have_room(num_fragments, num_fragments * fragment_bytes, num_fragments * fragment_s):
        num_fragments += 1
    assert num_fragments == expected


def test_buffer_and_start_are_split_over_the_shards_so_that_nothing_is_lost() -> None:
    agent = make_agent(buffer_size=1001, learning_starts=65)
    shard = agent.replay_config(2)
    assert (shard.capacity, shard.learning_starts, shard.train_batch_size) == (501, 33, 32)
    agent.stop()


@pytest.mark.parametrize(("num_workers", "rungs"), [(2, 1), (3, 1), (4, 2), (6, 2)])
def test_the_third_that_explores_least_is_reported(num_workers: int, rungs: int) -> None:
    agent = make_agent(num_workers=num_workers)
    reported = [epsilon for epsilon in epsilon_ladder(num_workers) if epsilon <= agent.reported_epsilon()]
    assert len(reported) == rungs
    agent.stop()


def test_reported_episodes_are_those_of_the_least_exploring_envs() -> None:
    # One env in four counts; all of them play CountingEnv's episodes in step.
    agent = make_agent(COUNTING_ENV, num_envs_per_worker=4, sample_batch_size=50, timesteps_per_iteration=150)
    row = agent.train()
    assert row["episodes_total"] == 4 * 6
    assert row["episode_reward_mean"] == row["episode_reward_mean_all"] == pytest.approx((6 + 28 + 78) / 3)
    assert math.isclose(row["episode_len_mean"], (3 + 7 + 12) / 3)
    agent.stop()


def test_episodes_of_the_other_envs_are_reported_apart() -> None:
    # Of three envs one counts; the neighbours in a row of UnevenEnvs always earn 1, or always 0.
    agent = make_agent(UNEVEN_ENV, num_envs_per_worker=3, sample_batch_size=20)
    row = agent.train()
    assert row["episode_reward_min"] == row["episode_reward_mean"] == row["episode_reward_max"]
    assert row["episode_reward_mean"] in (0.0, 1.0)
    assert 0.0 < row["episode_reward_mean_all"] < 1.0
    agent.stop()


class OverlapLearner(DQNLearner):
    """Tells whether somebody read the learner's state while its thread was inside an update."""

    PATIENCE_S = 0.3
    was_read = threading.Event()
    updating = threading.Event()
    overlapped = False

    def learn_on_batch(self, batch: SampleBatch, should_stop: ShouldStop = never) -> LearnResult:
        self.updating.set()
        OverlapLearner.overlapped |= self.was_read.wait(self.PATIENCE_S)
        result = super().learn_on_batch(batch)
        self.updating.clear()
        self.was_read.clear()
        return result

    def get_weights(self) -> Weights:
        if self.updating.is_set():
            self.was_read.set()
        return super().get_weights()

    def state_dict(self) -> Mapping[str, Array]:
        if self.updating.is_set():
            self.was_read.set()
        return super().state_dict()


@pytest.mark.parametrize("reads", ["save", "evaluate"])
def test_nobody_reads_the_learner_while_it_is_being_written(
    reads: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlexp.agents.dqn.agent.DQNLearner", OverlapLearner)
    agent = make_agent(num_workers=1, timesteps_per_iteration=10**9)
    agent.train(should_stop=OverlapLearner.updating.is_set)
    if reads == "save":
        agent.save(tmp_path / "checkpoint_000001", {})
    else:
        agent.evaluate(4)
    agent.stop()
    assert not OverlapLearner.overlapped


@pytest.mark.parametrize(("num_workers", "has_thread"), [(0, False), (1, True)])
def test_learner_has_a_thread_beside_workers(num_workers: int, has_thread: bool) -> None:
    agent = make_agent(num_workers=num_workers)
    agent.train()
    assert ("learner" in {thread.name for thread in threading.enumerate()}) is has_thread
    agent.stop()


def test_stops_twice() -> None:
    agent = make_agent(num_workers=1)
    agent.train()
    agent.stop()
    agent.stop()
    assert "learner" not in {thread.name for thread in threading.enumerate()}
