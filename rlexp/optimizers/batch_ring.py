"""The train batches of an AsyncSamplesOptimizer: fragments become batches, and each batch is learned several times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlexp.rollout.folds import IS_STEP
from rlexp.rollout.fragment import whole_rows
from rlexp.sample_batch import FrameRows, SampleBatch, SentRows, WrittenRows


@dataclass(frozen=True)
class AgedRows:
    """The rows of a fragment, and the version of the weights that acted in it."""

    rows: SentRows
    num_steps: int
    """Env steps among the rows."""
    version: int
    """Number of updates that the weights of its last step include."""

    @staticmethod
    def of(rows: SentRows, version: int) -> AgedRows:
        """Return ``rows`` with their number of steps, which IS_STEP marks if there are other rows."""
        return AgedRows(rows, num_steps_of(rows), version)

    def state(self) -> dict[str, Any]:
        """Return its rows and its version."""
        return {"columns": dict(whole_rows(self.rows).columns), "version": self.version}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> AgedRows:
        """Return what ``state`` was made of."""
        return AgedRows.of(SampleBatch(state["columns"]), state["version"])


def num_steps_of(rows: SentRows) -> int:
    """Return the number of env steps in ``rows``."""
    columns = rows.rows if isinstance(rows, FrameRows) else rows
    if isinstance(columns, WrittenRows) or IS_STEP not in columns:
        return len(rows)
    return int(np.count_nonzero(columns[IS_STEP]))


class OldFragments:
    """Draws old fragments to be learned beside each new one (``replay_proportion``); owned by one optimizer."""

    def __init__(self, proportion: float, num_slots: int, rng: np.random.Generator) -> None:
        """Return ``proportion`` fragments for each new one on average, of the newest ``num_slots``."""
        self._proportion = proportion if num_slots else 0.0
        self._kept: deque[AgedRows] = deque(maxlen=num_slots)
        self._rng = rng

    def beside(self, fragment: AgedRows) -> list[AgedRows]:
        """Keep a new fragment; return the old ones that go with it, which may be the new one itself."""
        if not self._proportion:
            return []
        self._kept.append(fragment)
        number = int(self._proportion + self._rng.random())
        return [self._kept[index] for index in self._rng.integers(len(self._kept), size=number)]

    def state(self) -> dict[str, Any]:
        """Return the fragments, and the state of the generator."""
        return {"kept": [each.state() for each in self._kept], "rng": self._rng.bit_generator.state}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned."""
        self._kept.extend(AgedRows.from_state(each) for each in state["kept"])
        self._rng.bit_generator.state = state["rng"]


@dataclass
class _TrainBatch:
    parts: list[AgedRows]
    passes_left: int
    is_new: bool = True
    """Whether it has had no pass."""


class BatchRing:
    """Holds the train batches that are learned in turns, each ``num_passes`` times; owned by one optimizer.

    With one slot, a batch has all its passes before the next one begins. With several, passes of different batches
    alternate. The number of passes grows from 1 with the first batches, as in RLlib, so that slots do not end together.
    """

    def __init__(self, num_slots: int, num_passes: int) -> None:
        self._slots: list[_TrainBatch | None] = [None] * num_slots
        self._num_passes = num_passes
        self._passes_of_next = 1 if num_slots > 1 else num_passes
        self._turn = 0

    @property
    def needs_batch(self) -> bool:
        """Whether the slot whose turn it is needs a new train batch."""
        slot = self._slots[self._turn]
        return slot is None or slot.passes_left == 0

    def fill(self, parts: Sequence[AgedRows]) -> None:
        """Put a new train batch into the slot that needs one."""
        self._slots[self._turn] = _TrainBatch(list(parts), self._passes_of_next)
        self._passes_of_next = min(self._passes_of_next + 1, self._num_passes)

    def take(self, oldest_version: int) -> tuple[list[AgedRows], int]:
        """Return the batch whose turn it is without fragments older than ``oldest_version``, for this and later passes.

        Also return how many of its steps were dropped before their first pass.
        """
        slot = self._slots[self._turn]
        assert slot is not None
        kept = [part for part in slot.parts if part.version >= oldest_version]
        num_dropped = sum(part.num_steps for part in slot.parts if part.version < oldest_version) if slot.is_new else 0
        slot.parts, slot.is_new = kept, False
        slot.passes_left = slot.passes_left - 1 if kept else 0
        self._turn = (self._turn + 1) % len(self._slots)
        return kept, num_dropped

    def state(self) -> dict[str, Any]:
        """Return the batches with passes left, and whose turn it is."""
        slots = [
            None
            if slot is None or not slot.passes_left
            else [[each.state() for each in slot.parts], slot.passes_left, slot.is_new]
            for slot in self._slots
        ]
        return {"slots": slots, "turn": self._turn, "passes_of_next": self._passes_of_next}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state`` returned, if this ring has as many slots."""
        if len(state["slots"]) != len(self._slots):
            return
        for index, slot in enumerate(state["slots"]):
            if slot is not None:
                parts, passes_left, is_new = slot
                self._slots[index] = _TrainBatch([AgedRows.from_state(each) for each in parts], passes_left, is_new)
        self._turn = state["turn"]
        self._passes_of_next = min(state["passes_of_next"], self._num_passes)


class PolicyLags:
    """The ages of the policies whose steps are learned, in updates, since the last ``drain``."""

    def __init__(self) -> None:
        self._steps_of: Counter[int] = Counter()

    def add(self, lag: int, num_steps: int) -> None:
        """Count steps of a policy that was ``lag`` updates old when they were learned."""
        self._steps_of[lag] += num_steps

    def drain(self) -> dict[str, float]:
        """Return mean, 95th percentile and maximum over all steps, and forget them; 0 without steps."""
        lags = np.array(sorted(self._steps_of), np.int64)
        steps = np.array([self._steps_of[lag] for lag in lags.tolist()], np.int64)
        self._steps_of.clear()
        if not len(lags):
            return {"mean": 0.0, "p95": 0.0, "max": 0.0}
        reached = steps.cumsum() >= 0.95 * steps.sum()
        return {
            "mean": float((lags * steps).sum() / steps.sum()),
            "p95": float(lags[reached.argmax()]),
            "max": float(lags[-1]),
        }
