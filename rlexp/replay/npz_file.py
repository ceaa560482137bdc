"""Saved buffers: one .npz file, written piece by piece, that NumPy reads without pickle."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.files import parse_json, replacing, to_json
from rlexp.sample_batch import Array
from rlexp.states import AnyArray, pieces

VALUES: Final = "state.json"
"""The part of the file with all that is not an array."""


def write_npz(path: Path, arrays: Mapping[str, AnyArray], values: Mapping[str, Any]) -> None:
    """Write ``arrays`` by their names and ``values`` as JSON; a crash leaves the file as it was, or all of the new one.

    Beside the arrays this takes the memory of one piece. Raises OSError.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(VALUES, to_json(values))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, array)


def read_npz(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the values of a file; CheckpointError where it is no such file, OSError where none."""
    try:
        with zipfile.ZipFile(path) as archive:
            values = parse_json(archive.read(VALUES))
            names = [name.removesuffix(".npy") for name in archive.namelist() if name != VALUES]
            arrays = {name: _read_array(archive, name) for name in names}
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is not a saved replay buffer, or it is damaged: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} is not a saved replay buffer: {VALUES} holds no mapping")
    return arrays, values


def _write_array(file: IO[bytes], array: AnyArray) -> None:
    descr = np.lib.format.dtype_to_descr(array.dtype.newbyteorder("<"))
    header = {"descr": descr, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_2_0(file, header)
    for piece in pieces(array):
        file.write(piece.data)


def _read_array(archive: zipfile.ZipFile, name: str) -> Array:
    with archive.open(f"{name}.npy") as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
        return array
