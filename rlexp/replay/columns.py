"""The first stage of the replay library: a caller's rows are checked against the declared columns.

For n-step transitions, an NStepFold computes them from the steps of one env, as these arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from rlexp.sample_batch import DISCOUNTS, IMPORTANCE_WEIGHTS, KEYS, Array, SampleBatch, n_step_returns
from rlexp.sample_batch import Column as SentColumn

PRIORITIES: Final = "priorities"
PRIORITIES_TO_ALPHA: Final = "priorities_to_alpha"
"""Name of the rows' p^alpha in a saved buffer."""
RESERVED: Final = (KEYS, IMPORTANCE_WEIGHTS, PRIORITIES, PRIORITIES_TO_ALPHA)
"""Names that no column can have, as batches and saved buffers use them."""
NUMBERS: Final = "biufc"
"""NumPy's kinds of dtypes for columns: numbers and booleans, but neither objects nor text."""

ColumnForms: TypeAlias = Mapping[str, tuple[tuple[int, ...], DTypeLike]]
"""Shape and dtype of each column in one transition, by name: ``{"obs": ((4,), np.float32)}``."""


class ColumnForm(NamedTuple):
    """The form of one column."""

    shape: tuple[int, ...]
    """Shape of one row."""
    dtype: np.dtype[Any]
    """Dtype in this machine's byte order, into which saved buffers are read too."""


class Columns:
    """The declared columns of a buffer in alphabetical order, which is then equal in every process."""

    def __init__(self, declared: ColumnForms) -> None:
        """Read a user's declaration; raises ValueError that names the first invalid column."""
        if not declared:
            raise ValueError("a buffer needs at least one column")
        self.forms: Mapping[str, ColumnForm] = {name: _form(name, *declared[name]) for name in sorted(declared)}
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

    @property
    def stored(self) -> Columns:
        """The columns of the rows that :meth:`rows` returns."""
        return self

    def end(self) -> SampleBatch:
        """Return an empty batch, as no rows wait for others of their episode."""
        return self.no_rows()

    def clear(self) -> None:
        """Do nothing, as no rows wait."""

    def no_rows(self) -> SampleBatch:
        """Return a batch of these columns without rows."""
        return SampleBatch({name: np.empty((0, *form.shape), form.dtype) for name, form in self.forms.items()})

    def sent(self) -> tuple[SentColumn, ...]:
        """Return the columns in the form of messages between processes."""
        return tuple(SentColumn(name, form.dtype.str, form.shape) for name, form in self.forms.items())

    def _names_differ(self, given: Mapping[str, ArrayLike]) -> str:
        missing = sorted(self.forms.keys() - given.keys())
        unknown = sorted(given.keys() - self.forms.keys())
        parts = [
            f"{what} {', '.join(names)}" for what, names in (("missing:", missing), ("unknown:", unknown)) if names
        ]
        return f"other columns than the buffer's ({', '.join(self.forms)}); {'; '.join(parts)}"


