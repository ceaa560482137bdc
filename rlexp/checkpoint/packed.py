"""Checkpoints as one piece of bytes, to be sent: a header as JSON, the files one after the other, and an HMAC.

Only files that a checkpoint can have are written, into a folder that is new, and their sizes and hashes are checked
twice: as those of the piece, and as those of the checkpoint.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

from rlexp.checkpoint.contents import is_file_of_checkpoint, verify_checkpoint
from rlexp.checkpoint.trial import checkpoint_directory, publish_checkpoint
from rlexp.errors import CheckpointError
from rlexp.files import parse_json, read_regular

_MAGIC: Final = b"RLXC1"
_LENGTH_BYTES: Final = 4
_DIGEST_BYTES: Final = 32
_MOST_FILE_BYTES: Final = 16 << 30
_MOST_HEADER_BYTES: Final = 1 << 20
_NEWER: Final = "install the same version of rlexp at both ends"


def pack_checkpoint(path: Path, key: bytes) -> bytes:
    """Return the checkpoint at ``path`` as bytes, signed with ``key``; raises OSError where it cannot be read."""
    files = {
        file.name: read_regular(file, _MOST_FILE_BYTES)
        for file in sorted(path.iterdir())
        if is_file_of_checkpoint(file.name)
    }
    about = [[name, len(content), hashlib.sha256(content).hexdigest()] for name, content in files.items()]
    header = json.dumps({"files": about}).encode()
    body = b"".join((_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, *files.values()))
    return body + _digest(body, key)


def unpack_checkpoint(content: bytes, folder: Path, key: bytes, max_bytes: int) -> Path:
    """Write what :func:`pack_checkpoint` returned into ``folder``; return the checkpoint, named by its iteration.

    One of the same iteration is replaced. Raises CheckpointError, with nothing left behind, for anything else than a
    whole checkpoint that was signed with ``key``, and for more than ``max_bytes``.
    """
    if len(content) > max_bytes:
        raise CheckpointError(f"the checkpoint on the board has {len(content):,} bytes, more than {max_bytes:,}")
    files = _files(content, key)
    temporary = folder / f".checkpoint_received.{os.getpid()}.writing"
    try:
        temporary.mkdir(parents=True)
        for name, file in files.items():
            (temporary / name).write_bytes(file)
        path = checkpoint_directory(folder, verify_checkpoint(temporary).sequence)
        publish_checkpoint(temporary, path)
        return path
    except OSError as error:
        message = f"the checkpoint on the board cannot be written to {folder}: {error.strerror or error}"
        raise CheckpointError(message) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def iteration_of_packed(content: bytes, key: bytes) -> int:
    """Return the training iteration after which a packed checkpoint was written; raises CheckpointError."""
    try:
        iteration: Any = parse_json(bytes(_files(content, key)["manifest.json"]))["sequence"]
        return int(iteration)
    except (KeyError, TypeError, ValueError) as error:
        raise _unreadable() from error


def _files(content: bytes, key: bytes) -> dict[str, memoryview]:
    """Return the files of a packed checkpoint by name, all of them as they were packed."""
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
