"""The checkpoints of one trial: named, found and removed; written, or brought from elsewhere, whole or not at all.

A checkpoint from elsewhere (a board, a storage, another trial, the trial's machine) is written into a
:func:`hidden_folder`, and :func:`publish_verified` follows. For a board, a checkpoint is packed into bytes: a header as
JSON, the files one after another, and an HMAC. Only files that a checkpoint can have are unpacked. Their sizes and
hashes are checked twice: by the header, and by the checkpoint's manifest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from rlexp.errors import CheckpointError, DamagedCheckpointError, RlexpError
from rlexp.files import parse_json, read_regular, sync
from rlexp.runs.checkpoint_contents import (
    ARRAYS_SUFFIX,
    GROUP_NAME,
    STATE,
    TYPES,
    Manifest,
    is_file_of_checkpoint,
    verify_checkpoint,
    write_arrays,
    write_manifest,
)
from rlexp.states import AnyArray, num_bytes

_NAME: Final = re.compile(r"checkpoint_(\d{6,})")
# Exists only after a crash between two renames: the old checkpoint of an iteration that was written again.
_REPLACED: Final = ".replaced"
ArrayGroups = Mapping[str, Mapping[str, AnyArray]]


def checkpoint_directory(trial_directory: Path, iteration: int) -> Path:
    """Return the directory of the checkpoint of a training iteration."""
    return trial_directory / f"checkpoint_{iteration:06d}"


def is_checkpoint_name(name: str) -> bool:
    """Return whether a name is a checkpoint's; such a name cannot lead out of a folder."""
    return _NAME.fullmatch(name) is not None


def iteration_of(checkpoint: Path) -> int:
    """Return the training iteration in a checkpoint's name; raises ValueError if there is none."""
    match = _NAME.fullmatch(checkpoint.name.removesuffix(_REPLACED))
    if match is None:
        raise ValueError(f"a checkpoint is called checkpoint_ and six digits, not {checkpoint.name!r}")
    return int(match[1])


def list_checkpoints(trial_directory: Path) -> list[Path]:
    """Return the checkpoints of a trial, newest iteration first, valid or not, without interrupted writes."""
    found = [path for path in _directories(trial_directory) if _NAME.fullmatch(path.name.removesuffix(_REPLACED))]
    return sorted(found, key=lambda path: (iteration_of(path), path.suffix != _REPLACED), reverse=True)


def newest_checkpoint(trial_directory: Path) -> Path | None:
    """Return the newest checkpoint that verifies; None if there are no checkpoints; raises as ``newest_manifest``."""
    found = newest_manifest(trial_directory)
    return None if found is None else found[0]


def newest_manifest(trial_directory: Path) -> tuple[Path, Manifest] | None:
    """Return the newest checkpoint that verifies, and its manifest; None if there are no checkpoints.

    Raises the newest one's CheckpointError if every checkpoint is damaged, and the error of an undamaged one of another
    format. A person must decide to start again from less.
    """
    first_error: CheckpointError | None = None
    for path in list_checkpoints(trial_directory):
        try:
            return path, verify_checkpoint(path)
        except DamagedCheckpointError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return None


def newest_with_damaged_aside(trial_directory: Path) -> tuple[Path | None, list[str]]:
    """Return the result of ``newest_checkpoint``, rename newer damaged ones, and say so in a sentence about each.

    One of another format stays: its error is raised, as continuing from an older one would lose it. Only the one writer
    of a trial may call this.
    """
    newest = newest_checkpoint(trial_directory)
    said = []
    for path in list_checkpoints(trial_directory):
        if path == newest:
            break
        try:
            verify_checkpoint(path)
        except DamagedCheckpointError as error:
            said.append(f"{path.name} is damaged ({error.what}), kept as {set_aside(path).name}")
    return newest, said


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint to ``*.damaged`` (with a number if necessary) so that it is not tried again."""
    target = checkpoint.with_name(f"{checkpoint.name}.damaged")
    number = 2
    while target.exists():
        target = checkpoint.with_name(f"{checkpoint.name}.damaged-{number}")
        number += 1
    return checkpoint.rename(target)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint; an interrupted deletion leaves no part of it under its name."""
    shutil.rmtree(path.rename(path.with_name(f".{path.name}.removing")))


