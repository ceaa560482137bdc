"""``-q``: nothing while the run lasts, the summary at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

from rlexp.config.keys.trial import Trial
from rlexp.display.summary import summary_lines
from rlexp.line_width import columns_of
from rlexp.runs.run_record import RunRecord, Status
from rlexp.search.standings import Standings

STOPPING: Final = "stopping: trials save a checkpoint and end; Ctrl-C again ends them at once"


class QuietDisplay:
    """Shows the outcome only; the plain and the live display add what happens until then."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._run_directory = Path()
        self._stop_requested = False
        self._standings: Standings | None = None

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
