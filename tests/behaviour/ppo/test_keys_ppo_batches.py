"""The keys that say how PPO collects a train batch, and with which processes; each test fails if its key is ignored."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.cluster.pool import Resources
from rlexp.config.keys.ppo import PPOExperiment
from rlexp.rollout.folds import DIST_INPUTS
from rlexp.runs.checkpoints import read_checkpoint
from rlexp.sample_batch import OBS, Array, SampleBatch
from rlexp.tuning.tune_runner import placement
from tests.behaviour.learning_agents import Update, updates_of
from tests.behaviour.ppo.ppo_agents import TINY, make_ppo, network_of, sample_ppo
from tests.behaviour.rollout_agents import PlacementPool, weights_of
from tests.doubles.process_pool import ProcessTaskPool
from tests.envs import ENDLESS_ENV


@pytest.fixture
def threads() -> Iterator[None]:
    """Give torch its threads back after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def env_ids(batch: SampleBatch) -> set[float]:
    return set(batch[OBS][:, 0].tolist())


@pytest.mark.key("train_batch_size", "sample_batch_size", "num_envs_per_worker", "num_workers")
@pytest.mark.parametrize(
    ("size", "num_workers", "num_envs", "length", "rows"),
    [
        (40, 0, 2, 10, 40),
        (41, 0, 2, 10, 60),
        (40, 2, 2, 5, 40),
        (45, 2, 2, 5, 50),
        (40, 3, 2, 10, 60),
        (40, 2, 1, 40, 80),
    ],
)
def test_train_batch_is_whole_fragments_of_each_worker(
    size: int, num_workers: int, num_envs: int, length: int, rows: int
) -> None:
    agent = make_ppo(
        train_batch_size=size, num_workers=num_workers, num_envs_per_worker=num_envs, sample_batch_size=length
    )
    updates = updates_of(agent, 3)
    assert [update.batch.count for update in updates] == [rows] * 3
    assert [update.num_steps_sampled for update in updates] == [rows, 2 * rows, 3 * rows]
    assert [len(env_ids(update.batch)) for update in updates] == [max(num_workers, 1) * num_envs] * 3


@pytest.mark.key("sample_batch_size")
@pytest.mark.parametrize(("num_workers", "num_envs", "length"), [(0, 1, 40), (2, 1, 20), (3, 2, 7)])
def test_auto_divides_a_train_batch_among_all_envs(num_workers: int, num_envs: int, length: int) -> None:
    changes: dict[str, Any] = {"num_workers": num_workers, "num_envs_per_worker": num_envs}
    count = max(num_workers, 1)
    samples = sample_ppo(1, sample_batch_size="auto", **changes)[:count]
    assert [info.num_env_steps for _, info in samples] == [length * num_envs] * count
    (update,) = updates_of(make_ppo(sample_batch_size="auto", **changes), 1)
    assert update.batch.count == length * num_envs * count


def acted_by(agent: Any, update: Update, batch: SampleBatch) -> bool:
    """Return whether a train batch was sampled with the weights that the learner had before ``update``."""
    with torch.no_grad():
        inputs = network_of(agent, update.before)(torch.tensor(batch[OBS]))[0].numpy()
    return np.allclose(inputs, batch[DIST_INPUTS], rtol=1e-4, atol=1e-5)


@pytest.mark.key("sample_async")
@pytest.mark.parametrize(("num_workers", "sample_async"), [(2, False), (2, True), (0, True)])
def test_train_batches_are_sampled_ahead_with_the_weights_from_before(num_workers: int, sample_async: bool) -> None:
    agent = make_ppo("CartPole-v1", num_workers=num_workers, sample_async=sample_async)
    updates = updates_of(agent, 4)
    is_ahead = sample_async and num_workers > 0
    assert acted_by(agent, updates[0], updates[0].batch)
    for before, update in pairwise(updates):
        assert acted_by(agent, update, update.batch) == (not is_ahead)
        assert acted_by(agent, before, update.batch) == is_ahead


@pytest.mark.key("timesteps_per_iteration")
@pytest.mark.parametrize(("timesteps", "sampled"), [(0, 40), (None, 40), (40, 40), (100, 120)])
def test_an_iteration_is_whole_train_batches(timesteps: int | None, sampled: int) -> None:
    agent = make_ppo(timesteps_per_iteration=timesteps)
    rows = [agent.train() for _ in range(2)]
    agent.stop()
    assert [row["timesteps_this_iter"] for row in rows] == [sampled] * 2
    assert [row["info"]["num_steps_trained"] for row in rows] == [sampled, 2 * sampled]


@pytest.mark.key("min_iter_time_s")
@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_an_iteration_lasts_at_least_so_long(seconds: float) -> None:
    agent = make_ppo(min_iter_time_s=seconds)
    row = agent.train()
    agent.stop()
    assert row["time_this_iter_s"] >= seconds
    assert (row["timesteps_this_iter"] > 40) == (seconds > 0.0)
    assert row["info"]["num_steps_trained"] == row["timesteps_total"]


