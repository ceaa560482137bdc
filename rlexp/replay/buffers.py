"""The replay library's buffers: thin wrappers of a run's samplers, with the caller's own columns.

HeldRows has the methods of all buffers for their rows, PrioritizedRows has those for draws by priority. ReplayBuffer
and PrioritizedReplayBuffer are in the memory of one process; ``shared_buffers`` has one for several processes. A saved
buffer is one .npz file, written piece by piece, that NumPy reads without pickle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import ArrayLike

from rlexp.errors import CheckpointError
from rlexp.files import parse_json, replacing, to_json
from rlexp.replay.columns import (
    PRIORITIES_TO_ALPHA,
    ColumnForms,
    Intake,
    NStepConfig,
    intake_of,
    refuse_folded_priorities,
)
from rlexp.replay.rows import STORAGE_PREFIX, RowRing, Rows
from rlexp.replay.samplers import PrioritizedSampler, Sampler, bad_priority
from rlexp.replay.storage.array import ArrayStorage
from rlexp.sample_batch import KEYS, Array, SampleBatch
from rlexp.states import AnyArray, pieces, split_state

VALUES: Final = "state.json"
"""Part of the file for everything that is not an array."""


def write_npz(path: Path, arrays: Mapping[str, AnyArray], values: Mapping[str, Any]) -> None:
    """Write ``arrays`` by name and ``values`` as JSON; after a crash, the file is the old or the whole new one.

    This needs the memory of one piece beside the arrays. Raises OSError.
    """
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(VALUES, to_json(values))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _write_array(member, array)


def read_npz(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the values of a file; CheckpointError if it is not valid, OSError if there is none."""
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
        """Most rows held; the oldest are overwritten by new ones."""
        return self._sampler.rows.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of memory when it is full."""
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

        Keys of earlier batches never refer to later rows.
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
        """Replace all rows by rows that :meth:`save` wrote; the next batches are equal to the saved buffer's.

        Nothing in the file is unpickled. The rows are in memory twice for a moment. Steps that wait for others of their
        episode are forgotten, and keys of earlier batches never refer to loaded rows. Raises CheckpointError, with
        nothing changed, for a damaged file and for another kind of buffer, capacity, columns or alpha. Raises OSError
        if there is no file.
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
        """Add rows that were written elsewhere; most buffers get their rows by a call."""

    def _check(self, arrays: dict[str, Array], values: dict[str, Any]) -> None:
        """Raise CheckpointError if a saved state does not fit; KeyError, TypeError, ValueError if it is not one."""
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


class PrioritizedRows(HeldRows):
    """Rows drawn by priority: P(i) = (p_i + eps)^alpha / sum_k (p_k + eps)^alpha (Schaul et al. 2016)."""

    _sampler: PrioritizedSampler

    def __init__(self, intake: Intake, rows: Rows, alpha: float, eps: float, seed: int | None) -> None:
        """Draw from ``rows``; raises ValueError for an ``eps`` or ``alpha`` that is not possible."""
        if not 0 <= eps < np.inf:
            raise ValueError(f"eps is {eps}, it must be finite and not negative")
        super().__init__(intake, PrioritizedSampler(rows, alpha), seed)
        self._eps = eps
        self.num_stale_priorities = 0
        """Number of dropped priorities, whose rows newer rows had overwritten."""

    def sample(self, batch_size: int, beta: float = 0.4) -> dict[str, Array]:
        """Return copies of ``batch_size`` rows ``[B, ...]`` by column, drawn by priority with replacement.

        ``keys [B]`` are for :meth:`update_priorities`. ``weights [B]`` (float32, at most 1) correct the loss for rows
        drawn more often than others: not at all for ``beta`` 0, fully for 1. The rows' order has no meaning. Raises
        ValueError if no row has a priority above 0.
        """
        return self._draw(batch_size, beta)

    def update_priorities(self, keys: ArrayLike, priorities: ArrayLike) -> int:
        """Give the rows ``keys [B]`` new ``priorities [B]``; of a key named twice the last one counts.

        Returns how many were dropped because newer rows have overwritten theirs; no other row gets them. Raises
        ValueError, with nothing changed, for a priority that is negative or not finite.
        """
        dropped = self._sampler.update_priorities(_checked_keys(keys), self._raised(priorities))
        self.num_stale_priorities += dropped
        return dropped

    def _raised(self, priorities: ArrayLike) -> Array:
        """Return ``priorities [B]``, or a single one, with eps added: float64 ``[B]``; ValueError if negative."""
        sums: Array = np.add(np.atleast_1d(priorities), self._eps, dtype=np.float64)
        if sums.min(initial=np.inf) < self._eps:
            row = int(sums.argmin())
            raise bad_priority(row, sums.flat[row] - self._eps)
        return sums


