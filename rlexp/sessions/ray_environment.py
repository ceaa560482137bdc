"""What Ray finds in the environment: variables that rlexp sets for it, addresses of clusters, a full disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rlexp.errors import ResourceError
from rlexp.processes.family import SESSION

AUTH_MODE: Final = "RAY_AUTH_MODE"
LEAST_FREE_BYTES = 64 * 2**20
"""What a session of some hours writes in the folder for temporary files, and a little more."""
ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Trials are given out when there is room for them; Tune need not hold them back, one start after the other.
    "TUNE_MAX_PENDING_TRIALS_PG": "200",
    # One thread per process: with a process per core, BLAS and OpenMP pools only fight for them.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""What keeps Ray and Tune quiet and out of each other's way; what the user has set wins."""
ENVIRONMENT_OF_OWN_RAY = {
    AUTH_MODE: "token",
    # No record of every call, which is not read without a dashboard: its server grew by 25 MB a minute.
    "RAY_task_events_report_interval_ms": "0",
    # What every process of a trial needs, imported while it waits for its trial or its worker.
    "RAY_preload_python_modules": "rlexp.rollout.worker",
    # Ray adds 15 to the niceness of its processes: beside anything else that computes, a run would stand still.
    "RAY_worker_niceness": "0",
}
"""What closes a Ray of our own to strangers, keeps it small, and gives it the priority of the command.

Whether a cluster wants a token, Ray finds out, and the priority of processes is that of each node's ``ray start``."""
ENVIRONMENT_IN_A_CLUSTER = {
    # Ray's own 20 s end connections to processes whose node was away so long, and with one of them a trial.
    "RAY_grpc_keepalive_timeout_ms": "60000",
}
"""What processes on a joined cluster have besides: the command's own, and those of trials."""
_OF_WORKERS = (
    "RAY_AIR_NEW_OUTPUT",
    "RAY_CHDIR_TO_TRIAL_DIR",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""Those of them that processes of trials need; on other nodes they do not inherit them."""
_IN_A_CLUSTER: Final = "cluster"
"""SESSION in processes of a joined cluster: what their envs start does not join it too."""
NOTHING_OF_RAYS = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
"""What keeps Ray from printing to our stdout, where ``--json`` has its events: messages about workers that died."""
ALL_OF_RAYS = {"RAY_DEDUP_LOGS": "0"}

RAY_ADDRESS: Final = "RAY_ADDRESS"
"""Ray's own variable, which ``ray job submit`` and many clusters set."""
OWN_ADDRESS: Final = "RLEXP_ADDRESS"
"""Ours, which wins."""
LOCAL: Final = "local"
"""The value of both that asks for a Ray of one's own, on this machine."""


def set_ray_environment(debug: bool, joins: bool = False) -> None:
    """Set ENVIRONMENT for this process and its children; call before anything imports ray, which reads it then.

    With ``debug`` Ray prints what it has to say, and what its processes print. ``joins``: for somebody's cluster.
    """
    output = ALL_OF_RAYS if debug else NOTHING_OF_RAYS
    rays = ENVIRONMENT_IN_A_CLUSTER if joins else ENVIRONMENT_OF_OWN_RAY
    for name, value in {**ENVIRONMENT, **rays, **output}.items():
        os.environ.setdefault(name, value)


def has_token(environment: Mapping[str, str], home: Path) -> bool:
    """Return whether there is a token where Ray looks for one."""
    named = any(environment.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or (home / ".ray" / "auth_token").is_file()


def auth_modes(environment: Mapping[str, str], home: Path) -> list[str]:
    """Return the values of RAY_AUTH_MODE to try with a cluster: the user's, or without a token and then with one.

    A token that an open cluster did not ask for lets trials die: the cluster calls back without it.
    """
    if environment.get(AUTH_MODE):
        return [environment[AUTH_MODE]]
    return ["disabled", *(["token"] if has_token(environment, home) else [])]


def environment_of_workers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the processes of trials get on all nodes of a cluster, by name."""
    ours = {name: ENVIRONMENT[name] for name in _OF_WORKERS} | ENVIRONMENT_IN_A_CLUSTER
    return {name: environment.get(name, value) for name, value in ours.items()} | {SESSION: _IN_A_CLUSTER}


def refuse_full_disk() -> None:
    """Raise ResourceError where the folder for temporary files has no room for Ray, which would die obscurely."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ResourceError(
            f"{folder} has {free / 2**20:.0f} MiB left: Ray needs {LEAST_FREE_BYTES / 2**20:.0f} for its logs",
            "free some space there (rlexp doctor shows what killed commands left), or set TMPDIR to another folder",
        )
