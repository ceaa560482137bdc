"""Ray clusters of several nodes on one machine, for tests.

As root each node is a set of namespaces: its own network, processes, host name, /dev/shm, /tmp/ray and disk. Elsewhere
``ray.cluster_utils.Cluster`` makes nodes that share all of this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.cluster import TestCluster
from tests.cluster.local_nodes import LocalNodes
from tests.cluster.namespaces import NamespaceNodes, why_no_namespaces

REPOSITORY = Path(__file__).parents[2]
KIND = "RLEXP_TEST_NODES"
"""Environment variable: ``ray`` makes nodes without namespaces, also as root."""


@cache
def kind_of_nodes() -> str:
    """Return how nodes are made here, with the reason where it is not by namespaces."""
    if os.environ.get(KIND) == "ray":
        return f"ray.cluster_utils.Cluster ({KIND}=ray)"
    reason = why_no_namespaces()
    return "namespaces" if reason is None else f"ray.cluster_utils.Cluster ({reason})"


def environment_of(token: str | None) -> dict[str, str]:
    """Return the variables for Ray and for commands in the nodes: ours, without what names another Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RLEXP_", "TUNE_"))}
    auth = {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    paths = {"PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', '')}", "PYTHONPATH": str(REPOSITORY)}
    # Starting takes as long as it takes on a machine with other work, and idle workers would take its cores.
    patience = {"RAY_raylet_start_wait_time_s": "180", "RAY_gcs_rpc_server_connect_timeout_s": "60"}
    patience["RAY_prestart_worker_first_driver"] = "0"
    return (
        kept
        | auth
        | paths
        | patience
        | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    )


@contextmanager
def nodes(
    count: int,
    folder: Path,
    cpus: float = 4,
    head_cpus: float | None = None,
    token: str | None = None,
    with_ray: bool = True,
    own_disks: bool = False,
) -> Iterator[TestCluster]:
    """Make ``count`` nodes with ``cpus`` logical CPUs each; ``folder`` gets logs and the mount point of their disks.

    A test that needs ``own_disks`` is skipped with the reason where namespaces cannot be made.
    ``head_cpus`` counts for node 1; ``token`` is the one that Ray demands; ``with_ray`` False starts no Ray.
    """
    kind = kind_of_nodes()
    if own_disks and kind != "namespaces":
        pytest.skip(f"nodes are made by {kind}")
    make = NamespaceNodes if kind == "namespaces" else LocalNodes
    cluster: TestCluster = make(folder, cpus, environment_of(token))
    try:
        for number in range(1, count + 1):
            cluster.add()
            if with_ray:
                cluster.start(number, head_cpus if number == 1 and head_cpus is not None else cpus)
                # One by one: of two that started at once some were not registered within Ray's 180 s.
                cluster.wait_for_all()
        yield cluster
    finally:
        cluster.close()
