"""Whether trials fit this machine or a cluster, and how many at a time; ``--fit`` and ``--wait`` if they do not.

``--fit`` makes an experiment smaller until one trial of it fits. ``--wait`` checks a cluster until it has room, and
asks its autoscaler for nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from rlexp.cluster.room.machine import Cluster, Machine
from rlexp.cluster.room.shortfalls import SHARD_CPUS, Changes, at, bytes_per_transition, changed, rounded, shortfalls
from rlexp.config.keys.common import CommonConfig
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.trial import Trial, cpus_of_learners, required_cpus, required_gpus
from rlexp.errors import Problem, ResourceError

_FEWEST_WORKERS = 2
"""Least workers: with one, only its envs explore differently, so two are kept if the file has as many."""

_SHARE_OF_MEMORY = 0.5
"""Share of the available memory for replay; the rest is for workers, batches and the network."""


def fitted(experiment: Experiment, cluster: Cluster) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment with at most the parts, GPUs and replay that the nodes hold, and what changed."""
    changes: list[str] = []
    for step in _STEPS_ON_NODES if cluster.is_joined else _STEPS:
        keys = {key: value for key, value in step(experiment, cluster).items() if at(experiment, key) != value}
        changes += [
            f"{key}: {_shown(value)} instead of {_shown(at(experiment, key))} (--fit)" for key, value in keys.items()
        ]
        experiment = changed(experiment, keys)
    return experiment, tuple(changes)


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _all_as_one(experiment: Experiment, cluster: Cluster) -> Machine:
    """Return the most that a trial's bundles may take together, with the memory of the largest node."""
    machines = [node.machine for node in cluster.nodes]
    if experiment.config.needs_one_node or len(machines) == 1:
        return max(machines, key=lambda machine: machine.cpus)
    return Machine(
        cluster.cpus,
        cluster.gpus,
        max(machine.memory_total for machine in machines),
        max(machine.memory_available for machine in machines),
    )


def _parts_within_a_node(experiment: Experiment, cluster: Cluster) -> Changes:
    """Return a driver, shards and workers that each fit on some node."""
    config, most = experiment.config, max(node.machine.cpus for node in cluster.nodes)
    driver, worker = min(config.num_cpus_for_driver, most), min(config.num_cpus_per_worker, most)
    keys: Changes = {"num_cpus_for_driver": driver, "num_cpus_per_worker": worker}
    if config.cpus_of_shards and driver + config.cpus_of_shards > most:
        keys[SHARD_CPUS] = 0.0
    return keys


def _fewer_workers_until_packed(experiment: Experiment, cluster: Cluster) -> Changes:
    """Return as many workers as fit on the nodes beside the other bundles; all if no number fits."""
    from rlexp.cluster.room.packing import most_workers  # for clusters only

    most = most_workers(experiment, cluster)
    if not most or most >= experiment.config.num_reserved_workers:
        return {}
    return _workers(experiment.config, most)


def _fewer_gpus(experiment: Experiment, cluster: Cluster) -> Changes:
    """Return at most the GPUs that the agent can use and the machine has; the learner gets them before the workers.

    If learners lose GPUs, there are as many learners as GPUs are left, or one.
    """
    machine = _all_as_one(experiment, cluster)
    config = experiment.config
    learner = min(config.num_gpus, float(config.most_gpus))
    share = config.num_gpus_per_worker if config.WORKERS_USE_GPUS else 0.0
    if learner + share * config.num_workers > machine.gpus:
        learner = min(learner, float(machine.gpus))
        share = min(share, rounded((machine.gpus - learner) / max(config.num_workers, 1)))
    return {**_learners(config, learner), "num_gpus": learner, "num_gpus_per_worker": share}


def _learners(config: CommonConfig, gpus: float) -> Changes:
    """Return the number of learners if they get fewer ``gpus`` than they ask for."""
    if config.LEARNERS_KEY is None or config.learner_processes is None or gpus >= config.num_gpus:
        return {}
    return {config.LEARNERS_KEY: max(math.floor(gpus), 1)}


def _fewer_learners(experiment: Experiment, cluster: Cluster) -> Changes:
    """Return so few learners that they take at most half of the CPUs that the driver leaves."""
    machine = _all_as_one(experiment, cluster)
    config, learners = experiment.config, experiment.config.learner_processes
    if config.LEARNERS_KEY is None or learners is None or required_cpus(experiment) <= machine.cpus:
        return {}
    left = machine.cpus - min(config.num_cpus_for_driver, machine.cpus / 2)
    number = max(math.floor(left / 2 / learners.cpus), 1) if learners.cpus else learners.number
    number = min(number, learners.number)
    return {config.LEARNERS_KEY: number, "num_gpus": number * learners.gpus}


def _no_cpus_of_shards(experiment: Experiment, cluster: Cluster) -> Changes:
    machine = _all_as_one(experiment, cluster)
    is_too_much = experiment.config.cpus_of_shards and required_cpus(experiment) > machine.cpus
    return {SHARD_CPUS: 0.0} if is_too_much else {}


def _fewer_cpus(experiment: Experiment, cluster: Cluster) -> Changes:
    machine = _all_as_one(experiment, cluster)
    config = experiment.config
    if required_cpus(experiment) <= machine.cpus:
        return {}
    room = machine.cpus - cpus_of_learners(config)
    driver = min(config.num_cpus_for_driver, room if config.num_workers == 0 else room / 2)
    left = room - driver
    fewest = min(config.num_workers, _FEWEST_WORKERS)
    workers = min(config.num_workers, max(math.floor(left / max(config.num_cpus_per_worker, 0.01)), fewest))
    share = min(config.num_cpus_per_worker, rounded(left / max(workers, 1)))
    return {"num_cpus_for_driver": driver, **_workers(config, workers), "num_cpus_per_worker": share}


