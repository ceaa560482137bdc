"""The worker on envs whose every observation, reward and ending is known; its spec on its way to another process."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from rlexp.agents.actor_critic.policy import ActorCriticPolicy
from rlexp.agents.dqn.exploration import ConstantEpsilon, PolicyExploration
from rlexp.agents.dqn.policy import DQNPolicy
from rlexp.config.keys.dqn import DQNConfig
from rlexp.errors import EnvError, TrialError
from rlexp.models.action_distributions import actions_of
from rlexp.models.network_config import ActorCriticConfig, QNetworkConfig, torso_config_of
from rlexp.models.networks import ActorCritic, QNetwork
from rlexp.policy import Outputs, Weights
from rlexp.rollout.folds import Advantages, NStep
from rlexp.rollout.fragment import SampleInfo
from rlexp.rollout.worker import MakePolicy, RolloutWorker, WorkerSpec
from rlexp.sample_batch import ACTIONS, NEW_OBS, OBS, TD_ERRORS, Array, SampleBatch, WrittenRows
from tests.lab.doubles import RememberedPolicies, StepPolicy
from tests.lab.dqn import PLAIN_HEAD
from tests.lab.envs import COUNTING_ENV, ENDLESS_ENV, RAISING_ENV, CountingEnv, episode_length
from tests.lab.rollout import assert_same_batch, spec_of, whole

NUM_ENVS = 2
FRAGMENT_LENGTH = 5
GAMMA = 0.5
THREE_STEPS = NStep(3, GAMMA)
CYCLE = 3 + 7 + 12
"""Env steps of three episodes."""
REPORTING_ENV = "tests.unit.rollout.test_rollout_worker:ReportingEnv"


def make_worker(
    make_policy: MakePolicy = StepPolicy, env: str = COUNTING_ENV, fold: NStep = THREE_STEPS, **rollout: Any
) -> RolloutWorker:
    rollout = {"fragment_length": FRAGMENT_LENGTH, **rollout}
    return RolloutWorker(spec_of(env, make_policy, NUM_ENVS, fold, **rollout))


def sample(worker: RolloutWorker, calls: int) -> tuple[SampleBatch, list[SampleInfo]]:
    """Sample so often; return all rows, and what was told about each fragment."""
    samples = [worker.sample(0) for _ in range(calls)]
    return SampleBatch.concat([whole(batch) for batch, _ in samples]), [info for _, info in samples]


@pytest.mark.parametrize("fragment_length", [1, 5, 40])
def test_every_step_of_the_finished_episodes_is_the_start_of_one_row(fragment_length: int) -> None:
    batch, _ = sample(make_worker(fragment_length=fragment_length), calls=80 // fragment_length)
    starts = Counter(map(tuple, batch[OBS].astype(int).tolist()))
    first_id = min(env_id for env_id, _, _ in starts)
    # 80 vector steps hold ten whole episodes, with their resets, and some of the next.
    whole = {
        (first_id + env, episode, step)
        for env in range(NUM_ENVS)
        for episode in range(10)
        for step in range(episode_length(episode))
    }
    assert all(starts[start] == 1 for start in whole)
    assert {start for start in starts if start[1] < 10} == whole


def test_the_last_observation_of_an_episode_is_its_true_one() -> None:
    batch, _ = sample(make_worker(fold=NStep(1, GAMMA)), calls=16)
    ends = {tuple(obs[1:]) for obs in batch[NEW_OBS].astype(int).tolist() if obs[2] == episode_length(obs[1])}
    assert ends == {(episode, episode_length(episode)) for episode in range(10)}


def test_rows_go_through_the_policy() -> None:
    batch, _ = sample(make_worker(), calls=4)
    assert batch[TD_ERRORS].tolist() == batch[OBS][:, 2].tolist()
    assert batch[ACTIONS].tolist() == batch[OBS][:, 2].tolist()


class KeepingWriter:
    """A row writer that keeps what it is to write."""

    def __init__(self) -> None:
        self.batches: list[SampleBatch] = []

    def write(self, batch: SampleBatch) -> WrittenRows:
        self.batches.append(batch)
        return WrittenRows(3, 7, 0, batch.count, (), has_td_errors=True)


def test_rows_are_written_instead_of_sent_where_there_is_a_writer() -> None:
    sent, _ = sample(make_worker(), calls=3)
    writer = KeepingWriter()
    spec = spec_of(COUNTING_ENV, StepPolicy, NUM_ENVS, THREE_STEPS, fragment_length=FRAGMENT_LENGTH)
    worker = RolloutWorker(replace(spec, row_writer=writer))
    samples = [worker.sample(0) for _ in range(3)]
    assert_same_batch(SampleBatch.concat(writer.batches), sent)
    for batch, (written, info) in zip(writer.batches, samples, strict=True):
        assert written == WrittenRows(3, 7, 0, batch.count, (), has_td_errors=True)
        assert (info.num_rows, info.shard) == (batch.count, 3)


def test_env_steps_are_counted_without_resets() -> None:
    # The second cycle of an env begins with a reset: 22 steps, 2 resets between 3 episodes, then 1.
    worker = make_worker(fragment_length=CYCLE + 2)
    _, (first, second) = sample(worker, calls=2)
    assert first.num_env_steps == NUM_ENVS * CYCLE
    assert second.num_env_steps == NUM_ENVS * (CYCLE + 2 - 3)


def test_rows_that_wait_are_counted_as_steps_but_not_as_rows() -> None:
    batch, info = make_worker(fragment_length=3).sample(0)
    assert info.num_env_steps == NUM_ENVS * 3
    assert info.num_rows == batch.count == NUM_ENVS * 1


@pytest.mark.parametrize("clip_rewards", [False, True])
@pytest.mark.parametrize("fragment_length", [1, 5, 24])
def test_episodes_are_reported_whole_and_unclipped(fragment_length: int, clip_rewards: bool) -> None:
    _, infos = sample(
        make_worker(fragment_length=fragment_length, clip_rewards=clip_rewards), calls=24 // fragment_length
    )
    lengths = [length for info in infos for length in info.episodes.lengths.tolist()]
    returns = [value for info in infos for value in info.episodes.returns.tolist()]
    expected = [3, 3, 7, 7] if fragment_length == 5 else [3, 3, 7, 7, 12, 12]
    assert lengths == expected
    assert returns == [sum(range(1, length + 1)) for length in expected]


@pytest.mark.parametrize(
    "keys", [["game_over"], ["game_over", "game_score", "game_steps"], ["resting", "agent_returns"]]
)
def test_infos_of_an_env_are_not_taken_for_reports_on_games_or_agents(keys: list[str]) -> None:
    spec = spec_of(REPORTING_ENV, StepPolicy, NUM_ENVS, THREE_STEPS, {"keys": keys}, fragment_length=CYCLE + 2)
    _, (info,) = sample(RolloutWorker(spec), calls=1)
    assert info.episodes.lengths.tolist() == [3, 3, 7, 7, 12, 12]
    assert info.episodes.returns.tolist() == [sum(range(1, length + 1)) for length in info.episodes.lengths]


class ReportingEnv(CountingEnv):
    """Gives infos under names that stand for a game's state."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__()
        self._keys = keys

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], dict.fromkeys(self._keys, self._step % 2 == 0)


