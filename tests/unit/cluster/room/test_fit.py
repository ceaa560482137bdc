"""``--fit``: experiments scaled down to a machine, by no more than they must be.

Clusters that no machine has, and trials to be placed on them.

What does not fit the nodes of a cluster, how many trials do, and ``--fit`` on clusters.

``--wait``, with a clock and clusters that the test moves.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from rlexp.cluster.room.fit import check_fits, fitted, number_that_fit, wait_for_room
from rlexp.cluster.room.machine import Cluster, ClusterNode, Machine
from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import Trial, bundles_of, required_cpus, required_gpus
from rlexp.errors import ResourceError

GIB = 2**30


def cluster(*cpus: int, gpus: tuple[int, ...] = (), memory: int = 64 * GIB, **custom: float) -> Cluster:
    """Return a joined cluster with a node for each number of CPUs; ``custom`` is what the first one has."""
    nodes = [
        ClusterNode(f"10.0.0.{1 + i}", Machine(number, (*gpus, *[0] * len(cpus))[i], memory, memory))
        for i, number in enumerate(cpus)
    ]
    nodes[0] = replace(nodes[0], custom=custom)
    return Cluster(tuple(nodes))


def trial(run: str = "APEX", env: str = "CartPole-v1", **config: Any) -> Trial:
    """Return a trial with the keys of ``config``."""
    experiment = AGENTS[run].model_validate({"name": "a", "run": run, "env": env, "config": config})
    return Trial(0, f"00000-{run}", experiment, {}, 0)


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
        listed = bundles_of(experiment.config).listed
        assert sum(bundle.get("CPU", 0.0) for bundle in listed) == pytest.approx(required_cpus(experiment))
        assert sum(bundle.get("GPU", 0.0) for bundle in listed) == pytest.approx(required_gpus(experiment))


def machine(cpus: int = 2, gpus: int = 0, memory: int = 8 * GIB) -> Cluster:
    return Cluster.of(Machine(cpus, gpus, memory, memory))


def buffer_size_of(experiment: Experiment) -> int:
    assert isinstance(experiment.config, DQNConfig)
    return experiment.config.buffer_size


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("gpus", [0, 1, 3, 4, 8])
@pytest.mark.parametrize(
    ("run", "config"),
    [
        ("APEX", {}),
        ("APEX", {"num_workers": 1, "num_cpus_per_worker": 3}),
        ("APEX", {"num_workers": 100, "num_cpus_per_worker": 0.1}),
        ("APEX", {"num_workers": 3, "num_cpus_for_driver": 8}),
        ("APEX", {"num_workers": 0, "num_cpus_for_driver": 8}),
        ("APEX", {"num_gpus": 1, "num_gpus_per_worker": 0.5}),
        ("PPO", {"num_learners": 4, "num_gpus": 4, "num_workers": 64}),
        ("PPO", {"num_learners": 4, "num_workers": 2, "num_cpus_per_learner": 0.5}),
        ("PPO", {"num_learners": 2, "num_workers": 0, "num_cpus_for_driver": 8}),
        ("PPO", {"num_learners": 8, "num_workers": 2, "num_cpus_per_learner": 0}),
        ("PPO", {"num_learners": 2, "num_workers": 2, "num_cpus_per_learner": 3}),
        ("PPO", {"num_learners": 2, "num_workers": 2, "num_gpus": 8}),
        ("PPO", {"num_learners": 1, "num_workers": 2, "num_gpus": 3, "num_gpus_per_worker": 0.5}),
    ],
)
def test_fitted_experiment_fits_and_is_valid(run: str, cpus: int, gpus: int, config: dict[str, Any]) -> None:
    before = trial(run, **config).experiment
    after, changes = fitted(before, machine(cpus, gpus))
    assert required_cpus(after) <= cpus
    assert required_gpus(after) <= gpus
    assert after.config.num_workers >= min(before.config.num_workers, 1)
    assert type(after.config).model_validate(after.config.model_dump(by_alias=True)) == after.config
    assert not list(after.config.unused_resources())
    assert fitted(after, machine(cpus, gpus)) == (after, ())
    assert bool(changes) == (after != before)


def test_fitted_reports_changes() -> None:
    _, changes = fitted(trial(num_workers=8, num_gpus=1).experiment, machine())
    assert changes == (
        "num_gpus: 0 instead of 1 (--fit)",
        "num_workers: 2 instead of 8 (--fit)",
        "num_cpus_per_worker: 0.5 instead of 1 (--fit)",
        "optimizer.num_replay_buffer_shards: 2 instead of 4 (--fit)",
    )


def test_fitted_cuts_replay_to_memory() -> None:
    keys: dict[str, Any] = {
        "buffer_size": 1_000_000,
        "learning_starts": 900_000,
    }  # counts rows added, so it may be more than fit
    game = trial("DQN", "PongNoFrameskip-v4", compress_observations=False, **keys).experiment
    after, changes = fitted(game, machine(memory=4 * GIB))
    assert 1.8 * GIB < buffer_size_of(after) * 84 * 84 < 2 * GIB
    assert [change.split(":")[0] for change in changes] == ["buffer_size"]
    assert buffer_size_of(fitted(game, machine(memory=64 * GIB))[0]) == 1_000_000
    compressed = trial("DQN", "PongNoFrameskip-v4", **keys).experiment
    assert buffer_size_of(fitted(compressed, machine(memory=4 * GIB))[0]) == 1_000_000


class World:
    """A cluster that changes with each look, and a clock that moves while it is waited for."""

    def __init__(self, *looks: Cluster, look_s: float = 0.0) -> None:
        self.looks = list(looks)
        self.look_s = look_s
        self.now_s = 100.0
        self.asked: list[list[dict[str, float]]] = []
        self.reported: list[str] = []
        self.pauses: list[float] = []

    def look(self) -> Cluster:
        self.now_s += self.look_s
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds

    def wait(self, timeout_s: float, *num_workers: int, **config: Any) -> Cluster:
        trials = [trial(num_workers=number) for number in num_workers] or [trial(**config)]
        given = (self.look(), self.look, self.asked.append, timeout_s, self.reported.append)
        return wait_for_room(trials, *given, lambda: self.now_s, self.pause)


def test_no_wait_where_there_is_room() -> None:
    world = World(cluster(4, 4))
    assert world.wait(600.0, 3) is world.looks[0]
    assert (world.asked, world.reported, world.pauses) == ([], [], [])


def test_waits_for_nodes_and_withdraws_what_it_asked_for() -> None:
    small, more, enough = cluster(4), cluster(4, 2), cluster(4, 4)
    world = World(small, small, more, enough)
    assert world.wait(600.0, 1, 7) is enough
    assert world.asked == [[{"CPU": 1.0}] * 8, []]
    assert world.reported == ["waiting for room: 4 of 8 CPUs", "waiting for room: 6 of 8 CPUs"]
    assert world.pauses == [5.0] * 3


def test_what_is_missing_is_not_only_cpus() -> None:
    world = World(cluster(4, 4), cluster(8))
    world.wait(9.0, num_workers=0, num_cpus_for_driver=6)
    assert world.reported == [
        "waiting for room: a needs a node with 6 CPUs for its driver; the largest node 10.0.0.1 has 4"
    ]


def test_time_is_over() -> None:
    world = World(cluster(4), look_s=2.0)
    with pytest.raises(ResourceError) as caught:
        world.wait(11.0, 7)
    assert caught.value.message == (
        "a needs 8 CPUs (1 driver + 7 workers x 1), the cluster has 4 on 1 node, after waiting for 13 s"
    )
    assert caught.value.exit_code == 4
    assert world.pauses == [5.0, 4.0]
    assert world.asked[-1] == []


def test_without_time_the_first_look_decides() -> None:
    world = World(cluster(4))
    with pytest.raises(ResourceError, match="after waiting for 0 s"):
        world.wait(0.0, 7)
    assert (world.asked, world.reported) == ([], [])