def _workers(config: CommonConfig, number: int) -> Changes:
    """Return so many workers, and at most as many to wait for."""
    waited_for = config.min_num_workers
    return {"num_workers": number} | ({} if waited_for is None else {"min_num_workers": min(waited_for, number)})


def _fewer_shards(experiment: Experiment, cluster: Cluster) -> Changes:
    return experiment.config.with_at_most(_all_as_one(experiment, cluster).cpus)


def _less_replay(experiment: Experiment, cluster: Cluster) -> Changes:
    machine = _all_as_one(experiment, cluster)
    replay, each = experiment.config.replay, bytes_per_transition(experiment)
    if replay is None or each is None:
        return {}
    fits = math.floor(machine.memory_available * _SHARE_OF_MEMORY / each)
    return {replay.capacity_key: max(min(replay.capacity, fits), replay.least_capacity)}


_Step = Callable[[Experiment, Cluster], Changes]
_STEPS: tuple[_Step, ...] = (
    *(_fewer_gpus, _no_cpus_of_shards, _fewer_learners, _fewer_cpus),
    *(_fewer_shards, _less_replay),
)
_STEPS_ON_NODES: tuple[_Step, ...] = (_parts_within_a_node, *_STEPS, _fewer_workers_until_packed)


def check_fits(trials: Sequence[Trial], cluster: Cluster) -> None:
    """Raise ResourceError, with a line for each missing resource, if one trial alone does not fit."""
    problems: dict[str, Problem] = {}
    for trial in trials:
        for problem in _shortfalls(trial.experiment, cluster):
            problems.setdefault(problem.message, problem)
    if problems:
        first, *more = problems.values()
        raise ResourceError(first.message, first.hint, more)


def all_fit(trials: Sequence[Trial], cluster: Cluster) -> bool:
    """Return whether each of the trials alone fits."""
    return not any(True for trial in trials for _ in _shortfalls(trial.experiment, cluster))


def _shortfalls(experiment: Experiment, cluster: Cluster) -> Iterator[Problem]:
    if cluster.is_joined:
        from rlexp.cluster.room.packing import cluster_shortfalls  # the packing is for clusters only

        return cluster_shortfalls(experiment, cluster)
    return shortfalls(experiment, cluster.nodes[0].machine)


def number_that_fit(experiment: Experiment, cluster: Cluster) -> int:
    """Return how many trials of an experiment fit at a time; memory is not counted."""
    shares = [(cluster.cpus, required_cpus(experiment)), (cluster.gpus, required_gpus(experiment))]
    most = min((math.floor(available / needed) for available, needed in shares if needed), default=cluster.cpus)
    if not cluster.is_joined:
        return most
    from rlexp.cluster.room.packing import largest_that_fits, node_amounts, packs, whole_parts

    parts, nodes = whole_parts(experiment), node_amounts(cluster)
    return largest_that_fits(most, lambda number: bool(packs(parts * number, nodes)))


PAUSE_S = 5.0
"""Seconds between two looks, which ask every node."""


def wait_for_room(
    trials: Sequence[Trial],
    cluster: Cluster,
    look: Callable[[], Cluster],
    ask: Callable[[list[dict[str, float]]], None],
    timeout_s: float,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Cluster:
    """Return the cluster when each of ``trials`` fits it, or ``cluster``, the last look, if they fit now.

    ``look`` returns the present nodes. ``ask`` asks the autoscaler for nodes for some bundles, until it is called with
    none. ``report`` gets what is missing after each change. Raises ResourceError after ``timeout_s`` seconds and the
    look in progress.
    """
    begun, shown = clock(), ""
    try:
        while True:
            try:
                check_fits(trials, cluster)
                return cluster
            except ResourceError as error:
                waited_s = clock() - begun
                if waited_s >= timeout_s:
                    message = f"{error.message}, after waiting for {waited_s:.0f} s"
                    raise ResourceError(message, error.hint, error.problems[1:]) from error
                missing = _missing(trials, cluster, error)
            if not shown:
                from rlexp.cluster.room.packing import whole_parts

                ask([dict(part) for part in whole_parts(_largest(trials, cluster)) if part])
            if missing != shown:
                shown = missing
                report(missing)
            pause(max(min(PAUSE_S, begun + timeout_s - clock()), 0))
            cluster = look()
    finally:
        if shown:
            ask([])  # otherwise the autoscaler would keep the nodes after the run


def _largest(trials: Sequence[Trial], cluster: Cluster) -> Experiment:
    """Return the trial that needs most, among trials that do not fit."""
    unfit = [trial.experiment for trial in trials if not all_fit([trial], cluster)]
    return max(unfit, key=lambda experiment: (required_cpus(experiment), required_gpus(experiment)))


def _missing(trials: Sequence[Trial], cluster: Cluster, error: ResourceError) -> str:
    """Return the available and needed amounts in a few words, or the error if no number shows it."""
    experiment = _largest(trials, cluster)
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > cluster.cpus:
        return f"waiting for room: {cluster.cpus} of {cpus:g} CPUs"
    if gpus > cluster.gpus:
        return f"waiting for room: {cluster.gpus} of {gpus:g} GPUs"
    return f"waiting for room: {error.message}"
