"""``--wait``: looks at a cluster until it has room, and asks its autoscaler for nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rlexp.config.keys.experiment import Experiment, required_cpus, required_gpus
from rlexp.config.keys.trial import Trial, bundles_of
from rlexp.errors import ResourceError
from rlexp.machine.cluster import Cluster
from rlexp.machine.packing import together
from rlexp.machine.room import check_fits

PAUSE_S = 5.0
"""Between two looks, which ask every node."""

Look = Callable[[], Cluster]
"""Returns the nodes that there are now."""
Ask = Callable[[list[dict[str, float]]], None]
"""Asks the autoscaler for nodes with room for these bundles, until it is called with none."""


def wait_for_room(
    trials: Sequence[Trial],
    look: Look,
    ask: Ask,
    timeout_s: float,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Cluster:
    """Return the cluster once each of ``trials`` fits it; ``report`` gets what is missing, each time that it changes.

    Raises ResourceError after ``timeout_s`` seconds and the look that is under way then. The first look counts.
    """
    begun, shown = clock(), ""
    try:
        while True:
            cluster = look()
            try:
                check_fits(trials, cluster)
                return cluster
            except ResourceError as error:
                waited_s = clock() - begun
                if waited_s >= timeout_s:
                    raise _timed_out(error, waited_s) from error
                missing = _missing(trials, cluster, error)
            if not shown:
                ask(_asked(trials, cluster))
            if missing != shown:
                shown = missing
                report(missing)
            pause(max(min(PAUSE_S, begun + timeout_s - clock()), 0))
    finally:
        if shown:
            ask([])  # else the autoscaler would keep the nodes after the run


def _timed_out(error: ResourceError, waited_s: float) -> ResourceError:
    return ResourceError(f"{error.message}, after waiting for {waited_s:.0f} s", error.hint, error.problems[1:])


def _largest(trials: Sequence[Trial], cluster: Cluster) -> Experiment:
    """Return which of the trials that do not fit needs most."""
    unfit = [trial.experiment for trial in trials if not _fits(trial, cluster)]
    return max(unfit, key=lambda experiment: (required_cpus(experiment), required_gpus(experiment)))


def _fits(trial: Trial, cluster: Cluster) -> bool:
    try:
        check_fits([trial], cluster)
    except ResourceError:
        return False
    return True


def _asked(trials: Sequence[Trial], cluster: Cluster) -> list[dict[str, float]]:
    bundles = bundles_of(_largest(trials, cluster).config)
    listed = [together(bundles.listed)] if bundles.strategy == "STRICT_PACK" else bundles.listed
    return [dict(bundle) for bundle in listed if bundle]


def _missing(trials: Sequence[Trial], cluster: Cluster, error: ResourceError) -> str:
    """Return in a few words what there is of what is needed, or where no number says it, the error."""
    experiment = _largest(trials, cluster)
    cpus, gpus = required_cpus(experiment), required_gpus(experiment)
    if cpus > cluster.cpus:
        return f"waiting for room: {cluster.cpus} of {cpus:g} CPUs"
    if gpus > cluster.gpus:
        return f"waiting for room: {cluster.gpus} of {gpus:g} GPUs"
    return f"waiting for room: {error.message}"
