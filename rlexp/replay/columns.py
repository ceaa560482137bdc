"""Columns of the replay library: how a buffer's columns are declared, and what a caller's rows must be to fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rlexp.sample_batch import IMPORTANCE_WEIGHTS, KEYS, Array, SampleBatch
from rlexp.sample_batch import Column as SentColumn

PRIORITIES: Final = "priorities"
PRIORITIES_TO_ALPHA: Final = "priorities_to_alpha"
"""What a saved buffer calls p^alpha of its rows."""
RESERVED: Final = (KEYS, IMPORTANCE_WEIGHTS, PRIORITIES, PRIORITIES_TO_ALPHA)
"""Names that no column can have: batches and saved buffers have other things of these names."""
NUMBERS: Final = "biufc"
"""NumPy's kinds of dtypes that a column can have: numbers and booleans, but neither objects nor text."""

ColumnForms: TypeAlias = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
"""Shape and dtype that each column has in one transition, by name: ``{"obs": ((4,), np.float32)}``."""


class Form(NamedTuple):
    """What one column's rows are."""

    shape: tuple[int, ...]
    """Of one row."""
    dtype: np.dtype[Any]
    """In this machine's order of bytes, which saved buffers are read in too."""


class Columns:
    """The declared columns of a buffer, by name in alphabetical order: so they are stored in every process."""

    def __init__(self, declared: ColumnForms) -> None:
        """Take what a user declared; raises ValueError that names the first column that cannot be one."""
        if not declared:
            raise ValueError("a buffer needs at least one column")
        self.forms: Mapping[str, Form] = {name: _form(name, *declared[name]) for name in sorted(declared)}
        self._expected = [(name, len(form.shape), *form) for name, form in self.forms.items()]

    def rows(self, given: Mapping[str, ArrayLike]) -> SampleBatch:
        """Return one transition, or a batch ``[B]`` of them, as rows ``[B, ...]``; may share memory with ``given``.

        A column with one dimension more than declared is a batch. Raises ValueError for missing and unknown columns,
        wrong shapes, columns of different lengths, and for values that the column's dtype cannot hold.
        """
        if given.keys() != self.forms.keys():
            raise ValueError(self._names_differ(given))
        columns = {}
        for name, dimensions, shape, dtype in self._expected:
            column = np.asarray(given[name])
            if column.dtype != dtype:
                column = _converted(name, column, dtype)
            if column.ndim == dimensions:
                column = column[None]
            if column.shape[1:] != shape or column.ndim <= dimensions:
                raise ValueError(
                    f"column {name}: an array of shape {list(np.shape(given[name]))}, "
                    f"but one transition has {list(shape)} and a batch {['B', *shape]}".replace("'", "")
                )
            columns[name] = column
        return SampleBatch(columns)

    def no_rows(self) -> SampleBatch:
        """Return a batch of these columns without rows."""
        return SampleBatch({name: np.empty((0, *form.shape), form.dtype) for name, form in self.forms.items()})

    def sent(self) -> tuple[SentColumn, ...]:
        """Return the columns as messages between processes describe them."""
        return tuple(SentColumn(name, form.dtype.str, form.shape) for name, form in self.forms.items())

    def _names_differ(self, given: Mapping[str, ArrayLike]) -> str:
        missing = sorted(self.forms.keys() - given.keys())
        unknown = sorted(given.keys() - self.forms.keys())
        parts = [
            f"{what} {', '.join(names)}" for what, names in (("missing:", missing), ("unknown:", unknown)) if names
        ]
        return f"other columns than the buffer's ({', '.join(self.forms)}); {'; '.join(parts)}"


def _form(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> Form:
    if not name.isidentifier() or name in RESERVED:
        raise ValueError(f"a column cannot be called {name!r}: names are identifiers, and not {', '.join(RESERVED)}")
    form = Form(tuple(int(size) for size in shape), np.dtype(dtype).newbyteorder("="))
    if min(form.shape, default=1) < 1:
        raise ValueError(f"column {name}: every size in a shape must be at least 1, it is {list(form.shape)}")
    if form.dtype.kind not in NUMBERS or form.dtype.fields or form.dtype.subdtype:
        raise ValueError(f"column {name}: a dtype must be of numbers or booleans, not {form.dtype}")
    return form


def _converted(name: str, column: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``column`` as ``dtype``, where that changes no value by more than rounding; ValueError elsewhere."""
    whole_numbers = column.dtype.kind in "iu" and dtype.kind in "iu"
    if not whole_numbers and not np.can_cast(column.dtype, dtype, "same_kind"):
        raise ValueError(f"column {name}: {column.dtype} does not become {dtype} without loss; convert it yourself")
    with np.errstate(over="ignore"):
        converted = column.astype(dtype)
    held = converted == column if whole_numbers else np.isfinite(converted) | ~np.isfinite(column)
    if not held.all():
        raise ValueError(f"column {name}: {column[~held].flat[0]} does not fit {dtype}")
    return converted
