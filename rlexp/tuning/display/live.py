"""The live display: a picture at the foot of the terminal that is drawn again with every tick."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rlexp.config.trial import Trial
from rlexp.tuning.display.leaderboard import leaderboard
from rlexp.tuning.display.panel import picture
from rlexp.tuning.display.quiet import STOPPING, QuietDisplay
from rlexp.tuning.display.trial_view import TrialView
from rlexp.tuning.figures import duration, one_line
from rlexp.tuning.run_record import RunRecord, Status


class LiveDisplay(QuietDisplay):
    """Draws on stderr's terminal, without a thread: only the runner's calls draw, so nothing draws after ``finish``."""

    def __init__(self, stdout: TextIO, console: Console) -> None:
        super().__init__(stdout)
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._views: dict[str, TrialView] = {}
        self._started = 0.0

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Draw the first picture."""
        super().start(run_directory, trials)
        self._views = {trial.name: TrialView(trial) for trial in trials}
        self._started = time.monotonic()
        self.tick()

    def on_trial_start(self, trial: Trial) -> None:
        """Show the trial among the running ones."""
        self._views.setdefault(trial.name, TrialView(trial)).status = Status.RUNNING

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Take the row into the next picture."""
        self._views[trial.name].add(row)

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Print it above the picture."""
        who = f"{trial.name}: " if trial else ""
        self._console.print(Text.assemble(who, (one_line(text), "yellow")), soft_wrap=True)

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Print, above the picture, how the trial ended."""
        self._views[trial.name].status = status
        style = {Status.ERROR: "red", Status.PRUNED: "yellow"}.get(status, "green")
        line = Text.assemble(trial.name, " ", (status.value, style), f": {one_line(message)}" if message else "")
        self._console.print(line, soft_wrap=True)

    def tick(self) -> None:
        """Draw the picture for the terminal's present size."""
        headline = f"{self._run_directory}  {duration(time.monotonic() - self._started)}"
        if self._stop_requested:
            headline = STOPPING
        width, height = self._console.size
        # The last line stays free: a picture as high as the terminal would scroll it with every tick.
        if self._standings is not None:
            drawn = leaderboard(self._standings, headline, width, height - 1)
        else:
            drawn = picture(list(self._views.values()), headline, width, height - 1)
        self._live.update(drawn, refresh=True)

    def finish(self, run: RunRecord) -> None:
        """Take the picture away and print the summary."""
        self._live.stop()
        super().finish(run)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the terminal back: the cursor and the lines of the picture."""
        self._live.stop()
