"""Runs: the event files of a directory, read as one stream in the order of their names, as TensorBoard does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

import numpy as np

from rlexp.errors import UsageError
from rlexp.results.event_files.event_file import EventFile
from rlexp.results.event_files.framing import HEADER_BYTES, begins_with_frame
from rlexp.results.event_files.gathering import Gatherer
from rlexp.results.event_files.points import Batch
from rlexp.results.event_files.restarts import Restarts
from rlexp.sample_batch import Array

_MARK: Final = "tfevents"
_EMPTY_SUFFIX: Final = ".profile-empty"
"""TensorBoard's profiler leaves such files; they hold nothing."""

Kept = TypeVar("Kept", bound=Gatherer)


@dataclass(frozen=True)
class Run:
    """A directory with event files, or one event file that was named itself."""

    name: str
    """The path as it was given or found."""
    files: tuple[Path, ...]


@dataclass
class RunContents(Generic[Kept]):
    """What the files of a run say."""

    run: Run
    files: list[EventFile]
    """Each knows where it was left, so that a follower goes on from there, and what is wrong with it."""
    scalars: dict[str, Kept] = field(default_factory=dict)
    """What was kept of each scalar, by tag."""
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many values that are no scalars there are, by tag and kind."""
    tags: set[str] = field(default_factory=set)
    """Every tag there is, wanted or not."""
    goes_back: int = 0
    """How often a tag's step is lower than the one before, in what is kept."""
    taken_back: int = 0
    """Points left out, because the run went on from an earlier step."""
    _last_steps: dict[str, int] = field(default_factory=dict)

    def take(
        self,
        batch: Batch,
        keep: Callable[[], Kept],
        wanted: Callable[[str], bool],
        restarts: Restarts | None = None,
    ) -> None:
        """Take the next batch, without the points that ``restarts`` take back."""
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


def find_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs at and below ``paths``, each once; raises UsageError for a path without event files."""
    runs: dict[str, Run] = {}
    for path in paths:
        if path.is_file():
            _refuse_other_file(path)
        found = runs_at(path)
        if not found:
            what = f"{path} contains no event files" if path.exists() else f"path {path} does not exist"
            raise UsageError(what, "name event files (*tfevents*), or directories that contain some")
        runs |= {run.name: run for run in found if run.name not in runs}
    return list(runs.values())


def runs_at(path: Path) -> list[Run]:
    """Return the file ``path`` as a run, or the runs below the directory ``path``."""
    return [Run(str(path), (path,))] if path.is_file() else list(_runs_below(path))


def size_now(path: Path) -> int:
    """Return how long a file is; 0 where it is gone, which reading it will tell."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_run(run: Run, keep: Callable[[], Kept], wanted: Callable[[str], bool]) -> RunContents[Kept]:
    """Read all files of ``run``, as long as they are now; ``keep()`` gathers the points of a tag that is ``wanted``.

    Where points were taken back, the files are read again without them: which these are is known at the
    end only, and what is kept in bounded memory cannot forget them.
    """
    sizes = [size_now(path) for path in run.files]
    restarts = Restarts()
    contents = RunContents[Kept](run, [EventFile(path) for path in run.files])
    for file, batch in _batches(contents.files, sizes):
        restarts.learn(file, {tag: points for tag, points in batch.points.items() if wanted(tag)}, batch.restarts)
        contents.take(batch, keep, wanted)
    if not restarts.take_back:
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


def _runs_below(directory: Path) -> Iterator[Run]:
    for folder, subfolders, names in os.walk(directory):
        subfolders.sort()
        marked = sorted(name for name in names if _MARK in name and not name.endswith(_EMPTY_SUFFIX))
        files = tuple(Path(folder, name) for name in marked if Path(folder, name).is_file())
        if files:
            yield Run(str(Path(folder)), files)


def _refuse_other_file(path: Path) -> None:
    """Raise UsageError where ``path`` is not an event file or cannot be read."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    if not begins_with_frame(header):
        raise UsageError(f"{path} is not an event file", "event files are called events.out.tfevents.…")