class ReplayBuffer(HeldRows):
    """The newest transitions, in your own columns; batches are drawn uniformly."""

    def __init__(
        self,
        capacity: int,
        columns: ColumnForms,
        *,
        n_step: NStepConfig | None = None,
        seed: int | None = None,
    ) -> None:
        """Hold ``capacity`` rows; ``columns`` say what each column of one transition is.

        Args:
            capacity: rows held at most; then each new row overwrites the oldest.
            columns: shape and dtype by name, such as ``{"obs": ((4,), np.float32), "actions": ((), np.int64)}``.
            n_step: store n-step transitions; the columns are then of single steps.
            seed: seed of the draws; None: another one each time.

        Raises:
            ValueError: for an invalid argument.

        """
        intake = intake_of(columns, n_step)
        self._rows = _rows(capacity, intake)
        super().__init__(intake, Sampler(self._rows), seed)

    def add(self, **columns: ArrayLike) -> Array:
        """Add one transition, or a batch ``[B]``; return the keys ``[B]`` of the rows stored now (int64).

        Raises ValueError, with nothing added, for rows without the declared columns.
        """
        return _store(self._sampler, self._rows, self._intake.rows(columns), None)

    def on_episode_end(self) -> Array:
        """End the episode; return the keys ``[B]`` of n-step transitions that are stored now.

        Does nothing without ``n_step``.
        """
        return _store(self._sampler, self._rows, self._intake.end(), None)

    def sample(self, batch_size: int) -> dict[str, Array]:
        """Return copies of ``batch_size`` rows ``[B, ...]`` by column, drawn independently with replacement.

        ``keys [B]`` name the rows; ``weights [B]`` are all 1, so that a loss for prioritized replay fits this one.
        Raises ValueError if there is no row.
        """
        return self._draw(batch_size, beta=0.0)


class PrioritizedReplayBuffer(PrioritizedRows):
    """The newest transitions, in your own columns; batches are drawn by priority."""

    def __init__(
        self,
        capacity: int,
        columns: ColumnForms,
        *,
        alpha: float = 0.6,
        eps: float = 1e-6,
        n_step: NStepConfig | None = None,
        seed: int | None = None,
    ) -> None:
        """Hold ``capacity`` rows; see :class:`ReplayBuffer` for the other arguments.

        Args:
            capacity: most rows held.
            columns: shape and dtype of each column.
            alpha: strength of priorities, 0 (uniform) to 1 (proportional).
            eps: added to every priority, so that a row with priority 0 can still be drawn.
            n_step: store n-step transitions.
            seed: seed of the draws.

        Raises:
            ValueError: for an invalid argument.

        """
        intake = intake_of(columns, n_step)
        self._rows = _rows(capacity, intake)
        super().__init__(intake, self._rows, alpha, eps, seed)

    def add(self, *, priorities: ArrayLike | None = None, **columns: ArrayLike) -> Array:
        """Add one transition, or a batch ``[B]``, with ``priorities [B]``; return the keys ``[B]`` of the rows (int64).

        Without priorities, the rows get the highest one so far. Raises ValueError, with nothing added, for rows without
        the declared columns, and for priorities that are negative or not finite.
        """
        refuse_folded_priorities(priorities, self._intake)
        rows = self._intake.rows(columns)
        return _store(self._sampler, self._rows, rows, None if priorities is None else self._raised(priorities))

    def on_episode_end(self) -> Array:
        """End the episode; return the keys ``[B]`` of n-step transitions that are stored now.

        Does nothing without ``n_step``.
        """
        return _store(self._sampler, self._rows, self._intake.end(), None)


def _checked_keys(keys: ArrayLike) -> Array:
    """Return ``keys [B]``, or a single one, as an array ``[B]``; ValueError if they are not whole numbers."""
    checked = np.atleast_1d(keys)
    if checked.dtype.kind not in "iu" and checked.size:
        raise ValueError(f"keys are whole numbers, as sample and add return them, not {checked.dtype}")
    return checked


def _rows(capacity: int, intake: Intake) -> RowRing:
    storage = ArrayStorage(capacity)
    storage.write(0, intake.stored.no_rows())
    return RowRing(capacity, storage)


def _store(sampler: Sampler, ring: RowRing, rows: SampleBatch, priorities: Array | None) -> Array:
    """Add ``rows [B]`` to a sampler of ``ring`` and return their keys ``[B]``."""
    if not len(rows):
        return np.empty(0, np.int64)
    sampler.add(rows, priorities)
    return np.arange(ring.next_key - len(rows), ring.next_key)
