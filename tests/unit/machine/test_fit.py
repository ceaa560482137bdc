"""``--fit``: experiments scaled down to a machine, by no more than they must be."""

from typing import Any

import pytest

from rlexp.cluster.room import Cluster, Machine
from rlexp.cluster.room.fit import fitted
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment, required_cpus, required_gpus
from rlexp.config.keys.ppo import PPOConfig

GIB = 2**30


def machine(cpus: int = 2, gpus: int = 0, memory: int = 8 * GIB) -> Cluster:
    return Cluster.of(Machine(cpus, gpus, memory, memory))


def experiment(env: str = "CartPole-v1", run: str = "APEX", **config: Any) -> Any:
    return AGENTS[run].model_validate({"name": "a", "run": run, "env": env, "config": config})


def buffer_size_of(experiment: Experiment) -> int:
    assert isinstance(experiment.config, DQNConfig)
    return experiment.config.buffer_size


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_workers": 1, "num_cpus_per_worker": 3},
        {"num_workers": 100, "num_cpus_per_worker": 0.1},
        {"num_workers": 3, "num_cpus_for_driver": 8},
        {"num_workers": 0, "num_cpus_for_driver": 8},
        {"num_gpus": 1, "num_gpus_per_worker": 0.5},
    ],
)
@pytest.mark.parametrize("gpus", [0, 1, 4])
def test_fitted_experiment_fits_and_is_valid(cpus: int, gpus: int, config: dict[str, Any]) -> None:
    before = experiment(**config)
    after, changes = fitted(before, machine(cpus, gpus))
    assert required_cpus(after) <= cpus
    assert required_gpus(after) <= gpus
    assert after.config.num_workers >= min(before.config.num_workers, 1)
    assert ApexConfig.model_validate(after.config.model_dump()) == after.config
    assert fitted(after, machine(cpus, gpus)) == (after, ())
    assert bool(changes) == (after != before)


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("gpus", [0, 1, 3, 8])
@pytest.mark.parametrize(
    "config",
    [
        {"num_learners": 4, "num_gpus": 4, "num_workers": 64},
        {"num_learners": 4, "num_workers": 2, "num_cpus_per_learner": 0.5},
        {"num_learners": 2, "num_workers": 0, "num_cpus_for_driver": 8},
        {"num_learners": 8, "num_workers": 2, "num_cpus_per_learner": 0},
        {"num_learners": 2, "num_workers": 2, "num_cpus_per_learner": 3},
        {"num_learners": 2, "num_workers": 2, "num_gpus": 8},
        {"num_learners": 1, "num_workers": 2, "num_gpus": 3, "num_gpus_per_worker": 0.5},
    ],
)
def test_fitted_learners_fit_and_are_valid(cpus: int, gpus: int, config: dict[str, Any]) -> None:
    before = experiment(run="PPO", **config)
    after, _ = fitted(before, machine(cpus, gpus))
    assert required_cpus(after) <= cpus
    assert required_gpus(after) <= gpus
    assert isinstance(after.config, PPOConfig)
    assert after.config.num_learners >= 1
    assert PPOConfig.model_validate(after.config.model_dump(by_alias=True)) == after.config
    assert not list(after.config.unused_resources())
    assert fitted(after, machine(cpus, gpus)) == (after, ())


def test_fitted_keeps_what_fits() -> None:
    before = experiment(num_workers=3, num_gpus=1)
    assert fitted(before, machine(cpus=4, gpus=1)) == (before, ())


def test_fitted_reports_changes() -> None:
    _, changes = fitted(experiment(num_workers=8, num_gpus=1), machine())
    assert changes == (
        "num_gpus: 0 instead of 1 (--fit)",
        "num_workers: 2 instead of 8 (--fit)",
        "num_cpus_per_worker: 0.5 instead of 1 (--fit)",
        "optimizer.num_replay_buffer_shards: 2 instead of 4 (--fit)",
    )


def test_fitted_cuts_replay_to_memory() -> None:
    keys = {"buffer_size": 1_000_000, "learning_starts": 900_000}  # counts rows added, so it may be more than fit
    game = experiment("PongNoFrameskip-v4", run="DQN", compress_observations=False, **keys)
    after, changes = fitted(game, machine(memory=4 * GIB))
    assert 1.8 * GIB < buffer_size_of(after) * 84 * 84 < 2 * GIB
    assert [change.split(":")[0] for change in changes] == ["buffer_size"]
    assert buffer_size_of(fitted(game, machine(memory=64 * GIB))[0]) == 1_000_000
    compressed = experiment("PongNoFrameskip-v4", run="DQN", **keys)
    assert buffer_size_of(fitted(compressed, machine(memory=4 * GIB))[0]) == 1_000_000
