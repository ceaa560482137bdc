"""StoragePlace: the folder of a file system that a URL names, and the checkpoints in it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rlexp.checkpoint.contents import MANIFEST, is_file_of_checkpoint
from rlexp.errors import CheckpointError, ResourceError, ResumeError, RlexpError, UsageError
from rlexp.files import open_regular
from rlexp.processes.threads import Progress, bounded
from rlexp.text import masked

PIECE_BYTES: Final = 16 << 20
"""Of a file that is copied: what is in memory at a time."""
CHECK_TIMEOUT_S: Final = 15.0
"""How long a server may take for each step of the check before a run."""
_LEADS_OUT: Final = re.compile(r"[/\\\x00-\x1f\x7f-\x9f]|%(2e|2f|5c|[01][0-9a-f]|7f)", re.IGNORECASE)
"""A separator or control character, also as in URLs."""
_WHOSE_NAME: Final = "it is the name of a run or trial in run.json: restore that file from a copy"
_EXAMPLES: Final = "write it as s3://bucket/folder, gs://bucket/folder or file:///folder"


@dataclass(frozen=True)
class StoragePlace:
    """A folder of a file system; every function may wait for its server, and raises OSError."""

    shown: str
    """The URL without its secrets."""
    files: Any
    """The ``pyarrow.fs.FileSystem``."""
    root: str

    @classmethod
    def at(cls, url: str) -> StoragePlace:
        """Open a URL; raises UsageError where it is none that can be opened, ResourceError where it cannot be now."""
        from pyarrow.fs import FileSystem  # it takes a moment, and most runs do not need it

        shown = masked(url)
        try:
            files, root = FileSystem.from_uri(url)
        except (ValueError, NotImplementedError, KeyError) as error:
            raise UsageError(f"storage {shown} cannot be opened: {_first_line(error, url)}", _EXAMPLES) from None
        except OSError as error:
            raise _unreachable(shown, error, url) from None
        if not root.strip("/"):
            raise UsageError(f"storage {shown} names no folder", _EXAMPLES)
        return cls(shown, files, root.rstrip("/"))

    def below(self, *names: str) -> StoragePlace:
        """Return a folder in it; raises ResumeError for a name that would lead out of it."""
        for name in names:
            if name in ("", ".", "..") or _LEADS_OUT.search(name):
                raise ResumeError(f"{name!r} is no name of a folder in the storage {self.shown}", _WHOSE_NAME)
        return StoragePlace(self.shown, self.files, "/".join((self.root, *names)))

    def names(self) -> list[str]:
        """Return what is in it, nothing where it does not exist."""
        from pyarrow.fs import FileSelector

        found = self.files.get_file_info(FileSelector(self.root, allow_not_found=True))
        return [each.base_name for each in found]

    def manifest(self) -> bytes | None:
        """Return the manifest of the checkpoint that it is, None where it has none: then it is not whole."""
        try:
            with self.files.open_input_stream(f"{self.root}/{MANIFEST}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def put(self, checkpoint: Path, progress: Progress = lambda: None) -> None:
        """Copy a checkpoint to it, the manifest last; what is there is no checkpoint before that."""
        if self.manifest() is not None:
            self.files.delete_file(f"{self.root}/{MANIFEST}")
        self.files.create_dir(self.root, recursive=True)
        for path in sorted(checkpoint.iterdir(), key=lambda path: path.name == MANIFEST):
            with (
                open_regular(path, None) as source,
                self.files.open_output_stream(f"{self.root}/{path.name}") as target,
            ):
                _copy(source.read, target.write, progress)

    def get(self, folder: Path, progress: Progress) -> None:
        """Copy the files of a checkpoint to a new folder; what is no file of one is left out."""
        folder.mkdir()
        for name in filter(is_file_of_checkpoint, self.names()):
            with self.files.open_input_stream(f"{self.root}/{name}") as source, (folder / name).open("wb") as target:
                _copy(source.read, target.write, progress)

    def remove(self) -> None:
        """Delete it and what is in it; the manifest first, so that half of a checkpoint is none."""
        with suppress(FileNotFoundError):
            self.files.delete_file(f"{self.root}/{MANIFEST}")
        with suppress(FileNotFoundError):
            self.files.delete_dir(self.root)


def check_storage(url: str) -> None:
    """Write, read and delete a small file at a URL before a run begins.

    Raises UsageError where it is not a URL of a storage, ResourceError where that fails or takes too long.
    """

    def work(progress: Progress) -> None:
        place = StoragePlace.at(url)
        progress()
        content, probe = uuid.uuid4().hex.encode(), f"{place.root}/.rlexp-{uuid.uuid4().hex}"
        for step in _steps(place, probe, content):
            step()
            progress()

    try:
        bounded(work, CHECK_TIMEOUT_S, f"storage {masked(url)}")
    except OSError as error:
        raise _unreachable(masked(url), error, url) from None


def said(error: Exception, url: str) -> str:
    """Return an error of a file system in one line, without secrets."""
    return error.message if isinstance(error, RlexpError) else _first_line(error, url)


def _steps(place: StoragePlace, probe: str, content: bytes) -> Iterator[Callable[[], None]]:
    def write() -> None:
        with place.files.open_output_stream(probe) as stream:
            stream.write(content)

    def read() -> None:
        with place.files.open_input_stream(probe) as stream:
            if stream.read() != content:
                raise CheckpointError(f"storage {place.shown} does not return what was written to it")

    yield lambda: place.files.create_dir(place.root, recursive=True)
    yield write
    yield read
    yield lambda: place.files.delete_file(probe)


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], object], progress: Progress) -> None:
    while piece := read(PIECE_BYTES):
        write(piece)
        progress()


def _unreachable(shown: str, error: Exception, url: str) -> ResourceError:
    message = f"storage {shown} cannot be used: {_first_line(error, url)}"
    return ResourceError(message, "look at its address, at the credentials, and at the rights to write there")


def _first_line(error: Exception, url: str) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].replace(url, str(masked(url))) if lines else type(error).__name__
