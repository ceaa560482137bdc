"""What Ray finds in the environment: variables that rlexp sets for its own Ray, addresses of clusters, a full disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping
from typing import Final

from rlexp.errors import ResourceError
from rlexp.runs.secrets import masked
from rlexp.sessions.processes import SESSION

LEAST_FREE_BYTES = 64 * 2**20
"""What a session of some hours writes in the folder for temporary files, and a little more."""
ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Trials are given out when there is room for them; Tune need not hold them back, one start after the other.
    "TUNE_MAX_PENDING_TRIALS_PG": "200",
    # No record of every call, which is not read without a dashboard: its server grew by 25 MB a minute.
    "RAY_task_events_report_interval_ms": "0",
    # One thread per process: with a process per core, BLAS and OpenMP pools only fight for them.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""What keeps Ray and Tune quiet, closed to strangers and out of each other's way; what the user has set wins."""
NOTHING_OF_RAYS = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
"""What keeps Ray from printing to our stdout, where ``--json`` has its events: messages about workers that died."""
ALL_OF_RAYS = {"RAY_DEDUP_LOGS": "0"}

RAY_ADDRESS: Final = "RAY_ADDRESS"
"""Ray's own variable, which ``ray job submit`` and many clusters set."""
OWN_ADDRESS: Final = "RLEXP_ADDRESS"
"""Ours, which wins."""
LOCAL: Final = "local"
"""The value of both that asks for a Ray of one's own, on this machine."""


def set_ray_environment(debug: bool) -> None:
    """Set ENVIRONMENT for this process and its children; call before anything imports ray, which reads it then.

    With ``debug`` Ray prints what it has to say, and what its processes print.
    """
    for name, value in {**ENVIRONMENT, **(ALL_OF_RAYS if debug else NOTHING_OF_RAYS)}.items():
        os.environ.setdefault(name, value)


def refuse_full_disk() -> None:
    """Raise ResourceError where the folder for temporary files has no room for Ray, which would die obscurely."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ResourceError(
            f"{folder} has {free / 2**20:.0f} MiB left: Ray needs {LEAST_FREE_BYTES / 2**20:.0f} for its logs",
            "free some space there (rlexp doctor shows what killed commands left), or set TMPDIR to another folder",
        )


def cluster_error(environment: Mapping[str, str]) -> ResourceError | None:
    """Return the error of a command that would have to join the cluster that a variable names; None without one."""
    own, ray = (environment.get(name, "").strip() for name in (OWN_ADDRESS, RAY_ADDRESS))
    if not own and SESSION in environment:  # within an env of a run: it is not the user who has set the address
        return None
    name, address = (OWN_ADDRESS, own) if own else (RAY_ADDRESS, ray)
    if address in ("", LOCAL):
        return None
    return ResourceError(
        f"{name}={masked(address)} names a Ray cluster, and rlexp cannot join one yet",
        f"{OWN_ADDRESS}={LOCAL} trains in a Ray of its own on this machine",
    )


def refuse_cluster(environment: MutableMapping[str, str]) -> None:
    """Raise ResourceError where a variable names a cluster; else remove Ray's, so that nothing joins its address.

    An env may call ``ray.init()``, which would.
    """
    error = cluster_error(environment)
    if error is not None:
        raise error
    environment.pop(RAY_ADDRESS, None)
