"""Decides whether Ape-X has gatherers, and which workers each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any, Protocol, Self, runtime_checkable

from rlexp.agents.workers import MakeSpec, worker_resources
from rlexp.cluster.pool.nodes import TrialGroup
from rlexp.cluster.pool.pool import Actor, TaskPool
from rlexp.config.keys.apex import AsyncReplayOptimizerConfig
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.trial import bundles_of
from rlexp.metrics import RunningClock
from rlexp.rollout.fleet import Fleet, FleetLimits
from rlexp.rollout.gatherer import GatheredWorkers, Gatherer, GathererConfig, GathererSpec
from rlexp.rollout.worker import WorkerSpec
from rlexp.schedules import derive_seed

MOST_WORKERS_WITHOUT = 128
"""Most workers on one machine whose fragments the driver handles itself."""
WORKERS_OF_ONE = 64
"""Workers per gatherer if one machine has more."""
JOINED_ROWS = 1000
"""Least rows of a batch that a gatherer stores: 20 fragments of 50 rows cost a shard one call."""
REPORTED_ROWS = 2000
"""Least rows of a report: reports of 3 kB are then less than 2 bytes a row."""
LONGEST_WAIT_S = 1.0
"""Most seconds in which a gatherer collects for one report, so that slow envs are counted too."""
STORE_DEPTH = 2
"""Batches on their way from a gatherer to each shard: one is sent while another is added."""
SYNC_SHARE = 4
"""A gatherer gets newer weights at least this often within the time after which each worker is due."""


def worker_nodes(config: CommonConfig, group: TrialGroup | None) -> tuple[list[str], str]:
    """Return the node of each worker, and the driver's node; empty if not known, as for elastic workers."""
    nodes = {} if group is None else group.nodes
    bundles = bundles_of(config)
    by_bundle = [bundles.of_worker(index) for index in range(config.num_workers)]
    driver = bundles.of_driver
    return ["" if bundle is None else nodes.get(bundle, "") for bundle in by_bundle], nodes.get(driver or 0, "")


def groups_of(setting: int | str, worker_nodes: Sequence[str], driver_node: str) -> list[list[int]]:
    """Return the indices of each gatherer's workers; empty if the driver calls the workers itself.

    ``setting`` is the key ``optimizer.gatherers``. The workers of a gatherer are on one node, unless ``setting`` asks
    for fewer gatherers than there are nodes.
    """
    by_node = sorted(range(len(worker_nodes)), key=lambda index: (worker_nodes[index], index))
    if setting != "auto":
        return _split(by_node, int(setting))
    nodes = sorted(set(worker_nodes))
    if {*nodes} - {"", driver_node}:
        return [[index for index in by_node if worker_nodes[index] == node] for node in nodes]
    if len(worker_nodes) <= MOST_WORKERS_WITHOUT:
        return []
    return _split(by_node, ceil(len(worker_nodes) / WORKERS_OF_ONE))


def place_gatherers(
    pool: TaskPool,
    config: CommonConfig,
    settings: AsyncReplayOptimizerConfig,
    make_spec: MakeSpec,
    seed: int,
    groups: Sequence[Sequence[int]],
) -> GatheredWorkers:
    """Place a gatherer for each of ``groups``, indices of workers; each places its workers itself."""
    bundles, common = bundles_of(config), _gatherer_config(config, settings, len(groups))

    def place(index: int, attempt: int) -> Actor[Any]:  # a Gatherer, which is called like a worker
        own_seed = derive_seed(seed, "gatherer", index, attempt)
        worker_seed = derive_seed(seed, "attempt", f"gatherer {attempt}") if attempt else seed
        workers = tuple(
            (
                make_spec(worker, worker_seed, config.num_threads_per_worker or 1),
                worker_resources(config, bundles, worker),
            )
            for worker in groups[index]
        )
        spec = GathererSpec(index, attempt, own_seed, workers, renewed, type(pool), common)
        # It is placed with its first worker, and uses none of the resources reserved there.
        resources = replace(workers[0][1], cpus=0, gpus=0, custom={})
        return pool.place(f"gatherer-{index}", resources, Gatherer, spec)

    limits = FleetLimits(config.max_num_worker_restarts, config.sample_timeout_s)
    name_of, num_workers_of = "gatherer {}".format, lambda index: len(groups[index])
    fleet = Fleet(pool, place, len(groups), limits, RunningClock(), name_of, num_workers_of)
    least = min(len(group) for group in groups)
    delay = settings.max_weight_sync_delay * max(least // SYNC_SHARE, 1)
    return GatheredWorkers(pool, fleet, delay)


def _gatherer_config(config: CommonConfig, settings: AsyncReplayOptimizerConfig, number: int) -> GathererConfig:
    """Return the config that all gatherers share."""
    return GathererConfig(
        limits=FleetLimits(ceil(config.max_num_worker_restarts / number), config.sample_timeout_s),
        queue_depth=settings.sample_queue_depth,
        max_weight_sync_delay=settings.max_weight_sync_delay,
        joined_rows=JOINED_ROWS,
        reported_rows=REPORTED_ROWS,
        longest_wait_s=LONGEST_WAIT_S,
        store_depth=STORE_DEPTH,
    )


@runtime_checkable
class Reseedable(Protocol):
    """An algorithm's settings of exploration, with a random stream of their own."""

    def reseeded(self, attempt: int) -> Self:
        """Return the settings for a worker's replacement."""


def renewed(spec: WorkerSpec, attempt: int) -> WorkerSpec:
    """Return the spec of a worker's replacement, with new random streams, also for its exploration."""
    make = spec.make_policy
    if isinstance(make, partial):
        args = (each.reseeded(attempt) if isinstance(each, Reseedable) else each for each in make.args)
        make = partial(make.func, *args, **make.keywords)
    return replace(spec, seed=derive_seed(spec.seed, "attempt", attempt), make_policy=make)


def _split(indices: Sequence[int], number: int) -> list[list[int]]:
    """Return ``indices`` in ``number`` parts of about equal length; at most one part per index."""
    number = min(number, len(indices))
    bounds = [round(part * len(indices) / number) for part in range(number + 1)] if number else []
    return [list(indices[start:stop]) for start, stop in pairwise(bounds)]
