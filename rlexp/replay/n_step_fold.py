"""NStepFold of the replay library: n-step transitions from the steps of one env, as they come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlexp.replay.columns import ColumnForms, Columns, Form
from rlexp.sample_batch import DISCOUNTS, Array, SampleBatch, n_step_returns


@dataclass(frozen=True)
class NStepConfig:
    """How steps become n-step transitions, and which columns have what is needed for it."""

    n_step: int
    """Steps of a transition; fewer where the episode ends before."""
    gamma: float
    """Discount of one step, 0 to 1."""
    rewards: str = "rewards"
    """The column of rewards: floats, one number a step."""
    terminated: str = "terminated"
    """The column that is not 0 where the episode ended, so that no value follows."""
    truncated: str | None = None
    """A column that is not 0 where the episode was cut; None: ``on_episode_end`` is called there instead."""
    new_columns: tuple[str, ...] = ("new_obs",)
    """Columns that a transition has of its last step, such as the observation after it; all others are of the first."""

    def __post_init__(self) -> None:
        if self.n_step < 1 or not 0 <= self.gamma <= 1:
            raise ValueError(f"n_step must be at least 1 and gamma from 0 to 1: {self}")


class _Stream(NamedTuple):
    """Steps of one env, as ``n_step_returns`` reads them: ``[T, 1]`` each."""

    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array


class NStepFold:
    """Folds the steps of one env, in their order, into n-step transitions; episodes are never mixed.

    A transition that folds m <= n steps has in the column of rewards sum_{k<m} gamma^k r_{t+k}, and a new column
    ``discounts`` (float32): gamma^m, or 0 where the episode terminated. The loss bootstraps with
    ``rewards + discounts * value(new_obs)``, so a truncated episode bootstraps too. The columns ``terminated`` and
    ``truncated`` are not passed on, ``discounts`` says what a learner needs of them.
    """

    def __init__(self, columns: ColumnForms, config: NStepConfig) -> None:
        """Take steps with ``columns``; raises ValueError where they do not have what ``config`` names."""
        self._config = config
        self._steps = Columns(columns)
        _check_columns(self._steps.forms, config)
        ends = {config.terminated, config.truncated}
        kept = {name: (form.shape, form.dtype) for name, form in self._steps.forms.items() if name not in ends}
        self.columns: ColumnForms = {**kept, DISCOUNTS: ((), np.float32)}
        """The columns of the transitions, to make a buffer of."""
        self._waiting = self._steps.no_rows()

    def add(self, **step: ArrayLike) -> dict[str, Array]:
        """Take one step, or a batch of steps that follow each other, and return the transitions ``[B]`` now complete.

        Raises ValueError, with nothing taken, for other columns than declared.
        """
        return self.rows(step).columns

    def on_episode_end(self) -> dict[str, Array]:
        """Return the transitions ``[B]`` of the steps that still wait: the episode was cut after the last of them.

        After a step that terminated, none wait.
        """
        return self.end().columns

    def clear(self) -> None:
        """Forget the steps that wait: those that follow are not of their episode."""
        self._waiting = self._steps.no_rows()

    def rows(self, step: Mapping[str, ArrayLike]) -> SampleBatch:
        """Return what :meth:`add` returns, as rows."""
        return self._folded(SampleBatch.concat([self._waiting, self._steps.rows(step)]), cut=False)

    def end(self) -> SampleBatch:
        """Return what :meth:`on_episode_end` returns, as rows."""
        return self._folded(self._waiting, cut=True)

    def _folded(self, steps: SampleBatch, cut: bool) -> SampleBatch:
        """Return the transitions that ``steps [T]`` complete, and keep the steps at which none begins that is."""
        config, stream = self._config, self._stream(steps, cut)
        sums = n_step_returns(stream, len(steps), config.n_step, config.gamma)
        returns, num_folded, bootstraps = (column[:, 0] for column in sums)
        last = np.arange(len(steps)) + num_folded - 1
        ended = (stream.terminated | stream.truncated)[:, 0]
        # The transitions that still need steps are the last ones: no end follows them.
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


class Intake:
    """What a caller adds, on its way into a buffer: checked, and folded where there are n-step transitions."""

    def __init__(self, columns: ColumnForms, n_step: NStepConfig | None) -> None:
        """Take rows with ``columns``; those stored are ``stored``."""
        self._fold = None if n_step is None else NStepFold(columns, n_step)
        self.stored = Columns(columns if self._fold is None else self._fold.columns)

    @property
    def folds(self) -> bool:
        """Whether the rows that come out are others than those that were given."""
        return self._fold is not None

    def rows(self, given: Mapping[str, ArrayLike]) -> SampleBatch:
        """Return the rows ``[B]`` to store; of n-step transitions those now complete, which may be none."""
        return self.stored.rows(given) if self._fold is None else self._fold.rows(given)

    def end_episode(self) -> SampleBatch:
        """Return the rows ``[B]`` that waited for more steps of the episode that has ended."""
        return self.stored.no_rows() if self._fold is None else self._fold.end()

    def clear(self) -> None:
        """Forget the steps that wait for more of their episode."""
        if self._fold is not None:
            self._fold.clear()


def _check_columns(forms: Mapping[str, Form], config: NStepConfig) -> None:
    """Raise ValueError where columns that ``config`` names are missing, or are not what they should be."""
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
