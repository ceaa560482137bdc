"""Restarts: the points of a run that were discarded because it was resumed from an earlier step.

A training job that crashed continues from its newest checkpoint, and writes the later steps a second
time. The second points replace the first where a restart is certain:

- A writer may announce it by a session log ``START`` at the step that it continues from
  (``SummaryWriter(purge_step=…)`` does). Every point of an earlier record with that step or a later one
  is discarded. This is the rule of TensorBoard's EventAccumulator.
- Most writers do not announce it, but a new process opens a new file. If a tag begins in a later file at a
  step that it had reached before, and was not written to by both at the same time, its points of that step
  and later ones are discarded. (TensorBoard's data server goes further: there, every step that is not higher
  discards.)

Steps that decrease within a file may come from a restart, from a counter that was reset, or from several
threads: all points are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlexp.sample_batch import Array

_NEVER = np.iinfo(np.int64).max


@dataclass
class _Reached:
    """How far a tag has come."""

    file: int
    step: int
    """The highest."""
    wall_time: float


class Restarts:
    """Finds out from the points of a run where it was resumed, and so which of them are discarded."""

    def __init__(self) -> None:
        self._announced: list[tuple[int, int]] = []
        """Records, and the steps from which they continue."""
        self._in_later_files: dict[str, list[tuple[int, int]]] = {}
        self._reached: dict[str, _Reached] = {}
        self._first_record: int | None = None

    @property
    def discard_points(self) -> bool:
        """Whether points may be discarded; a run that never stopped may begin with an announcement."""
        before = self._first_record is not None and any(record > self._first_record for record, _ in self._announced)
        return before or bool(self._in_later_files)

    def learn(self, file: int, points: dict[str, Array], announced: list[tuple[int, int]]) -> None:
        """Take the next batch, of the run's file number ``file``: points by tag, and announcements."""
        self._announced += announced
        if self._first_record is None and points:  # every batch is later than those before
            self._first_record = min(int(of_tag["record"][0]) for of_tag in points.values())
        for tag, of_tag in points.items():
            self._learn(file, tag, of_tag)

    def _learn(self, file: int, tag: str, points: Array) -> None:
        step, wall_time = int(points["step"][0]), float(points["wall_time"][0])
        reached = self._reached.get(tag)
        if reached is None:
            reached = self._reached[tag] = _Reached(file, step, wall_time)
        if reached.file != file and reached.step >= step and reached.wall_time <= wall_time:
            self._in_later_files.setdefault(tag, []).append((int(points["record"][0]), step))
        reached.file = file
        reached.step = max(reached.step, int(points["step"].max()))
        reached.wall_time = float(points["wall_time"][-1])

    def keeps(self, tag: str, points: Array) -> Array:
        """Return which of ``points [N]`` of a tag no later record discards."""
        restarts = sorted(self._announced + self._in_later_files.get(tag, []))
        steps = np.array([step for _, step in restarts] + [_NEVER], np.int64)
        lowest = np.minimum.accumulate(steps[::-1])[::-1]  # of a restart and all that follow it
        following = np.searchsorted([record for record, _ in restarts], points["record"], side="right")
        keeps: Array = (points["step"] < lowest[following]) | (following == len(restarts))
        return keeps
