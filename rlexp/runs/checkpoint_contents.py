"""The content of a checkpoint: arrays, a state, and a manifest with the size and hash of each file and a seal.

Reading verifies every size and hash first and executes nothing. Arrays are files in the safetensors format
(https://huggingface.co/docs/safetensors): the length of a header in 8 bytes, the header as JSON, then the arrays. They
are written piece by piece and read in place, so nothing is in memory twice. The format's library needs every array
whole and contiguous, and returns copies of what it reads.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlexp.errors import CheckpointError, DamagedCheckpointError
from rlexp.files import open_regular, parse_json, plain, read_json, sync, to_json
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, num_bytes, pieces

LENGTH_BYTES: Final = 8
_MOST_HEADER_BYTES: Final = 100_000_000
"""The same limit as in the format's own library."""
METADATA: Final = "__metadata__"
TYPES: Final = {"bool": "BOOL"} | {
    f"{name}{bits}": f"{code}{bits}"
    for name, code, widths in (
        ("uint", "U", (8, 16, 32, 64)),
        ("int", "I", (8, 16, 32, 64)),
        ("float", "F", (16, 32, 64)),
    )
    for bits in widths
}
"""The format's names of NumPy types."""
_DTYPES: Final = {code: np.dtype(name).newbyteorder("<") for name, code in TYPES.items()}


def write_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write ``arrays`` by name, all of types in TYPES; errors of the file system are raised.

    This needs the memory of one piece beside the arrays.
    """
    # Wide items first: each array then begins at a multiple of its item size, which is fastest to read.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, array in ordered:
        start, end = end, end + num_bytes(array)
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for _, array in ordered:
            for piece in pieces(array):
                file.write(piece.data)
        if file.tell() != LENGTH_BYTES + len(text) + end:
            raise ValueError(
                f"{path.name} does not have the size that its header says: an array changed while it was written"
            )


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file by name, read-only; the operating system reads each page when it is used.

    Raises OSError, and ValueError if the file is not such a file.
    """
    with open_regular(path, None) as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    begin = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if begin > _MOST_HEADER_BYTES:
        raise ValueError(f"{path.name} is not a safetensors file: its header would have {begin:,} bytes")
    try:
        header = parse_json(content[LENGTH_BYTES:begin])
        return {name: _in_place(content, begin, form) for name, form in header.items() if name != METADATA}
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path.name} is not a safetensors file: {error}") from error


def _in_place(content: mmap.mmap, begin: int, form: Mapping[str, Any]) -> Array:
    (start, end), shape = form["data_offsets"], tuple(form["shape"])
    if min((start, *shape)) < 0:
        raise ValueError(f"an array of shape {shape} begins at {start}")
    # Raises TypeError if the file ends before the array does.
    array: Array = np.ndarray(shape, _DTYPES[form["dtype"]], content, begin + start)
    if array.nbytes != end - start:
        raise ValueError(f"an array of {array.nbytes} bytes has room for {end - start}")
    return array


FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
STATE: Final = "state.json"
ARRAYS_SUFFIX: Final = ".safetensors"
GROUP_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_FILE_NAME: Final = re.compile(rf"({GROUP_NAME.pattern}){re.escape(ARRAYS_SUFFIX)}|{re.escape(STATE)}")
_UNREADABLE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class FileEntry:
    """The manifest's promise about one file."""

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
        files[path.name] = asdict(FileEntry(path.stat().st_size, sha256_of(path)))
    content = plain({"format": FORMAT, "sequence": sequence, "files": files, "metadata": metadata})
    text = to_json({**content, "seal": _seal(content)}, indent=2)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")
    sync(directory / MANIFEST)
    sync(directory)


def verify_checkpoint(path: Path) -> Manifest:
    """Return the manifest of a checkpoint whose files all have the size and hash it states.

    Raises CheckpointError when the checkpoint is missing, damaged, of another format, or names a file that does not
    belong into a checkpoint (a pickle, or a path out of it).
    """
    if not path.is_dir():
        raise CheckpointError(f"there is no checkpoint at {path}", "rlexp ls lists the runs that it finds")
    manifest = read_manifest(path)
    for name, entry in manifest.files.items():
        if not _FILE_NAME.fullmatch(name):
            raise CheckpointError(f"cannot load {path}: {name!r} is not a file of a checkpoint")
        _verify_file(path, name, entry)
    if STATE not in manifest.files:
        raise DamagedCheckpointError(path, f"{STATE} is missing")
    return manifest


