"""The environment of Ray: variables that rlexp sets, tokens, and room on the disk.

Also what the nodes of a joined cluster get from this machine: variables, the user's own modules or the current folder.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.env_ids import package_of
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import ResourceError, UsageError
from rlexp.processes.family import SESSION
from rlexp.user_code.finding import find_module

AUTH_MODE: Final = "RAY_AUTH_MODE"
LOOPBACK: Final = "127.0.0.1"
_CONNECT_TIMEOUT_S: Final = 5.0
_LONGEST_SOCKET_PATH: Final = 107
"""Most bytes of the path of a socket, on Linux."""
LEAST_FREE_BYTES = 64 * 2**20
"""Bytes that a session of some hours writes in the folder for temporary files, and a little more."""
ENVIRONMENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # Trials are started when there is room for them; Tune need not delay one start after another.
    "TUNE_MAX_PENDING_TRIALS_PG": "200",
    # One thread per process: with a process per core, pools of BLAS and OpenMP compete for the cores.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""Variables that keep Ray and Tune quiet and separate from each other; the user's own settings win."""
ENVIRONMENT_OF_OWN_RAY = {
    AUTH_MODE: "token",
    # No record of every call, which nothing reads without a dashboard: its server grew by 25 MB a minute.
    "RAY_task_events_report_interval_ms": "0",
    # The modules of every process of a trial, imported while it waits for its trial or its worker.
    "RAY_preload_python_modules": "rlexp.rollout.worker",
    # Ray adds 15 to the niceness of its processes: beside any other computation, a run would stand still.
    "RAY_worker_niceness": "0",
}
"""Variables that close our own Ray to strangers, keep it small, and give it the priority of the command.

Ray finds out whether a cluster needs a token, and each node's ``ray start`` sets the priority of processes.
"""
ENVIRONMENT_IN_A_CLUSTER = {
    # Ray's own 20 s end connections to processes on a node that was away so long, and their trials with them.
    "RAY_grpc_keepalive_timeout_ms": "60000",
}
"""Further variables of processes on a joined cluster: the command's own, and the trials'."""
_OF_WORKERS = (
    "RAY_AIR_NEW_OUTPUT",
    "RAY_CHDIR_TO_TRIAL_DIR",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""Variables that processes of trials need; on other nodes they do not inherit them."""
_IN_A_CLUSTER: Final = "cluster"
"""SESSION in processes of a joined cluster, so that Rays of their envs do not join it too."""
NOTHING_OF_RAYS = {"RAY_DEDUP_LOGS": "1", "RAY_DEDUP_LOGS_SKIP_REGEX": "^"}
"""Settings that keep Ray from printing messages about dead workers to our stdout, where ``--json`` has its events."""
ALL_OF_RAYS = {"RAY_DEDUP_LOGS": "0"}

RAY_ADDRESS: Final = "RAY_ADDRESS"
"""Ray's own variable, which ``ray job submit`` and many clusters set."""
OWN_ADDRESS: Final = "RLEXP_ADDRESS"
"""Our variable, which has priority."""
LOCAL: Final = "local"
"""The value of both that asks for an own Ray on this machine."""


def set_ray_environment(debug: bool, joins: bool = False) -> None:
    """Set ENVIRONMENT for this process and its children; call before anything imports ray, which reads it then.

    With ``debug``, messages of Ray and its processes are printed. ``joins``: for somebody's cluster.
    """
    output = ALL_OF_RAYS if debug else NOTHING_OF_RAYS
    rays = ENVIRONMENT_IN_A_CLUSTER if joins else ENVIRONMENT_OF_OWN_RAY
    for name, value in {**ENVIRONMENT, **rays, **output}.items():
        os.environ.setdefault(name, value)


def has_token(environment: Mapping[str, str], home: Path) -> bool:
    """Return whether there is a token in the places where Ray looks for one."""
    named = any(environment.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    return named or (home / ".ray" / "auth_token").is_file()


def auth_modes(environment: Mapping[str, str], home: Path) -> list[str]:
    """Return values of RAY_AUTH_MODE to try with a cluster: the user's, or without a token and then with one.

    A token for an open cluster makes trials die, as the cluster calls back without it.
    """
    if environment.get(AUTH_MODE):
        return [environment[AUTH_MODE]]
    return ["disabled", *(["token"] if has_token(environment, home) else [])]


def refuse_long_temporary_folder() -> None:
    """Raise ResourceError if the folder for temporary files has a path that is too long for the sockets of Ray."""
    folder = tempfile.gettempdir()
    ours = f"/rlexp-xxxxxxxx/ray/session_2026-11-28_13-29-03_123456_{os.getpid()}/sockets/plasma_store"
    length, most = len(os.fsencode(folder)), _LONGEST_SOCKET_PATH - len(ours)
    if length > most:
        raise ResourceError(
            f"the path of the folder for temporary files has {length} bytes; {most} are the limit of Ray: {folder}",
            "set TMPDIR to a folder with a shorter path, such as TMPDIR=/tmp",
        )


def refuse_full_disk() -> None:
    """Raise ResourceError if the folder for temporary files has no room for Ray, which would die obscurely."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ResourceError(
            f"{folder} has {free / 2**20:.0f} MiB left: Ray needs {LEAST_FREE_BYTES / 2**20:.0f} for its logs",
            "free some space there (rlexp doctor shows what killed commands left), or set TMPDIR to another folder",
        )


def check_loopback() -> None:
    """Raise ResourceError if processes of this machine cannot connect to each other, as Ray's must."""
    with socket.socket() as listener, socket.socket() as connection:
        try:
            listener.bind((LOOPBACK, 0))
            listener.listen(1)
            connection.settimeout(_CONNECT_TIMEOUT_S)
            connection.connect(listener.getsockname())
        except OSError as error:
            message = f"no process can connect to {LOOPBACK} ({error.strerror or error}), which Ray needs: there is no"
            hint = "ip link set lo up, as root of the container or network namespace"
            raise ResourceError(f"{message} usable loopback interface", hint) from error


MOST_BYTES: Final = 100_000_000
"""Most bytes that are sent; the cluster's head keeps them in memory."""
NOT_SENT: Final = (".git", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_SUBMITTED_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable with what ``ray job submit`` itself sends to the nodes."""


def named_modules(trials: Iterable[Trial], modules: UserModules) -> tuple[str, ...]:
    """Return the modules that trials import by name: of ``--import``, and of the user's classes."""
    named = (name for trial in trials for name in trial.experiment.named_modules)
    return tuple(dict.fromkeys((*modules.imports, *named)))


def named_packages(trials: Iterable[Trial]) -> tuple[str, ...]:
    """Return the installed packages that the envs of trials need."""
    packages = (package_of(trial.experiment.env) for trial in trials)
    return tuple(dict.fromkeys(package.module for package in packages if package is not None))


def runtime_env(
    names: Sequence[str],
    modules: UserModules,
    environment: Mapping[str, str],
    folder: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Return what Ray prepares on each node: variables, and the modules ``names`` of the user's folders.

    With ``folder``, all of it except ``out``, the directory of runs. Raises UsageError if it is too large.
    """
    ours = {name: ENVIRONMENT[name] for name in _OF_WORKERS} | ENVIRONMENT_IN_A_CLUSTER
    variables = {name: environment.get(name, value) for name, value in ours.items()} | {SESSION: _IN_A_CLUSTER}
    made: dict[str, Any] = {"env_vars": variables}
    paths = [path for path in sent_modules(names, modules.folders) if folder is None or folder not in path.parents]
    excludes = [*NOT_SENT]
    if folder is not None and out is not None and folder in out.absolute().parents:
        excludes.append(f"/{out.absolute().relative_to(folder)}")
    if folder is not None:
        made["working_dir"] = str(folder)
    if paths:
        made["py_modules"] = [str(path) for path in paths]
    if "working_dir" in made or paths:
        made["excludes"] = excludes
    _refuse_large([*paths, *([folder] if folder else [])], excludes)
    return beside_submitted(made, environment)


def sent_modules(names: Sequence[str], folders: Sequence[str]) -> list[Path]:
    """Return the files and packages of modules in one of the user's ``folders``, not among installed ones."""
    tops = dict.fromkeys(name.partition(".")[0] for name in names)
    places = {Path(folder).resolve() for folder in folders}
    found = (place for top in tops for place in _places(top, folders))
    return [place for place in dict.fromkeys(found) if place.resolve().parent in places]


def _places(name: str, folders: Sequence[str]) -> Iterator[Path]:
    """Yield the paths of a top-level module: a folder if it is a package."""
    spec = find_module(name, folders)
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)
    elif spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin)


def _refuse_large(paths: Iterable[Path], excludes: Sequence[str]) -> None:
    total = 0
    for path in paths:
        skipped = {*NOT_SENT, *(str(path / pattern.lstrip("/")) for pattern in excludes if pattern.startswith("/"))}
        for size in _sizes(path, skipped):
            total += size
            if total > MOST_BYTES:
                message = f"{path} is too large to be sent to the nodes: more than {MOST_BYTES // 10**6} MB"
                raise UsageError(message, "put data elsewhere, or install the code on every node")


def _sizes(path: Path, skipped: set[str]) -> Iterator[int]:
    """Yield the bytes of a file, or of all files of a folder."""
    if path.is_file():
        yield path.stat().st_size
    for folder, subfolders, files in os.walk(path):
        subfolders[:] = [name for name in subfolders if not {name, os.path.join(folder, name)} & skipped]
        yield from (Path(folder, name).lstat().st_size for name in files)


def beside_submitted(made: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return ``made`` without what ``ray job submit`` sends already, as Ray refuses to send the same part twice."""
    submitted = json.loads(environment.get(_SUBMITTED_JOB, "{}")).get("runtime_env") or {}
    given = submitted.get("env_vars", {})
    variables = {name: value for name, value in made.get("env_vars", {}).items() if name not in given}
    kept = {name: value for name, value in made.items() if name not in submitted}
    return {**kept, "env_vars": variables}
