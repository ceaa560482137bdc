"""Messages as they travel: a JSON header and an LZ4 block, signed. Nothing is unpacked before its size is known.

``RLX1 | length of the header (u32) | header | LZ4 block | HMAC-SHA256 of all before it``

The header names the actor whose key the signature is made with; so it is read before the signature is verified.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

import lz4.block
import numpy as np

from rlexp.files import parse_json, plain
from rlexp.sample_batch import Column

VERSION: Final = 1
"""Of the format, and of what headers contain."""
MAX_HEADER_BYTES: Final = 16 << 10
MAX_PARTS: Final = 1024
DTYPES: Final = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)
"""What arrays may have; bytes are little-endian."""
_MAGIC: Final = b"RLX"
_LENGTH_BYTES: Final = 4
_PREFIX_BYTES: Final = len(_MAGIC) + 1 + _LENGTH_BYTES
_SIGNATURE_BYTES: Final = sha256().digest_size
_LARGEST_NUMBER: Final = 1 << 53


KeyOf = Callable[[str], bytes | None]
"""Returns the key of an actor's messages by its id; None where nobody of this id may send any."""


class InvalidMessageError(Exception):
    """A message that is refused; its text says why in a few words, without anything that the message contains."""


class WrongVersionError(InvalidMessageError):
    """A message of another format."""


@dataclass(frozen=True)
class Header:
    """What a message says about itself."""

    task_id: str
    seat: int
    """-1 where it comes from the trainer."""
    epoch: int
    """Of the seat, or of the trainer."""
    number: int
    """Of the fragment, from 0 on; of weights, their version."""
    weights_version: int = -1
    """Learner updates behind the weights that were acted with."""
    columns: tuple[Column, ...] = ()
    """Name, dtype and whole shape of each array, in the order of their bytes."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """What else is to be said, of JSON's own types."""
    part: int = 0
    num_parts: int = 1
    actor: str = ""
    """The id in the token of who sends it; empty where it comes from the trainer, or without a token."""

    @property
    def raw_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(math.prod(column.shape) * np.dtype(column.dtype).itemsize for column in self.columns)


@dataclass(frozen=True)
class Message:
    """A message whose signature and header are right; its block is still to be unpacked."""

    header: Header
    block: bytes
    """A part of the LZ4 block, or the whole."""


