"""The keys that say how many learners there are and what each reserves; each test fails where its key is ignored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlexp.agents.ppo.agent import PPOAgent
from rlexp.cluster.pool.pool import Actor, Resources
from rlexp.config.keys.ppo import PPOExperiment
from rlexp.policy import Weights
from rlexp.runs.checkpoint_contents import Checkpoint, read_checkpoint
from rlexp.tuning.tune_runner import placement
from tests.lab import impala
from tests.lab.agents import assert_continues, weights_of
from tests.lab.ppo import make_ppo
from tests.lab.process_pool import ProcessTaskPool

pytestmark = pytest.mark.usefixtures("threads")
SMALL: dict[str, Any] = {
    "num_workers": 0,
    "num_envs_per_worker": 2,
    "sample_batch_size": 16,
    "train_batch_size": 64,
    "sgd_minibatch_size": 15,
    "num_sgd_iter": 3,
    "lr": 1e-3,
    "observation_filter": "NoFilter",
    "batch_mode": "truncate_episodes",
    "model": {"fcnet_hiddens": [8]},
}


class RecordingPool(ProcessTaskPool):
    """Remembers what each actor reserved, and how to make it again."""

    def __init__(self) -> None:
        super().__init__()
        self.placed: dict[str, Resources | None] = {}
        self.makers: list[Callable[[], Any]] = []

    def place(
        self, name: str, resources: Resources | None, make: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Actor[Any]:
        self.placed[name] = resources
        self.makers.append(partial(make, *args, **kwargs))
        return super().place(name, resources, make, *args, **kwargs)


def make_agent(checkpoint: Checkpoint | None = None, **changes: Any) -> PPOAgent:
    return make_ppo("CartPole-v1", checkpoint=checkpoint, pool=RecordingPool(), **{**SMALL, **changes})


def placed(agent: PPOAgent) -> dict[str, Resources | None]:
    assert isinstance(agent.pool, RecordingPool)
    return agent.pool.placed


def bundles(**changes: Any) -> list[dict[str, float]]:
    entry = {"name": "e", "run": "PPO", "env": "CartPole-v1", "config": {**SMALL, **changes}}
    return list(placement(PPOExperiment.model_validate(entry)).bundles)


def as_bytes(weights: Weights) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in weights.items()}


@pytest.mark.key("num_learners")
def test_so_many_learners_train_what_one_would() -> None:
    one, two = make_agent(), make_agent(num_learners=2)
    assert (list(placed(one)), list(placed(two))) == ([], ["learner-0", "learner-1"])
    for _ in range(2):
        expected, found = one.train(), two.train()
        assert found["timesteps_total"] == expected["timesteps_total"]
        assert found["info"]["num_updates"] == expected["info"]["num_updates"] == 3 * 4 * found["training_iteration"]
        assert found["info"]["learner"] == pytest.approx(expected["info"]["learner"], rel=1e-4, abs=1e-4)
    expected_weights, weights = weights_of(one), weights_of(two)
    for name, array in expected_weights.items():
        np.testing.assert_allclose(weights[name], array, atol=1e-5, err_msg=name)


@pytest.mark.key("num_learners")
def test_several_learners_of_appo_train_what_one_would_and_continue(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"use_kl_loss": True, "kl_coeff": 0.5}
    pool = RecordingPool()
    one, two = impala.make_agent("APPO", **keys), impala.make_agent("APPO", pool=pool, **keys, num_learners=2)
    assert list(pool.placed) == ["learner-0", "learner-1"]
    for _ in range(2):  # a train batch is two fragments, and an iteration one
        one.train(), two.train()
        expected, found = one.train(), two.train()
        assert found["timesteps_total"] == expected["timesteps_total"]
        assert found["info"]["num_target_updates"] == expected["info"]["num_target_updates"] > 0
    checkpoint = read_checkpoint(two.save(tmp_path / "checkpoint_000001", {}))
    resumed = impala.make_agent("APPO", checkpoint=checkpoint, pool=RecordingPool(), **keys, num_learners=2)
    for agent in (one, two, resumed):
        agent.train(), agent.train()
    weights = weights_of(two)
    assert as_bytes(weights_of(resumed)) == as_bytes(weights)
    for name, array in weights_of(one).items():
        np.testing.assert_allclose(weights[name], array, atol=1e-4, err_msg=name)


@pytest.mark.key("num_learners")
def test_several_learners_continue_from_a_checkpoint_bit_by_bit(tmp_path: Path) -> None:
    assert_continues(partial(make_agent, num_learners=2), tmp_path)


@pytest.mark.key("num_cpus_per_learner")
@pytest.mark.parametrize(("cpus", "num_threads"), [(0.5, 1), (2.0, 2)])
def test_each_learner_reserves_its_cpus_and_has_a_thread_for_each(cpus: float, num_threads: int) -> None:
    given: dict[str, Any] = {"num_learners": 2, "num_cpus_per_learner": cpus}
    agent = make_agent(**given)
    assert list(placed(agent).values()) == [Resources(cpus, 0.0, bundle=1 + rank) for rank in (0, 1)]
    assert isinstance(agent.pool, RecordingPool)
    agent.pool.makers[0]()
    assert torch.get_num_threads() == num_threads
    assert bundles(**given)[1:] == [{"CPU": cpus}] * 2
    assert bundles(num_cpus_per_learner=cpus)[1:] == []


@pytest.mark.key("num_learners", "num_gpus")
def test_learners_share_the_gpus_and_leave_the_driver_none() -> None:
    assert bundles(num_learners=2, num_gpus=2) == [{"CPU": 1.0}, *[{"CPU": 1.0, "GPU": 1.0}] * 2]
