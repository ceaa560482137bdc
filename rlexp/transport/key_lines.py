"""Keys and tokens as lines of text that can be copied: a prefix, base64url, and a checksum that finds typing errors."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from hashlib import sha256
from typing import Final

from rlexp.errors import UsageError

MASTER_PREFIX: Final = "rlexp-master-1-"
TOKEN_PREFIX: Final = "rlexp-token-1-"
_CHECKSUM_BYTES: Final = 4


def encode_line(prefix: str, content: bytes) -> str:
    """Return ``content`` as a line of text that begins with ``prefix`` and ends with a checksum."""
    checked = content + _checksum(prefix, content)
    return prefix + urlsafe_b64encode(checked).decode().rstrip("=")


def decode_line(text: str, prefix: str, kind: str) -> bytes:
    """Return what ``encode_line`` was given; raises UsageError, which names ``kind`` and nothing of ``text``."""
    text = text.strip()
    if not text.startswith(prefix):
        other = {MASTER_PREFIX: "a master key", TOKEN_PREFIX: "a join token"}
        found = next((name for start, name in other.items() if text.startswith(start)), "something else")
        raise UsageError(f"a {kind} begins with {prefix}; this is {found}", "rlexp board keys makes both")
    try:
        checked = urlsafe_b64decode(text[len(prefix) :] + "=" * (-len(text[len(prefix) :]) % 4))
    except (Base64Error, ValueError) as error:
        raise unreadable(kind) from error
    content, checksum = checked[:-_CHECKSUM_BYTES], checked[-_CHECKSUM_BYTES:]
    if encode_line(prefix, content) != text or checksum != _checksum(prefix, content):
        raise unreadable(kind)
    return content


def _checksum(prefix: str, content: bytes) -> bytes:
    return sha256(prefix.encode() + content).digest()[:_CHECKSUM_BYTES]


def unreadable(kind: str) -> UsageError:
    """Return the error of a line in which something is wrong."""
    return UsageError(f"the {kind} is not as it was made: a character is missing or wrong", "copy the whole line again")
