"""One line per report, for logs, pipes and terminals without colour."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from rlexp.config.keys.trial import Trial
from rlexp.display.quiet import STOPPING, QuietDisplay
from rlexp.display.trial_view import TrialView, goal_text, time_left
from rlexp.runs.record import Status
from rlexp.text import count, exact, one_line, percent, score


class PlainDisplay(QuietDisplay):
    """Prints a line on stderr for whatever happens, the summary on stdout."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        super().__init__(stdout)
        self._stderr = stderr
        self._views: dict[str, TrialView] = {}
        self._phases_said: set[tuple[str, str]] = set()
        self._stop_told = False
        self._started: set[str] = set()

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Print it; of a trial with results, only the first one after a result."""
        view = self._views.get(trial.name) if trial else None
        if trial is not None:
            self._say_start(trial)
        if view is not None and view.row:
            if view.phase is not None:
                return
            view.phase = text
        self._say_of(trial, text)
        if trial is not None:
            self._phases_said.add((trial.name, text))

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Print where the run is and how many trials it has."""
        super().start(run_directory, trials)
        self._views = {trial.name: TrialView(trial) for trial in trials}
        said = f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'}"
        if self._standings is not None:
            said = f"up to {self._standings.number_of_configurations} configurations"
        self._say(f"{said} in {run_directory}")

    def on_trial_start(self, trial: Trial) -> None:
        """Print that the trial starts."""
        self._views.setdefault(trial.name, TrialView(trial)).begin(time.monotonic())
        self._say_start(trial)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Print the row's main figures."""
        view = self._views[trial.name]
        view.add(row)
        self._say(f"{trial.name}  {report(view)}")

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Print it, unless it was printed as the phase of its trial."""
        if trial is not None and (trial.name, text) in self._phases_said:
            self._phases_said.remove((trial.name, text))
        else:
            self._say_of(trial, text)

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Print how the trial ended."""
        self._started.discard(trial.name)
        self._say(f"{trial.name} {status}{f': {one_line(message)}' if message else ''}")

    def tick(self) -> None:
        """Print once that the run was asked to end."""
        if self._stop_requested and not self._stop_told:
            self._stop_told = True
            self._say(STOPPING)

    def _say_of(self, trial: Trial | None, text: str) -> None:
        self._say(f"{trial.name}: {one_line(text)}" if trial else one_line(text))

    def _say_start(self, trial: Trial) -> None:
        """Print once that a trial starts: its process may report what it does before Tune reports that it started."""
        if trial.name not in self._started:
            self._started.add(trial.name)
            self._say(f"{trial.name} starts")

    def _say(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S} {text}", file=self._stderr, flush=True)


def report(view: TrialView) -> str:
    """Return the newest row of a trial as one line."""
    row = view.row
    parts = [
        f"iteration {count(row.get('training_iteration'))}",
        f"steps {count(row.get('timesteps_total'))}{_progress(view)}",
        f"reward {score(row.get('episode_reward_mean'))}{_goal(view)}",
        f"sampled {count(row.get('info/sample_throughput'))}/s",
        f"trained {count(row.get('info/train_throughput'))}/s",
        f"bottleneck {row.get('info/bottleneck', '-')}",
    ]
    if "info/board/actors" in row:
        actors, seats = (count(row.get(f"info/board/{name}")) for name in ("actors", "seats"))
        parts.append(f"board {actors}/{seats} actors {count(row.get('info/board/fragments_per_s'))} fragments/s")
    return "  ".join(parts)


def _progress(view: TrialView) -> str:
    progress = view.progress(time.monotonic())
    if progress is None:
        return ""
    left = time_left(progress.seconds_left, bool(view.undecided))
    return f" ({', '.join(filter(None, [f'{percent(progress.share)} of {goal_text(progress)}', left]))})"


def _goal(view: TrialView) -> str:
    goal = view.trial.experiment.stop.get("episode_reward_mean")
    return "" if goal is None else f" of {exact(goal)}"
