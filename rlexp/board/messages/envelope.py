"""Messages as they travel: a JSON header and an LZ4 block, signed. Nothing is unpacked before its size is known.

``RLX1 | length of the header (u32) | header | LZ4 block | HMAC-SHA256 of all before it``

The header names the actor whose key made the signature, so it is read before the signature is verified. The block has
the bytes of arrays, such as rows, whole or with their frames sent once. A fragment that is larger than one message of
its carrier is sent in Parts.
"""

from __future__ import annotations

import hmac
import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, TypeVar

import lz4.block
import numpy as np

from rlexp.board.messages.basics import InvalidMessageError
from rlexp.files import parse_json, plain
from rlexp.sample_batch import FRAME_IDS_OF, Array, Column, FrameRows, SampleBatch

VERSION: Final = 1
"""Version of the format, and of the content of headers."""
MAX_HEADER_BYTES: Final = 16 << 10
MAX_PARTS: Final = 1024
DTYPES: Final = frozenset(
    ["bool", "float16", "float32", "float64"]
    + [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
)
"""The allowed dtypes of arrays; bytes are little-endian."""
_MAGIC: Final = b"RLX"
_LENGTH_BYTES: Final = 4
_PREFIX_BYTES: Final = len(_MAGIC) + 1 + _LENGTH_BYTES
_SIGNATURE_BYTES: Final = sha256().digest_size
_LARGEST_NUMBER: Final = 1 << 53
T = TypeVar("T")
KeyOf = Callable[[str], bytes | None]
"""A function that returns the key of an actor's messages by its id; None if this id may send none."""
_FRAMES: Final = ":frames"
_NUMBERS: Final = ":numbers"
_Key = tuple[int, int, int]


class WrongVersionError(InvalidMessageError):
    """Raised for a message of another format."""


@dataclass(frozen=True)
class Header:
    """The description of a message."""

    task_id: str
    seat: int
    """The seat; -1 if the message comes from the trainer."""
    epoch: int
    """The epoch of the seat, or of the trainer."""
    number: int
    """The number of the fragment, from 0 on; for weights, their version."""
    weights_version: int = -1
    """Number of learner updates that the acting weights include."""
    columns: tuple[Column, ...] = ()
    """Name, dtype and whole shape of each array, in the order of their bytes."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further information, of JSON's own types."""
    part: int = 0
    num_parts: int = 1
    actor: str = ""
    """The id in the sender's token; empty if it comes from the trainer, or without a token."""

    @property
    def raw_bytes(self) -> int:
        return sum(math.prod(column.shape) * np.dtype(column.dtype).itemsize for column in self.columns)


@dataclass(frozen=True)
class Message:
    """A message with a valid signature and header; its block is not unpacked yet."""

    header: Header
    block: bytes
    """The LZ4 block, or a part of it."""


def seal(header: Header, raw: bytes, key: bytes, max_bytes: int) -> list[bytes]:
    """Return the messages that carry ``raw``, one for each part; none has more than ``max_bytes``.

    Raises ValueError if the header alone is too large, or if there would be more than MAX_PARTS parts.
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
    """Return a message that is signed with ``key``; its arrays have at most ``max_raw_bytes``.

    Raises WrongVersionError, and InvalidMessageError for any other defect.
    """
    return read_message_of_actor(message, lambda actor: key, max_raw_bytes)


def read_message_of_actor(message: bytes, key_of: KeyOf, max_raw_bytes: int) -> Message:
    """Return a message that is signed with the key of the actor in its header; see :func:`read_message`."""
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
    """Return the bytes of all arrays of a whole message; raises InvalidMessageError if its block does not have them."""
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
            task_id=_of(str, content["task"]),
            seat=_number(content["seat"], -1),
            epoch=_number(content["epoch"]),
            number=_number(content["number"]),
            weights_version=_number(content["weights"], -1),
            columns=_columns(content["columns"]),
            info=_of(dict, content["info"]),
            part=_number(content["part"]),
            num_parts=_number(content["parts"], 1),
            actor=_of(str, content.get("actor", "")),
        )
        raw_bytes = content["raw_bytes"]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidMessageError("the header is not one of rlexp") from error
    if raw_bytes != header.raw_bytes:
        raise InvalidMessageError("the header's number of bytes does not match its columns")
    if not header.part < header.num_parts <= MAX_PARTS:
        raise InvalidMessageError("the header's numbers of parts are wrong")
    return header


def _columns(content: Any) -> tuple[Column, ...]:
    columns = tuple(
        Column(_of(str, name), _dtype(dtype), tuple(_number(length) for length in _of(list, shape)))
        for name, dtype, shape in _of(list, content)
    )
    if len({column.name for column in columns}) < len(columns):
        raise InvalidMessageError("two columns have the same name")
    return columns


def _dtype(name: Any) -> str:
    if name not in DTYPES:
        raise InvalidMessageError("a column has a dtype that is not allowed")
    return str(name)


def _of(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= _LARGEST_NUMBER:
        raise ValueError("no number, or out of its range")
    return value


def _wrong_version(found: Any) -> WrongVersionError:
    return WrongVersionError(f"a message of format {str(found)[:20]!r}; this rlexp reads format {VERSION}")


def pack_arrays(arrays: Mapping[str, Array]) -> tuple[tuple[Column, ...], bytes]:
    """Return the columns of a header, and the arrays' bytes one after another; raises ValueError for other dtypes."""
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name} has dtype {array.dtype}, which no message can carry")
    columns = tuple(Column(name, array.dtype.name, array.shape) for name, array in arrays.items())
    raw = b"".join(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in arrays.values())
    return columns, raw


