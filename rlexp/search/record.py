"""The files of a sweep beside its trials: ``sweep.json``, ``trials.csv``, ``best.yaml``, and the journal of its search.

``sweep.json`` is one object::

    format, experiment, searcher, search, seed, number_of_configurations
    configurations: the best first, each
        configuration, point, status
        tier: completed | running | ended_early | without_value | failed
        score, interval: over the steps that all completed trials have; of one that runs, so far; else null
        ended_early: {at, of, unit, value, rank_1_value}, or null; see EndComparison
        trials: [{name, seed, status, score, timesteps_total, error}]
    summary: {configurations, ended_early, env_steps, env_steps_saved, time_s, time_saved_s, best_configuration,
        best_found_after_s, best_found_after_env_steps}; see SweepSummary
    refused: {number: why}
    early_stopping, exploits: the state of the scheduler, whose values are negated with ``mode: min``

The journal, ``search.jsonl``, has the events of the search in order, from which ``rlexp resume`` restores its state.
``sweep.json`` has the state a few seconds late, for people and programs. The journal has a line for each event, written
before any action that cannot be repeated.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from rlexp.config.sweep import Point, Sweep
from rlexp.errors import ResumeError
from rlexp.files import parse_json, plain, read_lines, replace_json, replace_text, sync, to_json
from rlexp.runs.record import now
from rlexp.runs.recorders import LineFile
from rlexp.search.ranking import SWEEP_FILE, EndComparison, Standing, TrialStanding
from rlexp.search.shared_study import StudyMember
from rlexp.search.standings import Standings, summary_of
from rlexp.text import count, masked

FORMAT: Final = 1
TRIALS_FILE: Final = "trials.csv"
BEST_FILE: Final = "best.yaml"
_SECONDS_BETWEEN_WRITES: Final = 5.0
_LARGEST_SHARE: Final = 0.05
"""Largest share of a sweep's time for writing these files: larger files are written less often."""
_COLUMNS: Final = (
    *("rank", "configuration", "configuration_score", "ended_at", "value_there", "rank_1_there"),
    *("trial", "status", "seed", "score", "iterations", "timesteps_total", "time_total_s", "error"),
)

State = Callable[[], Mapping[str, Any]]


class SearchRecord:
    """Owns those files of one sweep."""

    def __init__(self, sweep: Sweep, run_directory: Path) -> None:
        self._sweep = sweep
        self._directory = run_directory
        self._due = 0.0

    def write_when_due(self, standings: Standings, state: State) -> None:
        """Write ``sweep.json`` and ``trials.csv``, at most every few seconds."""
        if time.monotonic() >= self._due:
            self.write(standings, state)

    def write(self, standings: Standings, state: State) -> None:
        """Write ``sweep.json`` and ``trials.csv``."""
        began = time.monotonic()
        ranked = standings.ranked()
        ends = [standings.end_comparison(standing) for standing in ranked]
        replace_json(self._directory / SWEEP_FILE, self._content(standings, ends, state))
        replace_text(self._directory / TRIALS_FILE, self._table(ranked, ends))
        ended = time.monotonic()
        self._due = ended + max(_SECONDS_BETWEEN_WRITES, (ended - began) / _LARGEST_SHARE)

    def write_best(self, best: Standing, point: Point, standings: Standings, said: str = "") -> None:
        """Write ``best.yaml``: a configuration of ``standings``, at ``point``; the comment ends with ``said``."""
        text = self._sweep.best_yaml(point, self._says(best, standings) + said)
        replace_text(self._directory / BEST_FILE, text)

    def _content(self, standings: Standings, ends: Sequence[EndComparison | None], state: State) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "experiment": self._sweep.name,
            "searcher": self._sweep.searcher,
            "search": masked(self._sweep.search.model_dump(mode="json")),
            "seed": self._sweep.seed,
            "space": self._sweep.space.column_data(),
            "number_of_configurations": self._sweep.number_of_configurations,
            "configurations": [_as_json(*pair) for pair in zip(standings.ranked(), ends, strict=True)],
            "summary": asdict(summary_of(standings)),
            "refused": {str(number): why for number, why in standings.refused.items()},
            **state(),
        }

    def _table(self, ranked: Sequence[Standing], ends: Sequence[EndComparison | None]) -> str:
        keys = self._sweep.space.columns
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_COLUMNS, *keys])
        for rank, (standing, end) in enumerate(zip(ranked, ends, strict=True), start=1):
            scored = [standing.score, None, None, None]
            if end is not None:  # the time at which it ended early, and the two values there
                scored = [None, end.at, end.value, end.rank_1_value]
            whole = [rank, standing.configuration, *scored]
            for each, score in zip(standing.trials, standing.scores, strict=True):
                cells = [_cell(each.trial.varied.get(key)) for key in keys]
                writer.writerow([*whole, *_facts(each, score), *cells])
        return file.getvalue()

    def _says(self, best: Standing, standings: Standings) -> str:
        search = self._sweep.search
        trials = "1 seed" if len(best.trials) == 1 else f"{len(best.trials)} seeds"
        interval = "" if best.interval is None else f" [{best.interval[0]:.4g}, {best.interval[1]:.4g}]"
        steps = count(max(trial.timesteps_total for trial in best.trials))
        end = standings.end_comparison(best)
        early = "" if end is None else f" at {end.at:,.10g} {end.unit}, where it ended early: none completed;"
        return (
            f"The best of {len(standings.ranked())} configurations of {self._sweep.name}, {now()}: "
            f"{search.metric} {best.score:.4g}{interval}{early} over {trials} of {steps} env steps"
        )


def _facts(each: TrialStanding, score: float | None) -> list[Any]:
    seed = each.trial.experiment.config.seed
    progress = [each.iterations, each.timesteps_total, round(each.time_total_s, 1)]
    return [each.trial.name, each.status, seed, score, *progress, each.error]


def _as_json(standing: Standing, end: EndComparison | None) -> dict[str, Any]:
    return {
        "configuration": standing.configuration,
        "point": dict(standing.varied),
        "status": standing.status,
        "tier": standing.tier.name.lower(),
        "score": standing.score if end is None else None,
        "interval": standing.interval,
        "ended_early": None if end is None else asdict(end),
        "trials": [
            {
                "name": each.trial.name,
                "seed": each.trial.experiment.config.seed,
                "status": each.status,
                "score": score,
                "timesteps_total": each.timesteps_total,
                "error": each.error,
            }
            for each, score in zip(standing.trials, standing.scores, strict=True)
        ],
    }


def _cell(value: Any) -> Any:
    value = plain(value)
    return to_json(value) if isinstance(value, list | dict) else value


JOURNAL_FILE: Final = "search.jsonl"
_JOURNAL_FORMAT: Final = 1
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
        self._append({"format": _JOURNAL_FORMAT, **asdict(heading)})
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
        if content["format"] == _JOURNAL_FORMAT:
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