def seal(header: Header, raw: bytes, key: bytes, max_bytes: int) -> list[bytes]:
    """Return the messages, one for each part, in which ``raw`` travels; none has more than ``max_bytes``.

    Raises ValueError where the header alone is too large, or there would be more than MAX_PARTS parts.
    """
    if len(raw) != header.raw_bytes:
        raise ValueError(f"{len(raw)} bytes for columns of {header.raw_bytes}")
    header = replace(header, info=plain(header.info))
    block = lz4.block.compress(raw, store_size=False)
    head_bytes = len(_header_text(replace(header, part=MAX_PARTS, num_parts=MAX_PARTS)))
    if head_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {head_bytes} bytes; at most {MAX_HEADER_BYTES} are allowed")
    room = max_bytes - _PREFIX_BYTES - head_bytes - _SIGNATURE_BYTES
    num_parts = -(-len(block) // room) if room > 0 else MAX_PARTS + 1
    if num_parts > MAX_PARTS:
        raise ValueError(f"{len(block)} bytes do not fit into {MAX_PARTS} messages of {max_bytes}")
    return [
        _sign(replace(header, part=part, num_parts=num_parts), block[part * room : (part + 1) * room], key)
        for part in range(num_parts)
    ]


def read_message(message: bytes, key: bytes, max_raw_bytes: int) -> Message:
    """Return a message that is signed with ``key``, and whose arrays have ``max_raw_bytes`` at most.

    Raises WrongVersionError, and InvalidMessageError for whatever else is wrong with it.
    """
    return read_message_of_actor(message, lambda actor: key, max_raw_bytes)


def read_message_of_actor(message: bytes, key_of: KeyOf, max_raw_bytes: int) -> Message:
    """Return a message that is signed with the key of the actor whom its header names; see :func:`read_message`."""
    if len(message) < _PREFIX_BYTES + _SIGNATURE_BYTES or not message.startswith(_MAGIC):
        raise InvalidMessageError("not a message of rlexp")
    if message[3:4] != b"%d" % VERSION:
        raise _wrong_version(message[3:4].decode("ascii", "replace"))
    signed, signature = memoryview(message)[:-_SIGNATURE_BYTES], message[-_SIGNATURE_BYTES:]
    length = int.from_bytes(message[_PREFIX_BYTES - _LENGTH_BYTES : _PREFIX_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, len(signed) - _PREFIX_BYTES):
        raise InvalidMessageError("the header is too long")
    header = _read_header(bytes(signed[_PREFIX_BYTES : _PREFIX_BYTES + length]))
    key = key_of(header.actor)
    if key is None:
        raise InvalidMessageError("sent without a token" if not header.actor else "sent by an actor of unknown id")
    if not hmac.compare_digest(hmac.digest(key, signed, "sha256"), signature):
        raise InvalidMessageError("wrong signature: another password or token, or damaged on its way")
    if header.raw_bytes > max_raw_bytes:
        raise InvalidMessageError(f"{header.raw_bytes} bytes of arrays; at most {max_raw_bytes} are allowed")
    return Message(header, bytes(signed[_PREFIX_BYTES + length :]))


def unpack(message: Message) -> bytes:
    """Return the bytes of all arrays of a whole message; raises InvalidMessageError where the block has others."""
    expected = message.header.raw_bytes
    if not expected:
        return b""
    try:
        raw: bytes = lz4.block.decompress(message.block, uncompressed_size=expected)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError, MemoryError) as error:
        raise InvalidMessageError("the block cannot be unpacked to the bytes that the header names") from error
    if len(raw) != expected:
        raise InvalidMessageError(f"the block has {len(raw)} bytes, the header names {expected}")
    return raw


def _sign(header: Header, block: bytes, key: bytes) -> bytes:
    text = _header_text(header)
    signed = b"%b%d%b%b%b" % (_MAGIC, VERSION, len(text).to_bytes(_LENGTH_BYTES, "little"), text, block)
    return signed + hmac.digest(key, signed, "sha256")


def _header_text(header: Header) -> bytes:
    return json.dumps(
        {
            "v": VERSION,
            "task": header.task_id,
            "seat": header.seat,
            "epoch": header.epoch,
            "number": header.number,
            "weights": header.weights_version,
            "part": header.part,
            "parts": header.num_parts,
            "columns": [[column.name, column.dtype, column.shape] for column in header.columns],
            "info": header.info,
            "raw_bytes": header.raw_bytes,
            "actor": header.actor,
        },
        allow_nan=False,
    ).encode()


def _read_header(text: bytes) -> Header:
    try:
        content = parse_json(text)
        if content["v"] != VERSION:
            raise _wrong_version(content["v"])
        header = Header(
            task_id=_text(content["task"]),
            seat=_number(content["seat"], -1),
            epoch=_number(content["epoch"]),
            number=_number(content["number"]),
            weights_version=_number(content["weights"], -1),
            columns=_columns(content["columns"]),
            info=_mapping(content["info"]),
            part=_number(content["part"]),
            num_parts=_number(content["parts"], 1),
            actor=_text(content.get("actor", "")),
        )
        raw_bytes = content["raw_bytes"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidMessageError("the header is not one of rlexp") from error
    if raw_bytes != header.raw_bytes:
        raise InvalidMessageError("the header's number of bytes is not that of its columns")
    if not header.part < header.num_parts <= MAX_PARTS:
        raise InvalidMessageError("the header's numbers of parts are wrong")
    return header


def _columns(content: Any) -> tuple[Column, ...]:
    columns = tuple(
        Column(_text(name), _dtype(dtype), tuple(_number(length) for length in _list(shape)))
        for name, dtype, shape in _list(content)
    )
    if len({column.name for column in columns}) < len(columns):
        raise InvalidMessageError("two columns have the same name")
    return columns


def _dtype(name: Any) -> str:
    if name not in DTYPES:
        raise InvalidMessageError("a column has a dtype that is not allowed")
    return str(name)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _LARGEST_NUMBER:
        raise ValueError("no number, or out of its range")
    return value


def _wrong_version(found: Any) -> WrongVersionError:
    return WrongVersionError(f"a message of format {str(found)[:20]!r}; this rlexp reads format {VERSION}")
