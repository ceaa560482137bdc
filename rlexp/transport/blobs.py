"""Blobs, such as weights: what is too large for one value on a board, in chunks whose hash is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

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
