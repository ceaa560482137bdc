"""Files of arrays in the safetensors format, written piece by piece and read in place: nothing is in memory twice.

The format (https://huggingface.co/docs/safetensors) is the length of a header in 8 bytes, the header as JSON, then
the arrays as they are. Its library wants every array whole and contiguous, and hands out copies of what it reads.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from rlexp.checkpoint.state_codec import AnyArray, Array, num_bytes, rows_of
from rlexp.files import open_regular, parse_json

PIECE_BYTES: Final = 1 << 24
"""Bytes written at a time: 16 MiB, so that a call for them to another process is worth its way."""
LENGTH_BYTES: Final = 8
_MOST_HEADER_BYTES: Final = 100_000_000
"""As the format's own library has it."""
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
"""Names of the format for NumPy's types."""
_DTYPES: Final = {code: np.dtype(name).newbyteorder("<") for name, code in TYPES.items()}


def write_arrays(path: Path, arrays: Mapping[str, AnyArray]) -> None:
    """Write ``arrays`` by their names, all of types in TYPES; raises what the file system raises.

    Beside the arrays this takes the memory of one piece.
    """
    # Wide items first: each array then begins at a multiple of its items' width, where reading it is quickest.
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
    """Return the arrays of a file by name, read-only: the operating system reads each page of them when it is used.

    Raises OSError, and ValueError where the file is no such file.
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


def pieces(array: AnyArray) -> Iterator[Array]:
    """Yield the rows of ``array`` in order, contiguous and with the format's order of bytes, PIECE_BYTES at a time."""
    dtype = array.dtype.newbyteorder("<")
    if not array.shape:
        assert isinstance(array, np.ndarray)
        yield np.ascontiguousarray(array, dtype)
        return
    count = array.shape[0]
    rows = max(PIECE_BYTES * count // max(num_bytes(array), 1), 1)
    for start in range(0, count, rows):
        yield np.ascontiguousarray(rows_of(array, start, min(start + rows, count)), dtype)


def _in_place(content: mmap.mmap, begin: int, form: Mapping[str, Any]) -> Array:
    (start, end), shape = form["data_offsets"], tuple(form["shape"])
    if min((start, *shape)) < 0:
        raise ValueError(f"an array of shape {shape} begins at {start}")
    # Raises TypeError where the file ends before the array does.
    array: Array = np.ndarray(shape, _DTYPES[form["dtype"]], content, begin + start)
    if array.nbytes != end - start:
        raise ValueError(f"an array of {array.nbytes} bytes has room for {end - start}")
    return array
