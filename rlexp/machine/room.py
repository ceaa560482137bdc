"""Whether trials fit a machine or a cluster, and how many of them at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rlexp.config.keys.experiment import Experiment, required_cpus, required_gpus
from rlexp.config.keys.trial import Trial
from rlexp.errors import Problem, ResourceError
from rlexp.machine.cluster import Cluster
from rlexp.machine.shortfalls import shortfalls


def check_fits(trials: Sequence[Trial], cluster: Cluster) -> None:
    """Raise ResourceError, with a line for each thing that is missing, where one trial alone does not fit."""
    problems: dict[str, Problem] = {}
    for trial in trials:
        for problem in _shortfalls(trial.experiment, cluster):
            problems.setdefault(problem.message, problem)
    if problems:
        first, *more = problems.values()
        raise ResourceError(first.message, first.hint, more)


def _shortfalls(experiment: Experiment, cluster: Cluster) -> Iterator[Problem]:
    if cluster.is_joined:
        from rlexp.machine.cluster_shortfalls import cluster_shortfalls  # with the packing, only of clusters

        return cluster_shortfalls(experiment, cluster)
    return shortfalls(experiment, cluster.nodes[0].machine)


def number_that_fit(experiment: Experiment, cluster: Cluster) -> int:
    """Return how many trials of an experiment have room at a time; memory is not counted."""
    shares = [(cluster.cpus, required_cpus(experiment)), (cluster.gpus, required_gpus(experiment))]
    most = min((math.floor(available / needed) for available, needed in shares if needed), default=cluster.cpus)
    if not cluster.is_joined:
        return most
    from rlexp.config.keys.trial import bundles_of
    from rlexp.machine.cluster_shortfalls import node_amounts
    from rlexp.machine.packing import packs, together

    bundles, nodes = bundles_of(experiment.config), node_amounts(cluster)
    listed = [together(bundles.listed)] if bundles.strategy == "STRICT_PACK" else bundles.listed
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if packs(listed * middle, nodes) else (least, middle - 1)
    return least
