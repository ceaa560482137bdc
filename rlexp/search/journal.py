"""``search.jsonl``: the events of a search, in order, from which ``rlexp resume`` restores its state.

``sweep.json`` has the state a few seconds late, for people and programs. The journal has a line for each event, written
before any action that cannot be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from rlexp.errors import ResumeError
from rlexp.files import parse_json, read_lines, sync, to_json
from rlexp.runs.recorders import LineFile
from rlexp.search.shared_study import StudyMember

JOURNAL_FILE: Final = "search.jsonl"
FORMAT: Final = 1
JOURNALED: Final = ("training_iteration", "timesteps_total", "timesteps_this_iter", "time_total_s")
"""Columns of a row that a search reads, beside its metric."""


class Event(StrEnum):
    """An event of a search."""

    CONFIGURED = "configured"
    """Its searcher suggested a point; ``refused`` says why the point is invalid."""
    EXHAUSTED = "exhausted"
    """Its searcher has no point that was not tried."""
    BEGUN = "begun"
    """A trial began, or continues."""
    REPORTED = "reported"
    """A trial had a row, of which JOURNALED and the metric are stored."""
    EXPLOITED = "took_over"
    """A trial continues from a copy of another one's checkpoint."""
    NOT_EXPLOITED = "not_exploited"
    """A trial that was due to copy does not, as none can be copied."""
    ENDED = "ended"


@dataclass(frozen=True)
class Heading:
    """The first line: the identity of the search."""

    axes: list[str]
    """The searched keys, in the order in which points are counted and drawn."""
    experiment: Mapping[str, Any]
    """The file with every key, as at the sweep's start; secrets masked."""
    allow_failures: int
    sweep_id: str = ""
    """A random id, by which the study of a storage recognises the sweep."""
    folder: str = "."
    """The command's current folder, to which a storage path is relative."""


class Journal:
    """Owns ``search.jsonl`` of one sweep while it runs; appends to an existing file."""

    def __init__(self, run_directory: Path, elapsed_s: float = 0.0) -> None:
        """Initialise; ``elapsed_s`` is how long the search ran before it was stopped."""
        self.folder = run_directory
        self._path = run_directory / JOURNAL_FILE
        self._file = LineFile(self._path, lambda line: None)
        self._began_s = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        """Seconds that the search has run, without the time between a stop and a resume."""
        return time.monotonic() - self._began_s

    def head(self, heading: Heading) -> None:
        """Write the first line."""
        self._append({"format": FORMAT, **asdict(heading)})
        sync(self._path)

    def write(self, event: Event, **fields: Any) -> None:
        """Write an event. It survives a kill at once; all events except rows also survive a power cut."""
        self._append({"event": event, **fields, "elapsed_s": round(self.elapsed_s, 3)})
        if event is not Event.REPORTED:
            sync(self._path)

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _append(self, content: Mapping[str, Any]) -> None:
        self._file.write(None, to_json(content) + "\n")


def read_heading(run_directory: Path) -> Heading:
    """Return the first line; raises ResumeError if the journal is missing, damaged or of another format."""
    path = run_directory / JOURNAL_FILE
    content: Any = next(_lines(path), (1, {}))[1]
    try:
        if content["format"] == FORMAT:
            axes = [str(key) for key in content["axes"]]
            failures, sweep_id = int(content["allow_failures"]), str(content.get("sweep_id", ""))
            return Heading(axes, dict(content["experiment"]), failures, sweep_id, str(content.get("folder", ".")))
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(run_directory, 1, error) from error
    raise ResumeError(f"{path} was written by another version of rlexp", "use the version that run.json names")


def study_member(run_directory: Path) -> StudyMember:
    """Return a sweep's identity in its study, from its journal; raises ResumeError as ``read_heading`` does."""
    heading = read_heading(run_directory)
    return StudyMember(heading.sweep_id, run_directory.absolute(), Path(heading.folder))


def read_events(run_directory: Path) -> Iterator[tuple[int, Any]]:
    """Yield the events, each with its line's number; raises ResumeError as ``read_heading`` does."""
    lines = _lines(run_directory / JOURNAL_FILE)
    next(lines, None)
    yield from lines


def damaged(run_directory: Path, line: int, error: Exception) -> ResumeError:
    """Return the error about an invalid line."""
    what = f"{type(error).__name__}: {error}"
    return ResumeError(
        f"{run_directory / JOURNAL_FILE}:{line} is damaged ({what}): what the sweep tried after that is unknown",
        "restore the file from a copy, or start a new sweep under another --name",
    )


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the lines, except an unfinished last one, which a kill cut before its event had effects."""
    number = 0
    try:
        for number, line in enumerate(read_lines(path), start=1):
            if line.endswith(b"\n"):
                yield number, parse_json(line)
    except FileNotFoundError:
        raise ResumeError(
            f"{path} is missing: what the sweep has tried is unknown",
            "restore the file from a copy, or start a new sweep under another --name",
        ) from None
    except (OSError, ValueError) as error:
        raise damaged(path.parent, number, error) from error