def bundles(**changes: Any) -> list[dict[str, float]]:
    entry = {"name": "e", "run": "PPO", "env": ENDLESS_ENV, "config": {**TINY, **changes}}
    return list(placement(PPOExperiment.model_validate(entry)).bundles)


@pytest.mark.key("num_learners", "num_cpus_per_learner", "num_gpus")
def test_each_of_several_learners_reserves_what_it_is_given() -> None:
    driver, worker = {"CPU": 1.0}, {"CPU": 0.5}
    workers: dict[str, Any] = {"num_workers": 2, "num_cpus_per_worker": 0.5}
    assert bundles(**workers, num_gpus=0.5) == [driver | {"GPU": 0.5}, worker, worker]
    several = bundles(**workers, num_learners=3, num_cpus_per_learner=2.0, num_gpus=3)
    assert several == [driver, *[{"CPU": 2.0, "GPU": 1.0}] * 3, worker, worker]


class PlacedProcesses(ProcessTaskPool):
    """Remembers what each actor reserved."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[str, Resources | None] = {}

    def place(self, name: str, resources: Resources | None, make: Any, *args: Any, **kwargs: Any) -> Any:
        self.placed[name] = resources
        return super().place(name, resources, make, *args, **kwargs)


@pytest.mark.key("num_learners", "num_cpus_per_learner")
def test_several_learners_have_processes_and_come_to_the_weights_of_one() -> None:
    weights: list[dict[str, Array]] = []
    for num_learners in (1, 2):
        pool = PlacedProcesses()
        agent = make_ppo(pool=pool, num_learners=num_learners, num_cpus_per_learner=0.5, sgd_minibatch_size=20)
        try:
            row = agent.train()
            weights.append(dict(weights_of(agent)))
        finally:
            agent.stop()
        assert row["info"]["num_updates"] == 6
        names = [f"learner-{rank}" for rank in range(num_learners)] if num_learners > 1 else []
        assert pool.placed == {name: Resources(0.5, 0.0, bundle=1 + rank) for rank, name in enumerate(names)}
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, atol=1e-5)


@pytest.mark.key("num_cpus_for_driver")
@pytest.mark.usefixtures("threads")
def test_the_driver_learns_with_as_many_threads_as_it_reserves_cpus() -> None:
    make_ppo(num_cpus_for_driver=3).stop()
    assert torch.get_num_threads() == 3
    assert bundles(num_cpus_for_driver=3)[0] == {"CPU": 3}


@pytest.mark.key("num_threads_per_worker")
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("given", "threads_used"), [(None, 4), (1, 4), (2, 2)])
def test_only_workers_with_several_threads_act_in_torch(given: int | None, threads_used: int) -> None:
    # Workers are placed in this process, after the driver set its own threads; NumPy leaves those of torch alone.
    make_ppo(num_workers=1, num_threads_per_worker=given, num_cpus_for_driver=4).stop()
    assert torch.get_num_threads() == threads_used


@pytest.mark.key("num_workers", "num_cpus_per_worker", "num_gpus_per_worker", "custom_resources_per_worker")
def test_each_worker_reserves_what_it_is_given() -> None:
    given: dict[str, Any] = {"num_cpus_per_worker": 0.5, "custom_resources_per_worker": {"licence": 2.0}}
    agent = make_ppo(num_workers=2, **given)
    agent.stop()
    assert isinstance(agent.pool, PlacementPool)
    licence = {"licence": 2.0}
    expected = {f"worker-{index}": Resources(0.5, 0.0, licence, bundle=1 + index) for index in (0, 1)}
    assert agent.pool.placed == expected


@pytest.mark.key("seed", "restore")
@pytest.mark.parametrize("is_continuous", [False, True])
def test_a_checkpoint_continues_bit_by_bit(is_continuous: bool, tmp_path: Path) -> None:
    env = "Pendulum-v1" if is_continuous else "CartPole-v1"
    keys: dict[str, Any] = {"sgd_minibatch_size": 16, "observation_filter": "MeanStdFilter", "horizon": 9}
    agent = make_ppo(env, **keys)
    agent.train()
    path = agent.save(tmp_path / "checkpoint_000001", {})
    for _ in range(2):
        agent.train()
    agent.stop()
    resumed = make_ppo(env, checkpoint=read_checkpoint(path), **keys)
    rows = [resumed.train() for _ in range(2)]
    resumed.stop()
    assert [row["training_iteration"] for row in rows] == [2, 3]
    once, twice = weights_of(agent), weights_of(resumed)
    assert all(np.array_equal(once[name], twice[name]) for name in once)
