"""Runs: the event files of a directory, found, read as one stream in the order of their names, and followed.

A training job that crashed continues from its newest checkpoint, and writes the later steps a second
time. The second points replace the first where a restart is certain:

- A writer may announce it by a session log ``START`` at the step that it continues from
  (``SummaryWriter(purge_step=…)`` does). Every point of an earlier record with that step or a later one
  is discarded. This is the rule of TensorBoard's EventAccumulator.
- Most writers do not announce it, but a new process opens a new file. A tag may begin in a later file at a
  step that it had reached before. Unless both wrote it at the same time, its points of that step
  and later ones are discarded. (TensorBoard's data server goes further: there, every step that is not higher
  discards.)

Steps that decrease within a file may come from a restart, from a counter that was reset, or from several
threads: all points are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Generic, TypeVar

import numpy as np

from rlexp.compare.event_files.event_file import Batch, EventFile
from rlexp.compare.event_files.framing import HEADER_BYTES, begins_with_frame
from rlexp.compare.event_files.gathering import LogGatherer
from rlexp.errors import UsageError
from rlexp.files import open_regular
from rlexp.runs.record import hint_to_runs
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


_MARK: Final = "tfevents"
_EMPTY_SUFFIX: Final = ".profile-empty"
"""TensorBoard's profiler writes such files; they are empty."""

Kept = TypeVar("Kept", bound=LogGatherer)


@dataclass(frozen=True)
class LogRun:
    """A directory with event files, or one event file that was named itself."""

    name: str
    """The path as it was given or found."""
    files: tuple[Path, ...]


def find_runs(paths: Sequence[Path], leave_out: Callable[[OSError], None] = lambda error: None) -> list[LogRun]:
    """Return the runs at and below ``paths``, each once; raises UsageError for a path without event files.

    What ``leave_out`` gets are directories below them that may not be read.
    """
    runs: dict[str, LogRun] = {}
    for path in paths:
        if os.path.exists(path) and not os.path.isdir(path):
            _refuse_other_file(path)
        found = _runs_at(path, leave_out)
        if not found:
            if not os.path.exists(path):
                raise UsageError(f"path {path} does not exist", hint_to_runs(path))
            what = f"{path} contains no event files"
            raise UsageError(what, "name event files (*tfevents*), or directories that contain some")
        runs |= {run.name: run for run in found if run.name not in runs}
    return list(runs.values())


def _refuse_other_file(path: Path) -> None:
    """Raise UsageError if ``path`` is not an event file or cannot be read."""
    try:
        with open_regular(path, None) as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not begins_with_frame(header):
        raise UsageError(f"{path} is not an event file", "event files are called events.out.tfevents.…")


def _runs_at(path: Path, leave_out: Callable[[OSError], None] = lambda error: None) -> list[LogRun]:
    """Return the file ``path`` as a run, or the runs below the directory ``path``."""
    return [LogRun(str(path), (path,))] if os.path.isfile(path) else list(_runs_below(path, leave_out))


def _runs_below(directory: Path, leave_out: Callable[[OSError], None]) -> Iterator[LogRun]:
    for folder, subfolders, names in os.walk(directory, onerror=leave_out):
        subfolders.sort()
        marked = sorted(name for name in names if _MARK in name and not name.endswith(_EMPTY_SUFFIX))
        files = tuple(Path(folder, name) for name in marked if os.path.isfile(Path(folder, name)))
        if files:
            yield LogRun(str(Path(folder)), files)


@dataclass
class RunContents(Generic[Kept]):
    """The contents of a run's files."""

    run: LogRun
    files: list[EventFile]
    """With the positions where a follower continues, and their faults."""
    scalars: dict[str, Kept] = field(default_factory=dict)
    """What was kept of each scalar, by tag."""
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The number of values that are not scalars, by tag and kind."""
    tags: set[str] = field(default_factory=set)
    """Every tag in the files, wanted or not."""
    goes_back: int = 0
    """How often a tag's step is lower than the previous one, in what is kept."""
    taken_back: int = 0
    """Points that were discarded because the run continued from an earlier step."""
    _last_steps: dict[str, int] = field(default_factory=dict)

    def take(
        self,
        batch: Batch,
        keep: Callable[[], Kept],
        wanted: Callable[[str], bool],
        restarts: Restarts | None = None,
    ) -> None:
        """Take the next batch, without the points that ``restarts`` discards."""
        self.tags |= batch.points.keys() | {tag for tag, _ in batch.others}
        for key, count in batch.others.items():
            if wanted(key[0]):
                self.others[key] += count
        for tag, points in batch.points.items():
            if wanted(tag):
                kept = points if restarts is None else points[restarts.keeps(tag, points)]
                self.taken_back += len(points) - len(kept)
                if len(kept):
                    self._take_points(tag, kept, keep)

    def _take_points(self, tag: str, points: Array, keep: Callable[[], Kept]) -> None:
        if tag not in self.scalars:
            self.scalars[tag] = keep()
        before = self._last_steps.get(tag, points["step"][0])
        self.goes_back += int((np.diff(points["step"], prepend=before) < 0).sum())
        self._last_steps[tag] = points["step"][-1]
        self.scalars[tag].take(points)