def remove_leftovers(trial_directory: Path) -> None:
    """Remove the remains of interrupted writes and deletions; only the one writer of a trial may call this."""
    for path in _directories(trial_directory):
        unfinished = path.name.startswith(".checkpoint_") and path.suffix in (".writing", ".removing")
        superseded = path.suffix == _REPLACED and path.with_suffix("").is_dir()
        if unfinished or superseded:
            shutil.rmtree(path, ignore_errors=True)


def _directories(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def write_checkpoint(
    directory: Path, arrays: ArrayGroups, state: Mapping[str, Any], metadata: Mapping[str, Any]
) -> Path:
    """Write a checkpoint that is either complete at ``directory`` or absent; an older one there is replaced.

    ``arrays`` maps group to name to array (bool, integer or float, any shape; lazy ones are read while they are
    written); ``state`` is JSON whose numbers keep all digits; ``metadata`` is for people, and its NaN may become null.
    Raises ValueError or TypeError, before anything is written, for a name, dtype or state that cannot be stored, and
    RlexpError when the disk refuses: then nothing of this checkpoint is left and the earlier ones are untouched. Errors
    of reading a lazy array are raised, with nothing left either.
    """
    sequence = iteration_of(directory)
    _refuse_unstorable(arrays)
    state_text = json.dumps(state)
    try:
        remove_leftovers(directory.parent)
        with hidden_folder(directory) as hidden:
            for group, named in arrays.items():
                write_arrays(hidden / f"{group}{ARRAYS_SUFFIX}", named)
            (hidden / STATE).write_text(state_text, encoding="utf-8")
            write_manifest(hidden, sequence, metadata)
            _publish(hidden, directory)
    except OSError as error:
        needed = sum(num_bytes(array) for named in arrays.values() for array in named.values()) / 1e6
        raise RlexpError(
            f"cannot write checkpoint {directory}: {error.strerror or error} (it needs {needed:.1f} MB)",
            "earlier checkpoints are untouched; when the disk works again, rlexp resume continues from the newest",
        ) from error
    return directory


def _refuse_unstorable(arrays: ArrayGroups) -> None:
    for group, named in arrays.items():
        if not GROUP_NAME.fullmatch(group):
            raise ValueError(f"not a name for a group of arrays: {group!r}")
        for name, array in named.items():
            if array.dtype.name not in TYPES:
                raise ValueError(f"{group}/{name} has dtype {array.dtype}, which a checkpoint cannot hold")


@contextmanager
def hidden_folder(checkpoint: Path) -> Iterator[Path]:
    """Provide a new folder beside ``checkpoint`` for its files until it is published; remains are removed.

    Raises OSError if the trial's directory is missing, as a deleted one must not be made again.
    """
    hidden = checkpoint.with_name(f".{checkpoint.name}.{os.getpid()}.writing")
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    try:
        yield hidden
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def publish_verified(
    hidden: Path, checkpoint: Path | None = None, prepare: Callable[[Manifest], object] | None = None
) -> Path:
    """Give a checkpoint from elsewhere its name after it was verified and flushed; return its path.

    ``hidden`` is in the directory of its trial. Without ``checkpoint``, the name is from the iteration in its manifest.
    ``prepare`` gets that manifest after the verification, before anything is changed. Replaces an older one of the
    name; raises CheckpointError as ``verify_checkpoint`` does.
    """
    manifest = verify_checkpoint(hidden)
    if prepare is not None:
        prepare(manifest)
    for path in (*hidden.iterdir(), hidden):
        sync(path)
    checkpoint = checkpoint or checkpoint_directory(hidden.parent, manifest.sequence)
    _publish(hidden, checkpoint)
    return checkpoint


def _publish(temporary: Path, directory: Path) -> None:
    """Rename the hidden checkpoint, which is whole and flushed, to ``directory``; an older one is replaced."""
    if directory.exists():
        replaced = directory.with_name(f"{directory.name}{_REPLACED}")
        shutil.rmtree(replaced, ignore_errors=True)
        directory.rename(replaced)
    temporary.rename(directory)
    sync(directory.parent)
    remove_leftovers(directory.parent)


_MAGIC: Final = b"RLXC1"
_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 32
_MOST_FILE_BYTES: Final = 16 << 30
_MOST_HEADER_BYTES: Final = 1 << 20
_NEWER: Final = "install the same version of rlexp at both ends"


def pack_checkpoint(path: Path, key: bytes) -> bytes:
    """Return the checkpoint at ``path`` as bytes, signed with ``key``; raises OSError if it cannot be read."""
    files = {
        file.name: read_regular(file, _MOST_FILE_BYTES)
        for file in sorted(path.iterdir())
        if is_file_of_checkpoint(file.name)
    }
    about = [[name, len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()]
    header = json.dumps({"files": about}).encode()
    body = b"".join((_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, *files.values()))
    return body + _digest(body, key)


def unpack_checkpoint(
    content: bytes,
    folder: Path,
    key: bytes,
    max_bytes: int,
    prepare: Callable[[Path, Manifest], object] | None = None,
) -> Path:
    """Write what :func:`pack_checkpoint` returned into ``folder``; return the checkpoint, named by its iteration.

    One of the same iteration is replaced. ``prepare`` may change it before; it gets the hidden folder and the manifest.
    Raises CheckpointError, with nothing left behind, for anything else than a whole checkpoint that was signed with
    ``key``, and for more than ``max_bytes``.
    """
    if len(content) > max_bytes:
        raise CheckpointError(f"the checkpoint on the board has {len(content):,} bytes, more than {max_bytes:,}")
    files = _files(content, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden_folder(folder / "checkpoint_received") as hidden:
            for name, file in files.items():
                (hidden / name).write_bytes(file)
            return publish_verified(hidden, prepare=None if prepare is None else partial(prepare, hidden))
    except OSError as error:
        message = f"the checkpoint on the board cannot be written to {folder}: {error.strerror or error}"
        raise CheckpointError(message) from error


def iteration_of_packed(content: bytes, key: bytes) -> int:
    """Return the training iteration after which a packed checkpoint was written; raises CheckpointError."""
    try:
        iteration: Any = parse_json(bytes(_files(content, key)["manifest.json"]))["sequence"]
        return int(iteration)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable() from error


def _files(content: bytes, key: bytes) -> dict[str, memoryview]:
    """Return the files of a packed checkpoint by name, as they were packed."""
    body = memoryview(content)[: max(len(content) - _DIGEST_BYTES, 0)]
    if not hmac.compare_digest(_digest(body, key), content[len(body) :]):
        raise CheckpointError("the checkpoint on the board is not signed with its task's key", _NEWER)
    try:
        begin = len(_MAGIC) + _LENGTH_BYTES
        size = int.from_bytes(body[len(_MAGIC) : begin], "big")
        if bytes(body[: len(_MAGIC)]) != _MAGIC or size > _MOST_HEADER_BYTES:
            raise _unreadable()
        start = begin + size
        files: dict[str, memoryview] = {}
        for name, num_bytes, sha256 in parse_json(bytes(body[begin:start]))["files"]:
            file = body[start : start + num_bytes]
            if name in files or not is_file_of_checkpoint(name) or hashlib.sha256(file).hexdigest() != sha256:
                raise _unreadable()
            files[name] = file
            start += num_bytes
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable() from error
    if start != len(body):
        raise _unreadable()
    return files


def _digest(body: bytes | memoryview, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()


def _unreadable() -> CheckpointError:
    return CheckpointError("the checkpoint on the board cannot be read", _NEWER)