def unpack_arrays(message: Message) -> dict[str, Array]:
    """Return the arrays of a whole message, read-only; raises InvalidMessageError if its block has other bytes."""
    raw = unpack(message)
    arrays: dict[str, Array] = {}
    start = 0
    for name, dtype, shape in message.header.columns:
        try:
            array: Array = np.ndarray(shape, np.dtype(dtype).newbyteorder("<"), raw, start)
        except (ValueError, TypeError) as error:
            raise InvalidMessageError("a column has a shape that no array has") from error
        arrays[name] = array
        start += array.nbytes
    return arrays


def arrays_of(rows: SampleBatch | FrameRows) -> Mapping[str, Array]:
    """Return the arrays from which :func:`rows_of` makes ``rows``."""
    if isinstance(rows, SampleBatch):
        return rows.columns
    return {**rows.rows.columns, _FRAMES: rows.frames, _NUMBERS: rows.numbers}


def rows_of(arrays: Mapping[str, Array]) -> SampleBatch | FrameRows:
    """Return the rows with these ``arrays``; raises InvalidMessageError for different lengths or missing frames."""
    arrays = dict(arrays)
    frames, numbers = arrays.pop(_FRAMES, None), arrays.pop(_NUMBERS, None)
    if not arrays or not all(array.shape for array in arrays.values()):
        raise InvalidMessageError("there are no rows")
    try:
        rows = SampleBatch(arrays)
    except ValueError as error:
        raise InvalidMessageError("the columns have different lengths") from error
    if frames is None and numbers is None:
        return rows
    if frames is None or numbers is None:
        raise InvalidMessageError("the frames are there without their numbers, or these without the frames")
    _check_frames(rows, frames, numbers)
    return FrameRows(rows, frames, numbers)


def _check_frames(rows: SampleBatch, frames: Array, numbers: Array) -> None:
    if frames.ndim < 1 or numbers.shape != frames.shape[:1] or numbers.dtype != np.int64:
        raise InvalidMessageError("the frames' numbers are not one for each frame")
    if (numbers < 0).any():
        raise InvalidMessageError("a frame has a number below 0")
    for name in FRAME_IDS_OF.values():
        if name not in rows:
            continue
        ids = rows[name]
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise InvalidMessageError("the rows' indices of frames are not valid")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(frames):
            raise InvalidMessageError("a row has a frame that is not there")


@dataclass(frozen=True)
class _Begun:
    """The parts of a fragment that have come."""

    header: Header
    """The header of each part, with ``part`` 0."""
    blocks: dict[int, bytes] = field(default_factory=dict)


class Parts:
    """The parts of incomplete fragments; owned by the trainer's inbox."""

    def __init__(self, max_bytes: int, max_fragments: int) -> None:
        """Keep parts of ``max_fragments``, of ``max_bytes`` together; beyond that, the oldest fragment is forgotten."""
        self._max_bytes, self._max_fragments = max_bytes, max_fragments
        self._num_bytes = 0
        self._begun: OrderedDict[_Key, _Begun] = OrderedDict()

    def add(self, message: Message) -> Message | None:
        """Return the whole fragment that ``message`` completes, with ``num_parts`` 1; None while parts are missing.

        Raises InvalidMessageError if it does not belong to the other parts of its number.
        """
        header = message.header
        if header.num_parts == 1:
            return message
        if not message.block:
            raise InvalidMessageError("a part is empty")
        key = (header.seat, header.epoch, header.number)
        whole = replace(header, part=0)
        begun = self._begun.setdefault(key, _Begun(whole))
        if begun.header != whole:
            raise InvalidMessageError("a part does not belong to the others of its number")
        if header.part not in begun.blocks:
            begun.blocks[header.part] = message.block
            self._num_bytes += len(message.block)
        if len(begun.blocks) == header.num_parts:
            self._forget(key)
            block = b"".join(begun.blocks[part] for part in range(header.num_parts))
            return Message(replace(whole, num_parts=1), block)
        while self._num_bytes > self._max_bytes or len(self._begun) > self._max_fragments:
            self._forget(next(iter(self._begun)))
        return None

    def _forget(self, key: _Key) -> None:
        self._num_bytes -= sum(map(len, self._begun.pop(key).blocks.values()))