def read_run(run: LogRun, keep: Callable[[], Kept], wanted: Callable[[str], bool]) -> RunContents[Kept]:
    """Read all files of ``run`` up to their present size; ``keep()`` gathers the points of a tag that is ``wanted``.

    If points were discarded, the files are read again without them: which points these are is known only at the
    end, and what is kept in bounded memory cannot be undone.
    """
    sizes = [_size_now(path) for path in run.files]
    restarts = Restarts()
    contents = RunContents[Kept](run, [EventFile(path) for path in run.files])
    for file, batch in _batches(contents.files, sizes):
        restarts.learn(file, {tag: points for tag, points in batch.points.items() if wanted(tag)}, batch.restarts)
        contents.take(batch, keep, wanted)
    if not restarts.discard_points:
        return contents
    again = RunContents[Kept](run, [EventFile(path) for path in run.files])
    for _, batch in _batches(again.files, sizes):
        again.take(batch, keep, wanted, restarts)
    return again


def _batches(files: Sequence[EventFile], sizes: Sequence[int]) -> Iterator[tuple[int, Batch]]:
    """Read each file up to its size; yield the number of the file and a batch."""
    records = 0
    for number, (file, size) in enumerate(zip(files, sizes, strict=True)):
        for batch in file.batches(size, records):
            yield number, batch
        records += file.records


def _size_now(path: Path) -> int:
    """Return the size of a file; 0 if it was removed, which reading it will report."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class Follower:
    """Owns the event files at some paths while they grow, and those that appear there later."""

    def __init__(self, paths: Sequence[Path], files: Iterable[EventFile]) -> None:
        """Continue where reading ``files`` ended; all other files at ``paths`` are new from their start."""
        self._paths = paths
        self._files = {file.path: file for file in files}
        self._reported = {fault for file in self._files.values() for fault in _faults(file)}

    def poll(self) -> Iterator[tuple[LogRun, Batch]]:
        """Yield what was written since the last call, up to the present end of each file."""
        for run in {run.name: run for path in self._paths for run in _runs_at(path)}.values():
            for path in run.files:
                if path not in self._files:
                    self._files[path] = EventFile(path)
                for batch in self._files[path].batches(_size_now(path)):
                    yield run, batch

    def new_faults(self) -> list[str]:
        """Return what has been found wrong since the last call; a half-written record is not a fault."""
        faults = [fault for file in self._files.values() for fault in _faults(file) if fault not in self._reported]
        self._reported.update(faults)
        return faults


def _faults(file: EventFile) -> list[str]:
    return [f"{file.path} {fault}" for fault in file.faults()]


def is_wanted(tag: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the shell patterns matches a tag, or its part after a slash; without any, all tags are."""
    return not patterns or any(_matches(tag, pattern) for pattern in patterns)


def refuse_unmatched(patterns: Sequence[str], tags: Iterable[str]) -> None:
    """Raise UsageError for a pattern that matches none of ``tags``."""
    tags = sorted(tags)
    for pattern in patterns:
        if not any(_matches(tag, pattern) for tag in tags):
            raise UsageError(f"no tag matches {pattern}", _hint(pattern, tags))


def _matches(tag: str, pattern: str) -> bool:
    return fnmatchcase(tag, pattern) or fnmatchcase(tag, f"*/{pattern}")


def _hint(pattern: str, tags: Sequence[str]) -> str:
    endings = {tag.rsplit("/", 1)[-1]: tag for tag in tags}
    near = get_close_matches(pattern, [*tags, *endings], n=1)
    if near:
        return f"did you mean {near[0]}?"
    having = [ending for ending in endings if pattern.lower() in ending.lower()]
    if having:
        return f"--tag '*{pattern.lower()}*' matches {having[0]} and {len(having) - 1} more"
    return f"the tags are {', '.join(tags[:5])}{' …' if len(tags) > 5 else ''}" if tags else "there are no tags"
