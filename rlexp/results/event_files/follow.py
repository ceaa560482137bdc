"""Following runs: what was written since the last look."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rlexp.results.event_files.event_file import EventFile
from rlexp.results.event_files.points import Batch
from rlexp.results.event_files.runs import Run, runs_at, size_now


class Follower:
    """Owns the event files at some paths while they grow, and those that appear there meanwhile."""

    def __init__(self, paths: Sequence[Path], files: Iterable[EventFile]) -> None:
        """Go on where ``files`` were left; what is written elsewhere at ``paths`` is new from its start."""
        self._paths = paths
        self._files = {file.path: file for file in files}
        self._told = {fault for file in self._files.values() for fault in _faults(file)}

    def poll(self) -> Iterator[tuple[Run, Batch]]:
        """Yield what was written since the last call, up to where each file ends now."""
        for run in {run.name: run for path in self._paths for run in runs_at(path)}.values():
            for path in run.files:
                if path not in self._files:
                    self._files[path] = EventFile(path)
                for batch in self._files[path].batches(size_now(path)):
                    yield run, batch

    def new_faults(self) -> list[str]:
        """Say what has been found wrong since the last call; a half-written record is not."""
        faults = [fault for file in self._files.values() for fault in _faults(file) if fault not in self._told]
        self._told.update(faults)
        return faults


def _faults(file: EventFile) -> list[str]:
    return [f"{file.path} {fault}" for fault in file.faults()]
