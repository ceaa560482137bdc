"""What a sweep leaves beside its trials: ``sweep.json``, ``trials.csv`` and ``best.yaml``."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rlexp.config.variants.sweep import Point, Sweep
from rlexp.json_file import plain, replace_json, replace_text, to_json
from rlexp.number_format import count
from rlexp.runs.run_record import now
from rlexp.search.ranking import SWEEP_FILE, Standing, TrialStanding
from rlexp.search.standings import Standings

TRIALS_FILE: Final = "trials.csv"
BEST_FILE: Final = "best.yaml"
FORMAT: Final = 1
_SECONDS_BETWEEN_WRITES: Final = 5.0
_COLUMNS: Final = (
    *("rank", "configuration", "configuration_score", "trial", "status", "seed", "score"),
    *("iterations", "timesteps_total", "time_total_s", "error"),
)

State = Callable[[], Mapping[str, Any]]


class SearchRecord:
    """Owns those files of one sweep."""

    def __init__(self, sweep: Sweep, run_directory: Path) -> None:
        self._sweep = sweep
        self._directory = run_directory
        self._written = 0.0

    def write_when_due(self, standings: Standings, state: State) -> None:
        """Write ``sweep.json`` and ``trials.csv``, but not more often than every few seconds."""
        if time.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self.write(standings, state)

    def write(self, standings: Standings, state: State) -> None:
        """Write ``sweep.json`` and ``trials.csv``."""
        ranked = standings.ranked()
        replace_json(self._directory / SWEEP_FILE, self._content(standings, ranked, state))
        replace_text(self._directory / TRIALS_FILE, self._table(ranked))
        self._written = time.monotonic()

    def write_best(self, standings: Standings, points: Mapping[str, Point]) -> None:
        """Write ``best.yaml``; not where no configuration has a score."""
        best = standings.best()
        if best is not None:
            point = points[best.trials[0].trial.name]
            text = self._sweep.best_yaml(point, self._says(best, standings))
            replace_text(self._directory / BEST_FILE, text)

    def _content(self, standings: Standings, ranked: list[Standing], state: State) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "experiment": self._sweep.name,
            "searcher": self._sweep.searcher,
            "search": self._sweep.search.model_dump(mode="json"),
            "seed": self._sweep.seed,
            "space": self._sweep.space.column_data(),
            "number_of_configurations": self._sweep.number_of_configurations,
            "configurations": [_as_json(standing) for standing in ranked],
            "refused": {str(number): why for number, why in standings.refused.items()},
            **state(),
        }

    def _table(self, ranked: list[Standing]) -> str:
        keys = self._sweep.space.columns
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_COLUMNS, *keys])
        for rank, standing in enumerate(ranked, start=1):
            for each, score in zip(standing.trials, standing.scores, strict=True):
                cells = [_cell(each.trial.varied.get(key)) for key in keys]
                writer.writerow([rank, standing.configuration, standing.score, *_facts(each, score), *cells])
        return file.getvalue()

    def _says(self, best: Standing, standings: Standings) -> str:
        search = self._sweep.search
        trials = "1 seed" if len(best.trials) == 1 else f"{len(best.trials)} seeds"
        interval = "" if best.interval is None else f" [{best.interval[0]:.4g}, {best.interval[1]:.4g}]"
        steps = count(max(trial.timesteps_total for trial in best.trials))
        return (
            f"The best of {len(standings.ranked())} configurations of {self._sweep.name}, {now()}: "
            f"{search.metric} {best.score:.4g}{interval} over {trials} of {steps} env steps"
        )


def _facts(each: TrialStanding, score: float | None) -> list[Any]:
    seed = each.trial.experiment.config.seed
    progress = [each.iterations, each.timesteps_total, round(each.time_total_s, 1)]
    return [each.trial.name, each.status, seed, score, *progress, each.error]


def _as_json(standing: Standing) -> dict[str, Any]:
    return {
        "configuration": standing.configuration,
        "point": dict(standing.varied),
        "status": standing.status,
        "score": standing.score,
        "interval": standing.interval,
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
