"""Arrays as the bytes of a message: rows, whole or with their frames sent once, and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from rlexp.sample_batch import FRAME_IDS_OF, Array, Column, FrameRows, SampleBatch
from rlexp.transport.envelope import DTYPES, InvalidMessageError, Message, unpack

_FRAMES: Final = ":frames"
_NUMBERS: Final = ":numbers"


def pack_arrays(arrays: Mapping[str, Array]) -> tuple[tuple[Column, ...], bytes]:
    """Return the columns of a header, and the arrays' bytes one after the other; raises ValueError for other dtypes."""
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise ValueError(f"{name} has dtype {array.dtype}, which no message can carry")
    columns = tuple(Column(name, array.dtype.name, array.shape) for name, array in arrays.items())
    raw = b"".join(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in arrays.values())
    return columns, raw


def unpack_arrays(message: Message) -> dict[str, Array]:
    """Return the arrays of a whole message, read-only; raises InvalidMessageError where its block has other bytes."""
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


def pack_rows(rows: SampleBatch | FrameRows) -> tuple[tuple[Column, ...], bytes]:
    """Return the columns and bytes of rows; see :func:`pack_arrays`."""
    if isinstance(rows, SampleBatch):
        return pack_arrays(rows.columns)
    return pack_arrays({**rows.rows.columns, _FRAMES: rows.frames, _NUMBERS: rows.numbers})


def unpack_rows(message: Message) -> SampleBatch | FrameRows:
    """Return the rows of a whole message, read-only; see :func:`rows_of` for what is refused."""
    return rows_of(unpack_arrays(message))


def rows_of(arrays: Mapping[str, Array]) -> SampleBatch | FrameRows:
    """Return the rows that are made of ``arrays``.

    Raises InvalidMessageError where they are none: columns of different lengths, frames that are not there.
    """
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
    for name in FRAME_IDS_OF.values():
        if name not in rows:
            continue
        ids = rows[name]
        if ids.ndim != 2 or ids.dtype.kind not in "iu":
            raise InvalidMessageError("the rows' indices of frames are no indices")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < len(frames):
            raise InvalidMessageError("a row has a frame that is not there")