def test_an_episode_is_reported_in_the_fragment_it_ends_in() -> None:
    _, infos = sample(make_worker(fragment_length=2), calls=3)
    assert [info.episodes.lengths.tolist() for info in infos] == [[], [3, 3], []]


def test_episodes_say_whether_their_env_is_reported() -> None:
    _, (info,) = sample(make_worker(reported_envs=(False, True)), calls=1)
    assert info.episodes.reported.tolist() == [False, True]
    _, (info,) = sample(make_worker(), calls=1)
    assert info.episodes.reported.tolist() == [True, True]


def test_policy_gets_the_steps_of_all_workers_and_the_envs_that_reset() -> None:
    policies = RememberedPolicies()
    make_worker(policies, fragment_length=13).sample(20)
    (policy,) = policies.made
    # Episodes of 3 and 7 steps, and the reset behind each.
    assert policy.acts == [(20 + NUM_ENVS * t, [t in (3, 11)] * NUM_ENVS) for t in range(13)]


def test_it_acts_with_the_weights_it_was_given_and_tells_their_version() -> None:
    policies = RememberedPolicies()
    worker = make_worker(policies, fragment_length=2)
    assert worker.sample(0)[1].weights_version == 0
    weights = {"layer": np.ones(3)}
    worker.set_weights(12, weights)
    assert worker.sample(0)[1].weights_version == 12
    assert [policy.weights_given for policy in policies.made] == [[weights]]


