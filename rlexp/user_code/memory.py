"""The code and addresses with which this user has trained, stored outside of any run.

A run that is evaluated or resumed later only names them, and may be a stranger's.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.experiment import Experiment, TrackConfig
from rlexp.config.load import Plan
from rlexp.errors import Notice
from rlexp.files import parse_json, read_regular, replace_json
from rlexp.user_code.finding import ModuleFile, module_file

FILE_NAME: Final = "trusted.json"
_FORMAT: Final = 1
_MOST_BYTES: Final = 8 << 20
_MOST: Final = 5000
"""Most entries of each kind that are stored: the newest."""
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_LOCK_TIMEOUT_S: Final = 3.0
_ACCOUNTS: Final = ("wandb://", "mlflow://")
_OWN_ACCOUNTS: Final = ("wandb:///", "mlflow:///")
"""The account name if a file names no entity."""


@dataclass(frozen=True)
class Remembered:
    """A part with which this user has trained."""

    name: str
    """The name in an experiment: ``my_env``, ``my_env:MyEnv``."""
    module: ModuleFile


@dataclass(frozen=True)
class Memory:
    """The stored entries, the newest last."""

    parts: tuple[Remembered, ...] = ()
    addresses: tuple[str, ...] = ()
    """Digests of the URLs of storages, which may contain passwords."""

    @staticmethod
    def read() -> Memory:
        """Return the stored entries; empty if there is no file, or somebody else may have written it."""
        folder = state_folder()
        try:
            return NOTHING if folder is None else _parsed(_private_bytes(folder / FILE_NAME))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return NOTHING

    def knows_address(self, url: str) -> bool:
        """Return whether this user has trained with a storage."""
        return _digest(url) in self.addresses

    def find(self, name: str, folders: Iterable[str]) -> Iterator[ModuleFile]:
        """Yield the stored files for a name, files in ``folders`` first, then the newest."""
        order = [os.path.realpath(folder) for folder in folders]
        known = [part.module for part in reversed(self.parts) if part.name == name]
        yield from sorted(known, key=lambda each: order.index(each.folder) if each.folder in order else len(order))


NOTHING: Final = Memory()


def state_folder() -> Path | None:
    """Return the folder for this user's state; None if there is no home."""
    given = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "rlexp")
    home = os.path.expanduser("~")
    return Path(home, ".local", "state", "rlexp") if os.path.isabs(home) else None


def remember_plan(plan: Plan) -> Notice | None:
    """Store the modules and storages that this user's own experiments name; return a notice if that failed."""
    experiments = plan.named_experiments
    names = dict.fromkeys(plan.modules.imports)
    for experiment in experiments:
        names |= dict.fromkeys([experiment.env] if ":" in experiment.env else [])
        names |= dict.fromkeys(part.name for part in experiment.config.user_parts())
    found = ((name, module_file(name.partition(":")[0], plan.modules.folders)) for name in names)
    parts = [Remembered(name, module) for name, module in found if module is not None]
    return remember(parts, (*addresses_of(plan), *(address for _, address in model_files(experiments))))


def addresses_of(plan: Plan) -> tuple[str, ...]:
    """Return the addresses to which a plan sends: storages of checkpoints and studies, and accounts of trackers."""
    storages = [trial.experiment.storage for trial in plan.everything]
    storages += [sweep.search.optuna.storage for sweep in plan.sweeps]
    tracks = [trial.experiment.track for trial in plan.everything]
    accounts = chain.from_iterable(map(_accounts, tracks))
    return tuple(dict.fromkeys(chain((storage for storage in storages if storage is not None), accounts)))


def model_files(experiments: Iterable[Experiment]) -> Iterator[tuple[str, str]]:
    """Yield MuJoCo's envs with a given model file, and the text under which that is stored.

    A model names more files, which MuJoCo opens whatever they are.
    """
    for experiment in experiments:
        for given in (experiment.config.env_config, experiment.config.evaluation_config.env_config):
            file = str(given.get("xml_file", ""))
            if file and Path(file).name != file:  # otherwise it is one of Gymnasium's
                yield experiment.env, f"{experiment.env} with {file}"


def typed_addresses(plan: Plan, overrides: Iterable[str]) -> set[str]:
    """Return the addresses that this user typed, as a URL or as ``--track``, which means this user's account."""
    keys, values = zip(*((each.strip() for each in text.split("=", 1)) for text in ("=", *overrides)), strict=True)
    tracks = "track.to" in keys
    return {url for url in addresses_of(plan) if url in values or (tracks and url.startswith(_OWN_ACCOUNTS))}


def is_account(url: str) -> bool:
    """Return whether an address belongs to a tracker."""
    return url.startswith(_ACCOUNTS)


def _accounts(track: TrackConfig) -> Iterator[str]:
    """Yield trackers' places as URLs: the server is this user's, project and entity are the file's choice."""
    if "wandb" in track.to:
        yield f"wandb://{track.wandb.entity or ''}/{track.wandb.project or ''}"
    if "mlflow" in track.to:
        yield f"mlflow:///{track.mlflow.experiment or ''}"


def remember(parts: Iterable[Remembered], addresses: Iterable[str] = ()) -> Notice | None:
    """Store what this user has named; return a notice if that is not possible."""
    parts, digests = list(parts), [_digest(url) for url in addresses]
    if not parts and not digests:
        return None
    folder = state_folder()
    try:
        if folder is None:
            raise OSError("there is no home directory")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.geteuid():  # sudo keeps HOME
            raise PermissionError("the folder belongs to another user")
        from filelock import FileLock  # only a command that trains takes it

        # Other commands of this user write meanwhile; if one does for too long, acquiring raises OSError.
        with FileLock(folder / "trusted.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
            _write(folder, Memory.read(), parts, digests)
    except OSError as error:
        message = f"the modules of this run cannot be remembered: {error}; evaluate and resume will ask for them"
        return Notice(str(folder or "~"), message)
    return None


def _write(folder: Path, before: Memory, parts: list[Remembered], digests: list[str]) -> None:
    replaced = {(part.name, part.module.file) for part in parts}
    kept = [part for part in before.parts if (part.name, part.module.file) not in replaced]
    addresses = [digest for digest in before.addresses if digest not in digests]
    content = {
        "format": _FORMAT,
        "parts": [asdict(part) for part in (*kept, *parts)][-_MOST:],
        "addresses": [*addresses, *digests][-_MOST:],
    }
    replace_json(folder / FILE_NAME, content)
    (folder / FILE_NAME).chmod(0o600)


def _parsed(text: bytes) -> Memory:
    content: Any = parse_json(text)
    if content["format"] != _FORMAT:
        return NOTHING
    parts = tuple(Remembered(str(each["name"]), ModuleFile(**each["module"])) for each in content["parts"])
    return Memory(parts, tuple(map(str, content["addresses"])))


def _private_bytes(path: Path) -> bytes:
    """Return the contents of a file that only this user can have written; raises OSError."""
    for place in (path.parent, path):
        about = place.stat()
        if about.st_uid != os.geteuid() or about.st_mode & _OTHERS_MAY_WRITE:
            raise PermissionError(f"{place} may be written by others")
    return read_regular(path, _MOST_BYTES)


def _digest(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()
