"""The last words of a run: how far each trial came, where its files are, and what to type next."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from rlexp.tuning.display.leaderboard import leaderboard_lines
from rlexp.tuning.figures import count, decimal, duration, one_line
from rlexp.tuning.run_record import RunRecord, Status, TrialRecord
from rlexp.tuning.search.record import BEST_FILE
from rlexp.tuning.search.standings import Standings

_HEADER: Final = ("status", "iter", "env steps", "time", "reward", "best", "trial")


def summary_lines(run: RunRecord, run_directory: Path, standings: Standings | None = None) -> list[str]:
    """Return the summary as plain lines; a trial's directory stands last in its line, so nothing has to be cut.

    Of a sweep, the configurations by rank.
    """
    shown = _as_typed(run_directory)
    if standings is not None:
        heading = f"{shown}: {run.status}, by {standings.search.metric} ({standings.search.mode})"
        return [heading, *leaderboard_lines(standings), "", *_next_of_sweep(run, shown, standings)]
    rows = [_HEADER, *(_cells(trial) for trial in run.trials)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER) - 1)]
    errors = [_error_line(trial, shown) for trial in run.trials if trial.error is not None]
    return [f"{shown}: {run.status}", *(_line(row, widths) for row in rows), *errors, "", *_next_steps(run, shown)]


def _cells(trial: TrialRecord) -> tuple[str, ...]:
    return (
        trial.status,
        count(trial.iterations),
        count(trial.timesteps_total),
        duration(trial.time_total_s),
        decimal(trial.episode_reward_mean),
        decimal(trial.best_episode_reward_mean),
        trial.directory,
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    status, *numbers, trial = cells
    aligned = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
    return "  ".join([status.ljust(widths[0]), *aligned, trial])


def _error_line(trial: TrialRecord, run_directory: Path) -> str:
    assert trial.error is not None
    where = f" (traceback: {run_directory / trial.error.traceback})" if trial.error.traceback else ""
    return f"{trial.name}: {one_line(trial.error.summary)}{where}"


def _next_steps(run: RunRecord, run_directory: Path) -> list[str]:
    directory = shlex.quote(str(run_directory))
    steps = []
    if any(trial.status in (Status.STOPPED, Status.ERROR) for trial in run.trials):
        steps.append(f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    steps.append(f"tensorboard --logdir {directory}")
    return _numbered(steps)


def _next_of_sweep(run: RunRecord, run_directory: Path, standings: Standings) -> list[str]:
    directory = shlex.quote(str(run_directory))
    steps = [f"rlexp compare {directory}", f"rlexp tensorboard {directory}"]
    if standings.best() is not None:
        steps.insert(0, f"rlexp run {directory}/{BEST_FILE}")
    if run.status is Status.STOPPED:
        steps.insert(0, f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    return _numbered(steps)


def _numbered(steps: list[str]) -> list[str]:
    return [f"{'next:' if number == 0 else '':5} {step}" for number, step in enumerate(steps)]


def _as_typed(directory: Path) -> Path:
    """Return ``directory`` as it would be typed here: relative where it lies below the working directory."""
    return directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
