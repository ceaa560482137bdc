"""The files of a sweep beside its trials: ``sweep.json``, ``trials.csv`` and ``best.yaml``.

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
    early_stopping, exploits: the state of the scheduler
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rlexp.config.sweep import Point, Sweep
from rlexp.files import plain, replace_json, replace_text, to_json
from rlexp.runs.record import now
from rlexp.search.ranking import SWEEP_FILE, EndComparison, Standing, TrialStanding
from rlexp.search.standings import Standings, summary_of
from rlexp.text import count, masked

TRIALS_FILE: Final = "trials.csv"
BEST_FILE: Final = "best.yaml"
FORMAT: Final = 1
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
            whole = [rank, standing.configuration, *_scored(standing, end)]
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


def _scored(standing: Standing, end: EndComparison | None) -> list[Any]:
    """Return the cells of a configuration: its score, or if it ended early, the time and the two values there."""
    return [standing.score, None, None, None] if end is None else [None, end.at, end.value, end.rank_1_value]


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