def _form(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> ColumnForm:
    if not name.isidentifier() or name in RESERVED:
        raise ValueError(f"a column cannot be called {name!r}: names are identifiers, and not {', '.join(RESERVED)}")
    form = ColumnForm(tuple(int(size) for size in shape), np.dtype(dtype).newbyteorder("="))
    if min(form.shape, default=1) < 1:
        raise ValueError(f"column {name}: every size in a shape must be at least 1, it is {list(form.shape)}")
    if form.dtype.kind not in NUMBERS or form.dtype.fields or form.dtype.subdtype:
        raise ValueError(f"column {name}: a dtype must be of numbers or booleans, not {form.dtype}")
    return form


def _converted(name: str, column: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``column`` as ``dtype`` if that changes values by rounding only; otherwise raise ValueError."""
    whole_numbers = column.dtype.kind in "iu" and dtype.kind in "iu"
    if not whole_numbers and not np.can_cast(column.dtype, dtype, "same_kind"):
        raise ValueError(f"column {name}: {column.dtype} does not become {dtype} without loss; convert it yourself")
    with np.errstate(over="ignore"):
        converted = column.astype(dtype)
    held = converted == column if whole_numbers else np.isfinite(converted) | ~np.isfinite(column)
    if not held.all():
        raise ValueError(f"column {name}: {column[~held].flat[0]} does not fit {dtype}")
    return converted


@dataclass(frozen=True)
class NStepConfig:
    """How steps become n-step transitions, and which columns that needs."""

    n_step: int
    """Steps of a transition; fewer if the episode ends before."""
    gamma: float
    """Discount of one step, 0 to 1."""
    rewards: str = "rewards"
    """The column of rewards: floats, one number a step."""
    terminated: str = "terminated"
    """The column that is not 0 if the episode ended, so that no value follows."""
    truncated: str | None = None
    """A column that is not 0 if the episode was truncated; None: ``on_episode_end`` is called there instead."""
    new_columns: tuple[str, ...] = ("new_obs",)
    """Columns that a transition takes from its last step, such as the next observation; others are from the first."""

    def __post_init__(self) -> None:
        if self.n_step < 1 or not 0 <= self.gamma <= 1:
            raise ValueError(f"n_step must be at least 1 and gamma from 0 to 1: {self}")


class _Stream(NamedTuple):
    """Steps of one env, in the form of ``n_step_returns``: ``[T, 1]`` each."""

    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array


class NStepFold:
    """Computes n-step transitions from the steps of one env, in order; episodes are never mixed.

    A transition of m <= n steps has sum_{k<m} gamma^k r_{t+k} in the column of rewards, and a new column
    ``discounts`` (float32): gamma^m, or 0 where the episode terminated. The loss bootstraps with
    ``rewards + discounts * value(new_obs)``, so a truncated episode bootstraps too. The columns ``terminated`` and
    ``truncated`` are removed, as ``discounts`` has what a learner needs.
    """

    def __init__(self, columns: ColumnForms, config: NStepConfig) -> None:
        """Take steps with ``columns``; raises ValueError if they lack columns that ``config`` names."""
        self._config = config
        self._steps = Columns(columns)
        _check_columns(self._steps.forms, config)
        ends = {config.terminated, config.truncated}
        kept = {name: (form.shape, form.dtype) for name, form in self._steps.forms.items() if name not in ends}
        self.columns: ColumnForms = {**kept, DISCOUNTS: ((), np.float32)}
        """Columns of the transitions, for making a buffer."""
        self.stored = Columns(self.columns)
        self._waiting = self._steps.no_rows()

    def add(self, **step: ArrayLike) -> dict[str, Array]:
        """Take one step, or a batch of consecutive steps, and return the transitions ``[B]`` that are now complete.

        Raises ValueError, with nothing taken, for columns that were not declared.
        """
        return self.rows(step).columns

    def on_episode_end(self) -> dict[str, Array]:
        """Return the transitions ``[B]`` of the waiting steps, as the episode was truncated after the last of them.

        After a step that terminated, none wait.
        """
        return self.end().columns

    def clear(self) -> None:
        """Forget the waiting steps, as later steps do not belong to their episode."""
        self._waiting = self._steps.no_rows()

    def rows(self, step: Mapping[str, ArrayLike]) -> SampleBatch:
        """Return the result of :meth:`add` as rows."""
        return self._folded(SampleBatch.concat([self._waiting, self._steps.rows(step)]), cut=False)

    def end(self) -> SampleBatch:
        """Return the result of :meth:`on_episode_end` as rows."""
        return self._folded(self._waiting, cut=True)

    def _folded(self, steps: SampleBatch, cut: bool) -> SampleBatch:
        """Return the transitions that ``steps [T]`` complete, and keep the steps that still wait."""
        config, stream = self._config, self._stream(steps, cut)
        sums = n_step_returns(stream, len(steps), config.n_step, config.gamma)
        returns, num_folded, bootstraps = (column[:, 0] for column in sums)
        last = np.arange(len(steps)) + num_folded - 1
        ended = (stream.terminated | stream.truncated)[:, 0]
        # The transitions that need more steps are the last ones, as no end follows them.
        count = int(np.count_nonzero((num_folded == config.n_step) | ended[last]))
        self._waiting = SampleBatch({name: column[count:].copy() for name, column in steps.columns.items()})
        last, discounts = last[:count], np.where(bootstraps, config.gamma**num_folded, 0.0)
        columns = {
            name: steps[name][last] if name in config.new_columns else steps[name][:count].copy()
            for name in self.columns
            if name != DISCOUNTS
        }
        columns[config.rewards] = returns[:count].reshape(columns[config.rewards].shape)
        return SampleBatch({**columns, DISCOUNTS: discounts[:count].astype(np.float32)})

    def _stream(self, steps: SampleBatch, cut: bool) -> _Stream:
        config, shape = self._config, (len(steps), 1)
        terminated = steps[config.terminated].reshape(shape) != 0
        truncated = np.zeros(shape, bool)
        if config.truncated is not None:
            truncated |= steps[config.truncated].reshape(shape) != 0
        truncated[-1:] |= cut
        return _Stream(steps[config.rewards].reshape(shape), terminated, truncated, np.ones(shape, bool))


Intake: TypeAlias = Columns | NStepFold
"""The checks of a caller's rows on their way into a buffer, and the n-step computation if there is one."""


def intake_of(columns: ColumnForms, n_step: NStepConfig | None) -> Intake:
    """Return the intake of rows with ``columns``; its results have the columns ``stored``."""
    return Columns(columns) if n_step is None else NStepFold(columns, n_step)


def refuse_folded_priorities(priorities: ArrayLike | None, intake: Intake) -> None:
    """Raise ValueError for priorities of single steps if n-step transitions are stored."""
    if priorities is not None and isinstance(intake, NStepFold):
        raise ValueError(
            "priorities of single steps do not fit n-step transitions: compute these with an NStepFold, and add "
            "them with their priorities to a buffer without n_step"
        )


def _check_columns(forms: Mapping[str, ColumnForm], config: NStepConfig) -> None:
    """Raise ValueError if columns that ``config`` names are missing or have a wrong form."""
    flags = [name for name in (config.terminated, config.truncated) if name is not None]
    missing = [name for name in (config.rewards, *flags, *config.new_columns) if name not in forms]
    if missing:
        raise ValueError(f"n-step transitions need columns that are not declared: {', '.join(missing)}")
    if DISCOUNTS in forms:
        raise ValueError(f"n-step transitions get a column {DISCOUNTS}: it cannot be declared")
    for name in (config.rewards, *flags):
        if forms[name].shape not in ((), (1,)):
            raise ValueError(f"column {name}: n-step transitions need one number a step, not {list(forms[name].shape)}")
    if forms[config.rewards].dtype.kind != "f":
        raise ValueError(f"column {config.rewards}: discounted rewards are floats, not {forms[config.rewards].dtype}")
