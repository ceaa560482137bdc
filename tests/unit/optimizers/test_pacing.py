"""

Workers in the learner's thread act with its newest weights in its own memory; all others get copies.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.learner import DQNLearner, DQNLearnerConfig
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.cluster.pool.pool import InlineTaskPool
from rlexp.optimizers.pacing import Pacing
from rlexp.optimizers.sync_replay_optimizer import SyncReplayOptimizer
from rlexp.policy import LiveWeights, Weights
from rlexp.rollout.recorder import RecordingAhead
from rlexp.rollout.source import LocalWorkers, SampleSource
from rlexp.rollout.worker import RolloutWorker
from rlexp.sample_batch import OBS
from rlexp.schedules import LinearSchedule, PiecewiseSchedule
from tests.lab.doubles import ScriptedSource, make_shard
from tests.lab.dqn import NETWORK, make_batch
from tests.lab.envs import IDENTITY_ENV
from tests.lab.rollout import spec_of

ADAPTED = replace(NETWORK, observation_shape=(4,))
CONFIG = DQNLearnerConfig(PiecewiseSchedule(((0, 1e-2),)), 1e-8, 40.0, True, 50, True, "cpu")
EXPLORATION = PolicyExploration(ConstantEpsilon((0.3, 0.3)), 0, 0)


class RecordingWorker(RolloutWorker):
    """Remembers the weights that it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, Weights]] = []
        super().__init__(replace(spec_of(IDENTITY_ENV, partial(DQNPolicy, ADAPTED, EXPLORATION), 2), seed=0))

    def set_weights(self, version: int, weights: Weights) -> None:
        self.given.append((version, weights))
        super().set_weights(version, weights)


def make_optimizer(source: SampleSource, learner: DQNLearner) -> SyncReplayOptimizer:
    beta = LinearSchedule(0.4, 0.4, 0)
    shard = make_shard(learning_starts=8)
    return SyncReplayOptimizer(InlineTaskPool(), source, shard, learner, 1, beta, Pacing(None, 8))


def test_a_worker_in_its_thread_reads_the_learners_memory_and_knows_each_version() -> None:
    worker = RecordingWorker()
    learner = DQNLearner(ADAPTED, CONFIG, 0)
    optimizer = make_optimizer(LocalWorkers(InlineTaskPool(), [worker]), learner)
    optimizer.start()
    while learner.num_updates < 5:
        optimizer.step()
    assert [version for version, _ in worker.given] == [0, 1, 2, 3, 4, 5]
    assert all(weights is learner.live_weights() for _, weights in worker.given)
    own, copied = worker._policy, DQNPolicy(ADAPTED)
    copied.set_weights(learner.get_weights())
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    assert isinstance(own, DQNPolicy)
    np.testing.assert_allclose(own.action_values(obs), copied.action_values(obs), rtol=1e-4, atol=1e-5)
    info = optimizer.drain_infos()[-1]
    assert info.weights_version == learner.num_updates - 1  # it acted before the last update


def test_workers_elsewhere_get_copies() -> None:
    class Source(ScriptedSource):
        given: list[Weights]

        def publish(self, version: int, weights: Weights) -> None:
            self.given = [*getattr(self, "given", []), weights]

    source, learner = Source(), DQNLearner(ADAPTED, CONFIG, 0)
    make_optimizer(source, learner).start()
    assert not isinstance(source.given[0], LiveWeights)
    before = {name: weight.copy() for name, weight in source.given[0].items()}
    weights = learner.live_weights()
    assert weights is not None
    for weight in weights.values():
        weight *= 2.0
    assert all((source.given[0][name] == weight).all() for name, weight in before.items())


def test_a_thread_that_acts_meanwhile_gets_a_copy() -> None:
    class Slow:
        """Takes its weights only when it may go on."""

        def __init__(self) -> None:
            self.may_go_on, self.has_taken = threading.Event(), threading.Event()
            self.weights: Weights = {}

        def set_weights(self, version: int, weights: Weights) -> None:
            assert self.may_go_on.wait(10)
            self.weights = weights
            self.has_taken.set()

        def stop(self) -> None:
            return None

    recorder: Any = Slow()
    ahead = RecordingAhead(recorder)
    weights = LiveWeights(bias=np.ones(3, np.float32))
    ahead.set_weights(1, weights)
    weights["bias"][:] = 7.0
    recorder.may_go_on.set()
    assert recorder.has_taken.wait(10)
    ahead.stop()
    assert recorder.weights["bias"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("num_atoms", [1, 5])
def test_a_noisy_policy_explores_with_live_weights_as_with_copies(num_atoms: int) -> None:
    config = replace(NETWORK, head=replace(NETWORK.head, noisy=True, num_atoms=num_atoms))
    learner = DQNLearner(config, CONFIG, 0)
    exploration = replace(EXPLORATION, epsilon=ConstantEpsilon((0.0,) * 32))
    shared, copied = DQNPolicy(config, exploration, True), DQNPolicy(config, exploration, True)
    weights, batch = learner.live_weights(), make_batch()
    assert weights is not None
    for _ in range(3):
        learner.learn_on_batch(batch)
        shared.set_weights(weights)
        copied.set_weights(learner.get_weights())
        resetting = np.zeros(len(batch), bool)
        outputs = [policy.act(batch[OBS], resetting, 0)[1] for policy in (shared, copied)]
        np.testing.assert_allclose(outputs[0]["q_values"], outputs[1]["q_values"], rtol=1e-5, atol=1e-6)


def test_nobody_waits_without_an_intensity() -> None:
    pacing = Pacing(None, batch_rows=10)
    pacing.begin(100, 0)
    assert pacing.may_train(100, 10**6, batches_on_their_way=50)
    assert pacing.may_sample(10**6, 0)
    assert not pacing.holds


def test_nobody_waits_before_the_learner_begins() -> None:
    pacing = Pacing(4.0, batch_rows=10)
    assert pacing.may_sample(10**6, 0)
    assert pacing.may_train(0, 10**6, batches_on_their_way=3)


def test_counts_from_where_the_learner_began() -> None:
    pacing = Pacing(4.0, batch_rows=10)
    pacing.begin(1000, 500)
    pacing.begin(9999, 9999)
    # 25 steps are worth 100 rows, 10 batches; 30 rows of them were trained.
    assert pacing.owed(1025, 530) == pytest.approx(7.0)


def test_a_side_waits_once_it_is_a_batch_ahead() -> None:
    pacing = Pacing(2.0, batch_rows=10)
    pacing.begin(0, 0)
    assert pacing.may_sample(4, 0)
    assert not pacing.may_sample(5, 0)
    assert pacing.may_train(0, 9, batches_on_their_way=0)
    assert not pacing.may_train(0, 10, batches_on_their_way=0)
    assert not pacing.may_train(0, 0, batches_on_their_way=1)


@pytest.mark.parametrize("sampled", range(0, 60, 7))
@pytest.mark.parametrize("trained", range(0, 60, 7))
def test_both_sides_never_wait(sampled: int, trained: int) -> None:
    pacing = Pacing(1.5, batch_rows=8)
    pacing.begin(0, 0)
    assert pacing.may_sample(sampled, trained) or pacing.may_train(sampled, trained, batches_on_their_way=0)
