"""HeldRows: what every buffer of the replay library does with the rows that it holds, however they came in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rlexp.errors import CheckpointError
from rlexp.replay.columns import PRIORITIES_TO_ALPHA
from rlexp.replay.n_step_fold import Intake
from rlexp.replay.npz_file import read_npz, write_npz
from rlexp.replay.rows import STORAGE_PREFIX
from rlexp.replay.samplers import Sampler
from rlexp.sample_batch import KEYS, Array
from rlexp.states import split_state


class HeldRows:
    """The rows of a buffer: how many there are, drawing, listing, saving and loading them.

    One thread of one process uses it. A subclass brings the rows in.
    """

    def __init__(self, intake: Intake, sampler: Sampler, seed: int | None) -> None:
        """Draw from ``sampler``, whose rows come by ``intake``; the same ``seed`` and calls give the same batches."""
        self._intake = intake
        self._columns = intake.stored
        self._sampler = sampler
        self._rng = np.random.Generator(np.random.PCG64(seed))

    @property
    def capacity(self) -> int:
        """Rows held at most; the oldest make room for new ones."""
        return self._sampler.rows.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes when it is full."""
        return self._sampler.nbytes

    def __len__(self) -> int:
        return self.get_stored_size()

    def get_stored_size(self) -> int:
        """Return how many rows are held."""
        self._take_in()
        return self._sampler.rows.size

    def get_buffer_size(self) -> int:
        """Return the capacity."""
        return self.capacity

    def clear(self) -> None:
        """Forget every row and priority, and the steps that wait for others of their episode.

        Keys of batches drawn before never mean rows that come later.
        """
        self._take_in()
        self._intake.clear()
        self._sampler.clear()

    def get_all_transitions(self, shuffle: bool = False) -> dict[str, Array]:
        """Return copies of all rows by column ``[N, ...]``: oldest first, or with ``shuffle`` in a random order."""
        self._take_in()
        rows = self._sampler.rows
        if not rows.size:
            return self._columns.no_rows().columns
        keys = rows.keys()
        if shuffle:
            self._rng.shuffle(keys)
        slots, _ = rows.locate(keys)
        return {name: column for name, column in rows.read(slots).columns.items() if name != KEYS}

    def save(self, path: str | Path) -> None:
        """Write all rows and priorities, and the state of the draws, to one .npz file.

        Steps that wait for others of their episode are not written. A crash leaves the file as it was. ``numpy.load``
        reads it: each column has its name. Raises OSError.
        """
        self._take_in()
        arrays, values = split_state({**self._sampler.state(), "rng": self._rng.bit_generator.state})
        write_npz(Path(path), {name.removeprefix(STORAGE_PREFIX): array for name, array in arrays.items()}, values)

    def load(self, path: str | Path) -> None:
        """Replace all rows by those that :meth:`save` wrote; the next batches are those of the saved buffer.

        Nothing in the file is unpickled. The rows are in memory twice for a moment. Steps that wait for others of their
        episode are forgotten, and keys of batches drawn before never mean loaded rows. Raises CheckpointError, with
        nothing changed, for a damaged file and for one of another kind of buffer, capacity, columns or alpha; OSError
        where there is none.
        """
        arrays, values = read_npz(Path(path))
        rng = np.random.PCG64()
        try:
            rng.state = values.pop("rng")
            self._check(arrays, values)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CheckpointError(f"{path} is not a saved replay buffer, or it is damaged: {error!r}") from error
        except CheckpointError as error:
            raise CheckpointError(f"{path} does not fit this buffer: {error.message}") from error
        columns = {self._name_in_state(name): array for name, array in arrays.items()}
        self._intake.clear()
        self._sampler.clear()
        self._sampler.load({**columns, **values})
        self._rng = np.random.Generator(rng)

    def _draw(self, batch_size: int, beta: float) -> dict[str, Array]:
        """Return ``batch_size`` drawn rows by column, with ``keys`` and ``weights``."""
        if batch_size < 1:
            raise ValueError(f"a batch has at least one row, not {batch_size}")
        self._take_in()
        if not self._sampler.rows.size:
            raise ValueError("an empty buffer has nothing to sample")
        return self._sampler.sample(batch_size, beta, self._rng).columns

    def _take_in(self) -> None:
        """Add what was written elsewhere; the rows of most buffers come by a call."""

    def _check(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Raise CheckpointError where a saved state does not fit; KeyError, TypeError, ValueError: it is none."""
        own_arrays, own_values = split_state(self._sampler.state())
        for name in ("alpha", "capacity"):
            if values.get(name) != own_values.get(name):
                raise CheckpointError(f"{name} is {values.get(name)} there and {own_values.get(name)} here")
        if values.keys() != own_values.keys():
            raise ValueError(f"it has the values {sorted(values)}")
        num_rows = min(int(values["num_added"]), self.capacity)
        forms = self._columns.forms if num_rows else {}
        names = {*forms, *(own_arrays.keys() & {PRIORITIES_TO_ALPHA})}
        if arrays.keys() != names:
            raise CheckpointError(f"it has the columns {sorted(arrays)} instead of {sorted(names)}")
        for name, form in forms.items():
            array = arrays[name]
            if (array.dtype, array.shape) != (form.dtype, (num_rows, *form.shape)):
                raise CheckpointError(
                    f"column {name} is {array.dtype}{list(array.shape)} instead of "
                    f"{form.dtype}{[num_rows, *form.shape]}"
                )
        masses, highest = arrays.get(PRIORITIES_TO_ALPHA, np.zeros(num_rows)), values.get("highest_priority", 0.0)
        if masses.shape != (num_rows,) or not all(_are_priorities(each) for each in (masses, np.array(highest))):
            raise ValueError("its priorities are not one number for each row, finite and not negative")

    @staticmethod
    def _name_in_state(name: str) -> str:
        return name if name == PRIORITIES_TO_ALPHA else STORAGE_PREFIX + name


def _are_priorities(numbers: Array) -> bool:
    return numbers.dtype == np.float64 and bool(np.isfinite(numbers).all() and (numbers >= 0).all())
