"""What does not fit the nodes of a cluster, how many trials do, and ``--fit`` on clusters."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rlexp.cluster.room import Cluster, check_fits
from rlexp.cluster.room.fit import fitted, number_that_fit
from rlexp.config.keys.experiment import required_cpus, required_gpus
from rlexp.config.keys.trial import bundles_of
from rlexp.errors import ResourceError
from tests.unit.machine.clusters import GIB, cluster, trial

ATARI: dict[str, Any] = {"env": "PongNoFrameskip-v4", "buffer_size": 2_000_000}
WAIT = "--fit, or --wait 10m until there are more nodes"


def problems(cluster: Cluster, **config: Any) -> list[tuple[str, str | None]]:
    try:
        check_fits([trial(**config)], cluster)
    except ResourceError as error:
        return [(problem.message, problem.hint) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("nodes", "config"),
    [
        ((4, 4, 4), {"num_workers": 6}),
        ((4, 4, 4), {"num_workers": 11}),
        ((4, 4, 4), {"num_workers": 40, "min_num_workers": 11}),
        ((4, 4, 4), {"num_workers": 40, "min_num_workers": 0}),
        ((1, 8), {"num_workers": 0, "num_cpus_for_driver": 8}),
        ((8, 2), {"num_workers": 2, "optimizer": {"num_cpus_per_shard": 1.5}}),
        ((8, 2), {"num_workers": 7, "replay_storage": "shared_memory"}),
    ],
)
def test_what_fits_is_accepted(nodes: tuple[int, ...], config: dict[str, Any]) -> None:
    assert problems(cluster(*nodes), **config) == []


@pytest.mark.parametrize(
    ("nodes", "config", "message", "hint"),
    [
        (
            (4, 16),
            {"num_workers": 0, "num_cpus_for_driver": 40},
            "a needs a node with 40 CPUs for its driver; the largest node 10.0.0.2 has 16",
            "-o config.num_cpus_for_driver=16, or --fit",
        ),
        (
            (4, 4),
            {"num_workers": 1, "optimizer": {"num_cpus_per_shard": 1}},
            "a needs a node with 5 CPUs for its driver and shards; the largest node 10.0.0.1 has 4",
            "-o config.optimizer.num_cpus_per_shard=0, or --fit",
        ),
        (
            (4, 2),
            {"num_workers": 1, "num_cpus_per_worker": 5},
            "a needs a node with 5 CPUs for each worker; the largest node 10.0.0.1 has 4",
            "-o config.num_cpus_per_worker=4, or --fit",
        ),
        (
            (4, 4, 4),
            {"num_workers": 39},
            "a needs 40 CPUs (1 driver + 39 workers x 1), the cluster has 12 on 3 nodes",
            f"-o config.num_workers=11, {WAIT}",
        ),
        (
            (4, 4, 4),
            {"num_workers": 50, "min_num_workers": 39},
            "a needs 40 CPUs (1 driver + 39 workers x 1), the cluster has 12 on 3 nodes",
            f"-o config.min_num_workers=11, {WAIT}",
        ),
        (
            (4, 4, 4),
            {"num_workers": 3, "num_cpus_per_worker": 3, "num_cpus_for_driver": 3},
            "a needs 3 CPUs for its driver, 3 x 3 CPUs for workers, which the nodes have no room for together "
            "(CPUs: 4, 4, 4)",
            f"-o config.num_workers=2, {WAIT}",
        ),
        (
            (8, 8),
            {"num_workers": 1, "num_gpus": 1},
            "a needs a node with 1 GPU for its learner; no node has one",
            "-o config.num_gpus=0, or --fit",
        ),
        (
            (8, 8),
            {"num_workers": 15, "replay_storage": "shared_memory"},
            "a needs one node with 16 CPUs, because replay_storage is shared_memory; the largest node 10.0.0.1 has "
            "8 CPUs",
            f"-o config.replay_storage=actors, or -o config.num_workers=7, {WAIT}",
        ),
        (
            (8, 8),
            {"num_workers": 2, "custom_resources_per_worker": {"rack": 2.0}},
            "a needs a node with 2 rack for each worker; no node has one",
            "remove custom_resources_per_worker, or add nodes that have such resources",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_an_override(
    nodes: tuple[int, ...], config: dict[str, Any], message: str, hint: str
) -> None:
    assert problems(cluster(*nodes), **config) == [(message, hint)]


def test_a_gpu_and_many_cpus_must_be_on_the_same_node() -> None:
    found = problems(cluster(4, 16, gpus=(1, 0)), num_workers=0, num_cpus_for_driver=8, num_gpus=1)
    assert [message for message, _ in found] == [
        "a needs a node with 8 CPUs and 1 GPU for its driver; nodes have them, but not the same node"
    ]


def test_custom_resources_are_counted_on_all_nodes() -> None:
    keys: dict[str, Any] = {"num_workers": 3, "custom_resources_per_worker": {"rack": 2.0}}
    assert problems(cluster(8, 8, rack=6.0), **keys) == []
    ((message, _),) = problems(cluster(8, 8, rack=4.0), **keys)
    assert message == "a needs 6 rack (3 workers x 2), the cluster has 4 on 2 nodes"


def test_replay_must_fit_the_memory_of_one_node() -> None:
    ((message, hint),) = problems(cluster(8, 8, memory=8 * GIB), num_workers=4, compress_observations=False, **ATARI)
    assert message == "a may need a node with 15.0 GiB for replay; the largest node 10.0.0.1 has 8.0 GiB"
    assert hint is not None
    assert hint.startswith("-o config.buffer_size=1")


@pytest.mark.parametrize(
    ("nodes", "config", "expected"),
    [
        ((4, 4, 4), {"num_workers": 1}, 6),
        ((4, 4, 4), {"num_workers": 2}, 4),
        ((4, 4, 4), {"num_workers": 0, "num_cpus_for_driver": 3}, 3),
        ((4, 4, 4), {"num_workers": 20}, 0),
        ((4, 4, 4), {"num_workers": 2, "replay_storage": "shared_memory"}, 3),
        ((4, 4), {"num_workers": 0, "num_cpus_for_driver": 0}, 8),
    ],
)
def test_number_that_fit(nodes: tuple[int, ...], config: dict[str, Any], expected: int) -> None:
    assert number_that_fit(trial(**config).experiment, cluster(*nodes)) == expected


@pytest.mark.parametrize("nodes", [(4,), (4, 4, 4), (16, 2), (1, 1, 1), (64, 64)])
@pytest.mark.parametrize("gpus", [(), (1,)])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_workers": 5, "num_cpus_per_worker": 3},
        {"num_workers": 3, "num_cpus_for_driver": 8, "num_gpus": 1},
        {"num_workers": 12, "optimizer": {"num_cpus_per_shard": 2}},
        {"num_workers": 90, "min_num_workers": 60},
        {"num_workers": 20, "replay_storage": "shared_memory"},
        {"run": "PPO", "num_workers": 20, "num_learners": 4, "num_gpus": 4},
    ],
)
def test_fitted_experiment_fits_the_cluster(
    nodes: tuple[int, ...], gpus: tuple[int, ...], config: dict[str, Any]
) -> None:
    before, place = trial(**config), cluster(*nodes, gpus=gpus)
    after, changes = fitted(before.experiment, place)
    check_fits([replace(before, experiment=after)], place)
    assert type(after.config).model_validate(after.config.model_dump(by_alias=True)) == after.config
    assert bool(changes) == (after != before.experiment)
    assert fitted(after, place) == (after, ())


def test_required_amounts_are_those_of_the_bundles() -> None:
    rng = random.Random(3)
    for _ in range(50):
        keys: dict[str, Any] = {
            "num_workers": rng.randint(1, 9),
            "num_cpus_per_worker": rng.choice([0, 0.1, 1.5]),
            "num_cpus_for_driver": rng.choice([0, 1, 2.5]),
            "num_gpus": rng.choice([0, 0.5, 1]),
            "optimizer": {"num_cpus_per_shard": rng.choice([0, 0.5])},
        }
        keys["min_num_workers"] = rng.choice([None, rng.randint(0, keys["num_workers"])])
        experiment = trial(**keys).experiment
        bundles = bundles_of(experiment.config)
        assert bundles.total("CPU") == pytest.approx(required_cpus(experiment))
        assert bundles.total("GPU") == pytest.approx(required_gpus(experiment))
        assert sum(bundle.get("CPU", 0.0) for bundle in bundles.listed) == pytest.approx(required_cpus(experiment))
