"""``--json``: everything that happens as one JSON object per line on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.display.leaderboard import standings_as_json
from rlexp.display.quiet import QuietDisplay
from rlexp.json_file import to_json
from rlexp.runs.run_record import RunRecord, Status


class JsonDisplay(QuietDisplay):
    """Prints events: ``start``, ``trial_start``, ``result``, ``trial_end``, ``note``, ``stopping`` and ``end``.

    Phases are no events: a program needs to know none.
    """

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Print ``start`` with the run directory and the names of the trials."""
        super().start(run_directory, trials)
        self._print("start", directory=run_directory, trials=[trial.name for trial in trials])

    def on_trial_start(self, trial: Trial) -> None:
        """Print ``trial_start``."""
        self._print("trial_start", trial=trial.name)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Print ``result`` with the row as it stands in ``result.json``."""
        self._print("result", trial=trial.name, result=row)

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Print ``note`` with the trial, or null, and what happened."""
        self._print("note", trial=trial.name if trial else None, text=text)

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Print ``trial_end`` with the status and the message or null."""
        self._print("trial_end", trial=trial.name, status=status, message=message)

    def tick(self) -> None:
        """Print ``stopping``, once, when the run was asked to end."""
        if self._stop_requested:
            self._stop_requested = False
            self._print("stopping")

    def finish(self, run: RunRecord) -> None:
        """Print ``end`` with the run as it stands in ``run.json``, and the configurations of a sweep as they stand."""
        sweep = {} if self._standings is None else {"configurations": standings_as_json(self._standings)}
        self._print("end", directory=self._run_directory, run=asdict(run), **sweep)

    def _print(self, event: str, **fields: Any) -> None:
        print(to_json({"event": event, **fields}), file=self._stdout, flush=True)
