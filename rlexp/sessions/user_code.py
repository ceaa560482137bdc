"""What the nodes of a cluster get from this machine: variables, and the user's own modules or the current folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.env_ids import package_of
from rlexp.config.keys.trial import Trial
from rlexp.config.keys.user_code import UserModules
from rlexp.errors import UsageError
from rlexp.sessions.ray_environment import environment_of_workers
from rlexp.user_code.finding import find_module

MOST_BYTES: Final = 100_000_000
"""Of what is sent, which the cluster's head keeps in memory."""
NOT_SENT: Final = (".git", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache")
_SUBMITTED_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which ``ray job submit`` passes what it sends to the nodes itself."""


def named_modules(trials: Iterable[Trial], modules: UserModules) -> tuple[str, ...]:
    """Return the modules that trials import by name: of ``--import``, and of classes of the user's."""
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

    With ``folder`` that one whole, apart from ``out``, the directory of runs. Raises UsageError where it is too large.
    """
    made: dict[str, Any] = {"env_vars": environment_of_workers(environment)}
    paths = [path for path in sent_modules(names, modules.folders) if folder is None or folder not in path.parents]
    excludes = [*NOT_SENT, *_below(folder, out)]
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
    """Yield where a module that is no part of another one lies: a folder if it is a package."""
    spec = find_module(name, folders)
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        yield from map(Path, spec.submodule_search_locations)
    elif spec.origin is not None and spec.origin.endswith(".py"):
        yield Path(spec.origin)


def _below(folder: Path | None, out: Path | None) -> list[str]:
    """Return ``out`` relative to ``folder``, as a pattern, where it is below it."""
    if folder is None or out is None or folder not in out.absolute().parents:
        return []
    return [f"/{out.absolute().relative_to(folder)}"]


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
    """Return ``made`` without what ``ray job submit`` sends already: Ray refuses to send the same part twice."""
    submitted = json.loads(environment.get(_SUBMITTED_JOB, "{}")).get("runtime_env") or {}
    given = submitted.get("env_vars", {})
    variables = {name: value for name, value in made.get("env_vars", {}).items() if name not in given}
    kept = {name: value for name, value in made.items() if name not in submitted}
    return {**kept, "env_vars": variables}
