"""``-q``: nothing while the run lasts, the summary at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rlexp.config.keys.trial import Trial
from rlexp.display.leaderboard import standings_as_json
from rlexp.display.summary import summary_lines
from rlexp.files import to_json
from rlexp.runs.record import RunRecord, Status
from rlexp.search.standings import Standings
from rlexp.text import columns_of

STOPPING: Final = "stopping: trials save a checkpoint and end; Ctrl-C again ends them at once"


class QuietDisplay:
    """Shows the outcome only; the plain and the live display add what happens until then."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._run_directory = Path()
        self._stop_requested = False
        self._standings: Standings | None = None

    @property
    def run_directory(self) -> Path | None:
        """Where the run is; None before it has begun."""
        return None if self._run_directory == Path() else self._run_directory

    def follow(self, standings: Standings) -> None:
        """Remember the sweep."""
        self._standings = standings

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Show nothing."""

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Remember where the run is."""
        self._run_directory = run_directory

    def on_trial_start(self, trial: Trial) -> None:
        """Show nothing."""

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Show nothing."""

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Show nothing."""

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Show nothing."""

    def on_stop_request(self) -> None:
        """Remember it."""
        self._stop_requested = True

    def tick(self) -> None:
        """Show nothing."""

    def finish(self, run: RunRecord) -> None:
        """Print the summary on stdout."""
        lines = summary_lines(run, self._run_directory, self._standings, columns_of(self._stdout))
        print(*lines, sep="\n", file=self._stdout, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave nothing to restore."""


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
        if self._standings is not None and self._standings.confirmation is not None:
            sweep["confirmation"] = standings_as_json(self._standings.confirmation)
        self._print("end", directory=self._run_directory, run=asdict(run), **sweep)

    def _print(self, event: str, **fields: Any) -> None:
        print(to_json({"event": event, **fields}), file=self._stdout, flush=True)