def is_file_of_checkpoint(name: str) -> bool:
    """Return whether a file of a checkpoint can have this name."""
    return name == MANIFEST or _FILE_NAME.fullmatch(name) is not None


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint without looking at its files; raises CheckpointError."""
    try:
        content = read_json(path / MANIFEST)
        written_format, seal = content["format"], content.pop("seal")
        if seal != _seal(content):
            raise DamagedCheckpointError(path, f"sha256 mismatch in {MANIFEST}")
        if written_format != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {written_format}, this rlexp reads format {FORMAT}",
                "use the version of rlexp that wrote it: run.json beside the trial names it",
            )
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        sequence, metadata = content["sequence"], content["metadata"]
        if not isinstance(sequence, int) or not isinstance(metadata, dict):
            raise TypeError("expected a number and a mapping")
        return Manifest(sequence, files, metadata)
    except FileNotFoundError as error:
        raise DamagedCheckpointError(path, f"{MANIFEST} is missing") from error
    except _UNREADABLE as error:
        raise DamagedCheckpointError(path, f"{MANIFEST} is unreadable") from error


def looks_whole(path: Path) -> bool:
    """Return whether a checkpoint has its manifest, and every file with its stated size; no file is read."""
    try:
        manifest = read_manifest(path)
        return all((path / name).stat().st_size == entry.bytes for name, entry in manifest.files.items())
    except (CheckpointError, OSError, ValueError):
        return False


def _verify_file(checkpoint: Path, name: str, entry: FileEntry) -> None:
    path = checkpoint / name
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise DamagedCheckpointError(checkpoint, f"{name} is not a regular file")
        size = about.st_size
        intact = size == entry.bytes and sha256_of(path) == entry.sha256
    except FileNotFoundError as error:
        raise DamagedCheckpointError(checkpoint, f"{name} is missing") from error
    except OSError as error:
        raise DamagedCheckpointError(checkpoint, f"{name} is unreadable: {error.strerror}") from error
    if size != entry.bytes:
        raise DamagedCheckpointError(checkpoint, f"{name} has {size} bytes instead of {entry.bytes}")
    if not intact:
        raise DamagedCheckpointError(checkpoint, f"sha256 mismatch in {name}")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with open_regular(path, None) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint; every byte matched its manifest."""

    path: Path
    sequence: int
    """The training iteration after which it was written. It orders checkpoints, whatever the clocks were."""
    arrays: dict[str, dict[str, Array]]
    """Groups of arrays, read-only and still in their files; each page is read when it is used."""
    state: dict[str, Any]
    metadata: dict[str, Any]

    def copies(self, group: str) -> dict[str, Array]:
        """Return copies in memory of the arrays of a group; empty if there is no such group."""
        return {name: np.array(array) for name, array in self.arrays.get(group, {}).items()}

    def check_numbers(self, *groups: str) -> None:
        """Raise CheckpointError, with the array's name, if no network can compute with an array of the ``groups``.

        Such an array has NaN or infinity, or numbers so large that their sum overflows.
        """
        for group in groups:
            for name, array in self.arrays.get(group, {}).items():
                problem = _problem(array)
                if problem is not None:
                    raise CheckpointError(
                        f"checkpoint {self.path}: {group}/{name} holds {problem}",
                        "the training diverged, or the file was changed; use an earlier checkpoint",
                    )


def _problem(array: Array) -> str | None:
    """Return the problem of an array's numbers, None if there is none; a valid array is read once."""
    if not np.issubdtype(array.dtype, np.floating):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.abs(array).sum(dtype=np.result_type(array.dtype, np.float32))
    if np.isfinite(total):
        return None
    count = array.size - np.count_nonzero(np.isfinite(array))
    if count:
        return f"{count:,} numbers of {array.size:,} that are NaN or infinite"
    return f"numbers up to {np.abs(array).max():.3g}, which overflow when they are added"


def read_checkpoint(path: Path) -> Checkpoint:
    """Verify the checkpoint at ``path``, then open all of it; raises CheckpointError as verify_checkpoint does."""
    manifest = verify_checkpoint(path)
    groups = [name.removesuffix(ARRAYS_SUFFIX) for name in manifest.files if name != STATE]
    try:
        arrays = {group: read_arrays(path / f"{group}{ARRAYS_SUFFIX}") for group in groups}
    except (OSError, ValueError) as error:
        raise _other_contents(path, error) from error
    return Checkpoint(path, manifest.sequence, arrays, read_state(path), manifest.metadata)


def read_state(path: Path) -> dict[str, Any]:
    """Return the state in a verified checkpoint; raises DamagedCheckpointError if there is none."""
    try:
        state = read_json(path / STATE)
    except (OSError, ValueError) as error:
        raise _other_contents(path, error) from error
    if not isinstance(state, dict):
        raise _other_contents(path, f"{STATE} holds no state")
    return state


def _other_contents(path: Path, what: object) -> DamagedCheckpointError:
    """Return the error if all hashes match but the content is another kind of file."""
    return DamagedCheckpointError(path, f"not the contents of a checkpoint: {what}")