def explored(seed: int) -> SampleBatch:
    exploration = PolicyExploration(ConstantEpsilon((0.9,) * NUM_ENVS), seed, worker_index=0)
    spec = spec_of(COUNTING_ENV, partial(StepPolicy, exploration), NUM_ENVS)
    return sample(RolloutWorker(replace(spec, seed=seed)), calls=4)[0]


def test_the_same_seed_explores_the_same_way_and_another_one_does_not() -> None:
    first, again, other = (explored(seed) for seed in (1, 1, 2))
    assert first[ACTIONS].tolist() == again[ACTIONS].tolist()
    assert first[OBS].tolist() == again[OBS].tolist()
    assert first[ACTIONS].tolist() != other[ACTIONS].tolist()
    assert first[OBS][0, 0] != other[OBS][0, 0]


def test_batches_stay_as_they_were_when_the_worker_goes_on() -> None:
    worker = make_worker()
    batch = whole(worker.sample(0)[0])
    before = {name: column.copy() for name, column in batch.columns.items()}
    sample(worker, calls=3)
    assert all((batch[name] == column).all() for name, column in before.items())


class WaitingPolicy(StepPolicy):
    """Post-processes a batch only once somebody has acted so often, and remembers who did what."""

    PATIENCE_S = 20.0
    actors: ClassVar[list[int]] = []
    packs: ClassVar[list[int]] = []
    acted = threading.Semaphore(0)

    def act(self, obs: Array, resetting: Array, num_steps_sampled: int) -> tuple[Array, Outputs]:
        self.actors.append(id(self))
        self.acted.release()
        return super().act(obs, resetting, num_steps_sampled)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        self.packs.append(id(self))
        for _ in range(2 * FRAGMENT_LENGTH):
            assert self.acted.acquire(timeout=self.PATIENCE_S), "nobody acts while this batch is packed"
        return super().postprocess(batch)


def test_a_worker_that_records_ahead_plays_on_while_it_packs() -> None:
    worker = make_worker(WaitingPolicy, sample_async=True)
    worker.sample(0)  # waits for the acts of two fragments
    worker.stop()
    assert len(WaitingPolicy.actors) == 2 * FRAGMENT_LENGTH, "one fragment ahead, and no more"
    assert not set(WaitingPolicy.actors) & set(WaitingPolicy.packs), "a policy is never shared between threads"


def test_both_policies_of_a_worker_that_records_ahead_get_new_weights() -> None:
    policies = RememberedPolicies()
    worker = make_worker(policies, sample_async=True)
    weights = {"layer": np.ones(3)}
    worker.set_weights(1, weights)
    worker.sample(0)
    worker.stop()
    assert [policy.weights_given for policy in policies.made] == [[weights]] * 2


