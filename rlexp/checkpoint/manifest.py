"""The manifest of a checkpoint: which files it has, their sizes and hashes, and a seal over all of that."""

from __future__ import annotations

import hashlib
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rlexp.errors import CheckpointError, DamagedCheckpointError
from rlexp.json_file import plain, read_json, sync, to_json

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
ARRAYS_SUFFIX: Final = ".safetensors"
GROUP_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_FILE_NAME: Final = re.compile(rf"({GROUP_NAME.pattern}){re.escape(ARRAYS_SUFFIX)}|{re.escape(STATE)}")
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class FileEntry:
    """What the manifest promises about one file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json`` without its seal."""

    sequence: int
    files: dict[str, FileEntry]
    metadata: dict[str, Any]


def write_manifest(directory: Path, sequence: int, metadata: Mapping[str, Any]) -> None:
    """Flush every file of ``directory`` to the disk, then add the manifest that describes them."""
    files = {}
    for path in sorted(directory.iterdir()):
        sync(path)
        files[path.name] = asdict(FileEntry(path.stat().st_size, _sha256(path)))
    content = plain({"format": FORMAT, "sequence": sequence, "files": files, "metadata": metadata})
    text = to_json({**content, "seal": _seal(content)}, indent=2)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
    sync(directory / MANIFEST)
    sync(directory)


def verify_checkpoint(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files all have the size and hash it states.

    Raises CheckpointError when the checkpoint is missing, damaged, of another format, or names a
    file that is no part of a checkpoint (a pickle, or a path out of it).
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {path}", "rlexp ls lists the runs that it finds")
    manifest = _read_manifest(path)
    for name, entry in manifest.files.items():
        if not _FILE_NAME.fullmatch(name):
            raise CheckpointError(f"cannot load {path}: {name!r} is not a file of a checkpoint")
        _verify_file(path, name, entry)
    if STATE not in manifest.files:
        raise DamagedCheckpointError(path, f"{STATE} is missing")
    return manifest


def _read_manifest(path: Path) -> Manifest:
    try:
        content = read_json(path / MANIFEST)
        written_format, seal = content["format"], content.pop("seal")
        if seal != _seal(content):
            raise DamagedCheckpointError(path, f"sha256 mismatch in {MANIFEST}")
        if written_format != FORMAT:
            raise _other_format(path, written_format)
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        sequence, metadata = content["sequence"], content["metadata"]
        if not isinstance(sequence, int) or not isinstance(metadata, dict):
            raise TypeError("expected a number and a mapping")
        return Manifest(sequence, files, metadata)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(path, f"{MANIFEST} is missing") from error
    except _UNREADABLE as error:
        raise DamagedCheckpointError(path, f"{MANIFEST} is unreadable") from error


def _other_format(path: Path, written_format: object) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} has format {written_format}, this rlexp reads format {FORMAT}",
        "use the version of rlexp that wrote it: run.json beside the trial names it",
    )


def _verify_file(checkpoint: Path, name: str, entry: FileEntry) -> None:
    path = checkpoint / name
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise DamagedCheckpointError(checkpoint, f"{name} is not a regular file")
        size = about.st_size
        intact = size == entry.bytes and _sha256(path) == entry.sha256
    except FileNotFoundError as error:
        raise DamagedCheckpointError(checkpoint, f"{name} is missing") from error
    except OSError as error:
        raise DamagedCheckpointError(checkpoint, f"{name} is unreadable: {error.strerror}") from error
    if size != entry.bytes:
        raise DamagedCheckpointError(checkpoint, f"{name} has {size} bytes instead of {entry.bytes}")
    if not intact:
        raise DamagedCheckpointError(checkpoint, f"sha256 mismatch in {name}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
