"""What this machine or a cluster offers, whether trials fit it, and how to make them fit."""

from rlexp.cluster.room.fit import check_fits
from rlexp.cluster.room.machine import (
    Cluster,
    ClusterNode,
    Machine,
    available_cpus,
    available_gpus,
    check_requirements,
    this_machine,
)

__all__ = [
    "Cluster",
    "ClusterNode",
    "Machine",
    "available_cpus",
    "available_gpus",
    "check_fits",
    "check_requirements",
    "this_machine",
]
