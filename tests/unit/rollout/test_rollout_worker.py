"""The worker on envs whose every observation, reward and ending is known."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from rlexp.envs import EnvConfig, make_vector_env
from rlexp.errors import EnvError
from rlexp.rollout.exploration import AnnealedEpsilon, ConstantEpsilon, EpsilonSchedule
from rlexp.rollout.worker import FragmentInfo, RolloutWorker, RowWriter
from rlexp.sample_batch import (
    ACTIONS,
    DISCOUNTS,
    NEW_OBS,
    OBS,
    REWARDS,
    TD_ERRORS,
    Array,
    SampleBatch,
    WrittenRows,
)
from rlexp.schedules import LinearSchedule
from tests.envs import COUNTING_ENV, ENDLESS_ENV, RAISING_ENV, episode_length, episode_terminates
from tests.rollout_settings import PLAIN
from tests.sent_rows import whole
from tests.unit.rollout.policies import StepPolicy

NUM_ENVS = 2
FRAGMENT_LENGTH = 5
GREEDY = ConstantEpsilon((0.0,) * NUM_ENVS)
GAMMA = 0.5
CYCLE = 3 + 7 + 12
"""Env steps of three episodes."""


def make_worker(
    fragment_length: int = 5,
    n_step: int = 3,
    clip_rewards: bool = False,
    epsilon_schedule: EpsilonSchedule = GREEDY,
    env: str = COUNTING_ENV,
    seed: int = 0,
    row_writer: RowWriter | None = None,
) -> RolloutWorker:
    return RolloutWorker(
        partial(make_vector_env, EnvConfig(env, {}, None), NUM_ENVS),
        StepPolicy,
        epsilon_schedule,
        replace(PLAIN, fragment_length=fragment_length, n_step=n_step, gamma=GAMMA, clip_rewards=clip_rewards),
        worker_index=7,
        seed=seed,
        row_writer=row_writer,
    )


def sample(worker: RolloutWorker, calls: int) -> tuple[SampleBatch, list[FragmentInfo]]:
    """Sample so often; return all rows, and what was told about each fragment."""
    samples = [worker.sample(0) for _ in range(calls)]
    return SampleBatch.concat([whole(batch) for batch, _ in samples]), [info for _, info in samples]


@pytest.mark.parametrize("clip_rewards", [False, True])
@pytest.mark.parametrize("fragment_length", [1, 2, 5, 40])
@pytest.mark.parametrize("n_step", [1, 3])
def test_every_row_is_folded_within_its_episode(fragment_length: int, n_step: int, clip_rewards: bool) -> None:
    batch, _ = sample(make_worker(fragment_length, n_step, clip_rewards), calls=80 // fragment_length)
    for i in range(batch.count):
        env_id, episode, step = batch[OBS][i].astype(int).tolist()
        length = episode_length(episode)
        m = min(n_step, length - step)
        assert batch[NEW_OBS][i].astype(int).tolist() == [env_id, episode, step + m]
        rewards = [1 if clip_rewards else step + k + 1 for k in range(m)]
        assert batch[REWARDS][i] == pytest.approx(sum(GAMMA**k * reward for k, reward in enumerate(rewards)))
        terminated = step + m == length and episode_terminates(episode)
        assert batch[DISCOUNTS][i] == pytest.approx(0.0 if terminated else GAMMA**m)


@pytest.mark.parametrize("fragment_length", [1, 5, 40])
def test_every_step_of_the_finished_episodes_is_the_start_of_one_row(fragment_length: int) -> None:
    batch, _ = sample(make_worker(fragment_length), calls=80 // fragment_length)
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
    batch, _ = sample(make_worker(n_step=1), calls=16)
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
    worker = make_worker(row_writer=writer)
    samples = [worker.sample(0) for _ in range(3)]
    for name in sent:
        np.testing.assert_array_equal(SampleBatch.concat(writer.batches)[name], sent[name])
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
    batch, info = make_worker(fragment_length=3, n_step=3).sample(0)
    assert info.num_env_steps == NUM_ENVS * 3
    assert info.num_rows == batch.count == NUM_ENVS * 1


@pytest.mark.parametrize("clip_rewards", [False, True])
@pytest.mark.parametrize("fragment_length", [1, 5, 24])
def test_episodes_are_reported_whole_and_unclipped(fragment_length: int, clip_rewards: bool) -> None:
    _, infos = sample(make_worker(fragment_length, clip_rewards=clip_rewards), calls=24 // fragment_length)
    lengths = [length for info in infos for length in info.episodes.lengths.tolist()]
    returns = [value for info in infos for value in info.episodes.returns.tolist()]
    expected = [3, 3, 7, 7] if fragment_length == 5 else [3, 3, 7, 7, 12, 12]
    assert lengths == expected
    assert returns == [sum(range(1, length + 1)) for length in expected]


def test_an_episode_is_reported_in_the_fragment_it_ends_in() -> None:
    _, infos = sample(make_worker(fragment_length=2), calls=3)
    assert [info.episodes.lengths.tolist() for info in infos] == [[], [3, 3], []]


def test_episodes_carry_the_epsilon_of_their_env() -> None:
    _, infos = sample(make_worker(epsilon_schedule=ConstantEpsilon((0.3, 0.0))), calls=1)
    assert infos[0].episodes.epsilons.tolist() == [0.3, 0.0]
    assert infos[0].epsilons.tolist() == [0.3, 0.0]
    assert infos[0].worker_index == 7


def test_epsilon_follows_the_steps_of_all_workers_within_a_fragment() -> None:
    annealed = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 1000), 0, NUM_ENVS)
    _, info = make_worker(fragment_length=6, epsilon_schedule=annealed).sample(500)
    # The last of 6 steps comes after 5 steps of 2 envs; the episodes ended in the third one, after 4.
    assert info.epsilons == pytest.approx(np.full(NUM_ENVS, 1 - 510 / 1000))
    assert info.episodes.epsilons == pytest.approx(np.full(NUM_ENVS, 1 - 504 / 1000))


def test_the_policy_is_told_how_much_to_explore_and_which_envs_reset() -> None:
    told: list[tuple[list[float], list[bool]]] = []

    class ToldPolicy(StepPolicy):
        def sample_actions(
            self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
        ) -> tuple[Array, Array | None]:
            told.append((epsilons.tolist(), resetting.tolist()))
            return super().sample_actions(obs, epsilons, resetting, rng)

    annealed = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 100), 0, NUM_ENVS)
    make_env = partial(make_vector_env, EnvConfig(COUNTING_ENV, {}, None), NUM_ENVS)
    RolloutWorker(make_env, ToldPolicy, annealed, replace(PLAIN, fragment_length=13), 0, seed=0).sample(20)
    assert [epsilons for epsilons, _ in told] == [[pytest.approx(0.8 - 0.02 * t)] * NUM_ENVS for t in range(13)]
    # Episodes of 3 and 7 steps, and the reset behind each.
    assert [resetting for _, resetting in told] == [[t in (3, 11)] * NUM_ENVS for t in range(13)]


def test_it_acts_with_the_weights_it_was_given_and_tells_their_version() -> None:
    policies: list[StepPolicy] = []

    def make_policy() -> StepPolicy:
        policies.append(StepPolicy())
        return policies[-1]

    make_env = partial(make_vector_env, EnvConfig(COUNTING_ENV, {}, None), NUM_ENVS)
    worker = RolloutWorker(make_env, make_policy, GREEDY, replace(PLAIN, fragment_length=2), 0, seed=0)
    assert worker.sample(0)[1].weights_version == 0
    weights = {"layer": np.ones(3)}
    worker.set_weights(12, weights)
    assert worker.sample(0)[1].weights_version == 12
    assert [policy.weights_given for policy in policies] == [[weights]]


def test_the_same_seed_explores_the_same_way_and_another_one_does_not() -> None:
    random = ConstantEpsilon((0.9,) * NUM_ENVS)
    first, again, other = (sample(make_worker(epsilon_schedule=random, seed=seed), 4)[0] for seed in (1, 1, 2))
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
    acts: ClassVar[list[int]] = []
    packs: ClassVar[list[int]] = []
    acted = threading.Semaphore(0)

    def sample_actions(
        self, obs: Array, epsilons: Array, resetting: Array, rng: np.random.Generator
    ) -> tuple[Array, Array | None]:
        self.acts.append(id(self))
        self.acted.release()
        return super().sample_actions(obs, epsilons, resetting, rng)

    def postprocess(self, batch: SampleBatch) -> SampleBatch:
        self.packs.append(id(self))
        for _ in range(2 * FRAGMENT_LENGTH):
            assert self.acted.acquire(timeout=self.PATIENCE_S), "nobody acts while this batch is packed"
        return super().postprocess(batch)


def test_a_worker_that_records_ahead_plays_on_while_it_packs() -> None:
    make_env = partial(make_vector_env, EnvConfig(COUNTING_ENV, {}, None), NUM_ENVS)
    config = replace(PLAIN, fragment_length=FRAGMENT_LENGTH, sample_async=True)
    worker = RolloutWorker(make_env, WaitingPolicy, GREEDY, config, 0, seed=0)
    worker.sample(0)  # waits for the acts of two fragments
    worker.stop()
    assert len(WaitingPolicy.acts) == 2 * FRAGMENT_LENGTH, "one fragment ahead, and no more"
    assert not set(WaitingPolicy.acts) & set(WaitingPolicy.packs), "a policy is never shared between threads"


def test_both_policies_of_a_worker_that_records_ahead_get_new_weights() -> None:
    policies: list[StepPolicy] = []

    def make_policy() -> StepPolicy:
        policies.append(StepPolicy())
        return policies[-1]

    make_env = partial(make_vector_env, EnvConfig(COUNTING_ENV, {}, None), NUM_ENVS)
    worker = RolloutWorker(make_env, make_policy, GREEDY, replace(PLAIN, sample_async=True), 0, seed=0)
    weights = {"layer": np.ones(3)}
    worker.set_weights(1, weights)
    worker.sample(0)
    worker.stop()
    assert [policy.weights_given for policy in policies] == [[weights]] * 2


def test_epsilon_falls_while_a_call_waits_for_whole_episodes() -> None:
    annealed = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 1000), 0, NUM_ENVS)
    make_env = partial(make_vector_env, EnvConfig(COUNTING_ENV, {}, None), NUM_ENVS)
    config = replace(PLAIN, fragment_length=1, batch_mode="complete_episodes")
    _, info = RolloutWorker(make_env, StepPolicy, annealed, config, 0, seed=0).sample(500)
    assert info.num_env_steps == NUM_ENVS * 3
    assert info.epsilons == pytest.approx(np.full(NUM_ENVS, 1 - (500 + NUM_ENVS * 2) / 1000))


def test_epsilon_goes_by_the_steps_ahead() -> None:
    annealed = AnnealedEpsilon(LinearSchedule(1.0, 0.0, 1000), 0, NUM_ENVS)
    make_env = partial(make_vector_env, EnvConfig(ENDLESS_ENV, {}, None), NUM_ENVS)
    config = replace(PLAIN, fragment_length=1, sample_async=True)
    worker = RolloutWorker(make_env, StepPolicy, annealed, config, 0, seed=0)
    clocks = [0, NUM_ENVS, 2 * NUM_ENVS]
    epsilons = [worker.sample(clock)[1].epsilons[0] for clock in clocks]
    worker.stop()
    assert epsilons == pytest.approx([1 - clock / 1000 for clock in clocks])


def test_the_error_of_an_env_surfaces() -> None:
    with pytest.raises(EnvError, match=r"tests/envs.py:\d+ in step: RuntimeError: this env raises"):
        make_worker(fragment_length=10, env=RAISING_ENV).sample(0)


def test_stops_twice() -> None:
    worker = make_worker()
    worker.sample(0)
    worker.stop()
    worker.stop()
