"""What this machine or a cluster offers, whether trials fit it, and how to make them fit."""

from rlexp.machine.cluster import Cluster, Node
from rlexp.machine.hardware import Machine, available_cpus, available_gpus, this_machine
from rlexp.machine.requirements import check_requirements
from rlexp.machine.room import check_fits

__all__ = [
    "Cluster",
    "Machine",
    "Node",
    "available_cpus",
    "available_gpus",
    "check_fits",
    "check_requirements",
    "this_machine",
]