def test_the_clock_goes_on_while_a_call_waits_for_whole_episodes() -> None:
    policies = RememberedPolicies()
    worker = make_worker(policies, fragment_length=1, batch_mode="complete_episodes")
    _, info = worker.sample(500)
    assert info.num_env_steps == NUM_ENVS * 3
    assert policies.clocks() == [500, 500 + NUM_ENVS, 500 + NUM_ENVS * 2]


def test_the_clock_counts_the_steps_ahead() -> None:
    policies = RememberedPolicies()
    worker = make_worker(policies, ENDLESS_ENV, fragment_length=1, sample_async=True)
    clocks = [0, NUM_ENVS, 2 * NUM_ENVS]
    for clock in clocks:
        worker.sample(clock)
    worker.stop()
    assert policies.clocks()[:3] == clocks


def test_the_error_of_an_env_surfaces() -> None:
    with pytest.raises(EnvError, match=r"tests/lab/envs.py:\d+ in step: RuntimeError: this env raises"):
        make_worker(fragment_length=10, env=RAISING_ENV).sample(0)


class LosesItsWayEnv(CountingEnv):
    """Shows NaN after its second step, and refuses what a policy makes of it."""

    def step(self, action: int) -> Any:
        if self._step == 2:
            raise ValueError("no such action")
        obs, *rest = super().step(action)
        obs[0] = np.nan if self._step == 2 else 0.0
        return obs, *rest


def test_the_error_of_an_env_is_not_told_before_the_observation_that_led_to_it() -> None:
    env = "tests.unit.rollout.test_rollout_worker:LosesItsWayEnv"
    worker = RolloutWorker(spec_of(env, StepPolicy, NUM_ENVS, THREE_STEPS, fragment_length=10))
    with pytest.raises(TrialError, match=r"the env returned an observation\[0\] of nan"):
        worker.sample(0)


def test_stops_twice() -> None:
    worker = make_worker()
    worker.sample(0)
    worker.stop()
    worker.stop()


SAMPLES_ONCE = """
import pickle, sys
from rlexp.rollout.worker import RolloutWorker
spec, weights = pickle.load(sys.stdin.buffer)
worker = RolloutWorker(spec)
worker.set_weights(1, weights)
rows, info = worker.sample(0)
worker.stop()
assert info.num_rows == len(rows) > 0, info
assert sys.argv[1] in rows
heavy = {"torch", "ray"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def dqn_worker() -> tuple[WorkerSpec, Weights]:
    network = QNetworkConfig((4,), 2, torso_config_of(DQNConfig()), PLAIN_HEAD)
    exploration = PolicyExploration(ConstantEpsilon((0.1, 0.1)), seed=0, worker_index=0)
    make_policy = partial(DQNPolicy, network, exploration, True, 1)
    weights = {name: tensor.numpy() for name, tensor in QNetwork(network).state_dict().items()}
    return spec_of("CartPole-v1", make_policy, num_envs=2, fragment_length=10), weights


def ppo_worker() -> tuple[WorkerSpec, Weights]:
    actions = actions_of(Discrete(2))
    network = ActorCriticConfig((4,), actions.num_inputs, 0, torso_config_of(DQNConfig()), shares_torso=False)
    make_policy = partial(ActorCriticPolicy, network, actions, 0, 1)
    weights = {name: tensor.numpy() for name, tensor in ActorCritic(network).state_dict().items()}
    fold = Advantages(0.99, 0.95, uses_gae=True, uses_critic=True)
    return spec_of("CartPole-v1", make_policy, num_envs=2, fold=fold, fragment_length=10), weights


@pytest.mark.parametrize(("make", "column"), [(dqn_worker, "td_errors"), (ppo_worker, "logp")])
def test_worker_of_a_small_network_needs_neither_torch_nor_ray(
    make: Callable[[], tuple[WorkerSpec, Weights]], column: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLES_ONCE, column],
        input=pickle.dumps(make()),
        capture_output=True,
        timeout=60,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr.decode()
