"""Blobs, such as weights and checkpoints: what is too large for one value on a board, in chunks whose hash is checked.

Checkpoints, for other trainers of the task and for its client, have the trainer's signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from rlexp.board.messages.credentials import ActorKeys, TrainerKeys
from rlexp.board.messages.errors import InvalidMessageError

CHUNK_BYTES: Final = 4 << 20

MAX_BLOB_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class BlobHead:
    """What is known of a blob before it is fetched."""

    num_bytes: int
    sha256: str

    @staticmethod
    def of(content: bytes) -> BlobHead:
        """Return the head of ``content``."""
        return BlobHead(len(content), sha256(content).hexdigest())

    @property
    def num_chunks(self) -> int:
        """Chunks that it is kept in."""
        return -(-self.num_bytes // CHUNK_BYTES)

    def fits(self, content: bytes) -> bool:
        """Return whether ``content`` is what was put."""
        return BlobHead.of(content) == self

    def to_text(self) -> str:
        """Return what :meth:`parse` reads."""
        return f"{self.num_bytes} {self.sha256}"

    @staticmethod
    def parse(text: str) -> BlobHead:
        """Return the head that ``text`` says; raises ValueError where it says none, or of more than MAX_BLOB_BYTES."""
        size, digest = text.split()
        num_bytes = int(size)
        if not 0 <= num_bytes <= MAX_BLOB_BYTES:
            raise ValueError("a blob of a size that none has")
        return BlobHead(num_bytes, digest)


def chunks(content: bytes) -> Iterator[bytes]:
    """Yield ``content`` in pieces of CHUNK_BYTES."""
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


def signed(content: bytes, task_id: str, name: str, keys: TrainerKeys) -> bytes:
    """Return the blob ``name`` of a task with ``content``; without tokens they are the same."""
    return content + keys.sign(_statement(content, task_id, name))


def verified(blob: bytes, task_id: str, name: str, keys: ActorKeys | TrainerKeys) -> bytes:
    """Return the content of a blob; raises InvalidMessageError where the trainer of ``keys`` has not made it."""
    end = len(blob) - keys.num_signature_bytes
    content = blob[: max(end, 0)]
    if end < 0 or not keys.accepts(_statement(content, task_id, name), blob[end:]):
        raise InvalidMessageError(f"the blob {name} is not signed by the task's trainer")
    return content


def _statement(content: bytes, task_id: str, name: str) -> bytes:
    return f"rlexp blob 1\n{task_id}\n{name}\n{sha256(content).hexdigest()}".encode()
