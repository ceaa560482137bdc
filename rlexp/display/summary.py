"""The summary of a run: how far each trial came and why it ended, where its files are, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rlexp.display.leaderboard import leaderboard_lines
from rlexp.runs.checkpoints import list_checkpoints
from rlexp.runs.directories import as_typed
from rlexp.runs.record import RunRecord, Status, TrialRecord
from rlexp.search.record import BEST_FILE
from rlexp.search.standings import Standings
from rlexp.text import count, duration, first_of, middle_cut, one_line, score, wrapped

_HEADER: Final = ("", "status", "iter", "env steps", "time", "reward", "best", "trial")
_LEFT_ALIGNED: Final = frozenset({0, 1})
_USUAL_METRIC: Final = "episode_reward_mean"
"""What ``rlexp compare`` takes without ``--metric``."""
_NOT_SAVED: Final = (
    "the trained policy was not saved: checkpoint_at_end is false",
    "to save it the next time: -o checkpoint_at_end=true",
)
_REPORT_FILE: Final = "report.html"
_SHORTEST_NAME: Final = 18
_VERBS: Final = {
    Status.TERMINATED: "finished",
    Status.PRUNED: "ended early",
    Status.STOPPED: "stopped",
    Status.ERROR: "failed",
}


def summary_lines(
    run: RunRecord, run_directory: Path, standings: Standings | None = None, columns: int | None = None
) -> list[str]:
    """Return the summary as plain lines; of a sweep, the configurations by rank.

    On a terminal of so many ``columns``, names of trials are shortened and sentences are broken between words.
    """
    shown = as_typed(run_directory)
    if standings is not None:
        heading = f"{shown}: {run.status}, by {standings.search.metric} ({standings.search.mode})"
        body = [heading, *leaderboard_lines(standings, columns)]
        return [*body, *_not_saved(run), "", *_next_of_sweep(run, shown, standings)]
    return [
        f"{shown}: {run.status}",
        *_table(run.trials, columns),
        *(wrapped(reason, columns, "  ") for reason in _reasons(run.trials, run_directory, shown)),
        *_best_checkpoint(run, shown),
        *_not_saved(run),
        "",
        *_next_steps(run, shown),
    ]


def _table(trials: Sequence[TrialRecord], limit: int | None) -> Iterator[str]:
    best = _best_trials(trials)
    rows = [_HEADER, *(_cells(trial, "best" if trial in best else "") for trial in trials)]
    # The first column has the mark of the best trial: there is none where no trial has one.
    first = 0 if best else 1
    columns = range(first, len(_HEADER) - 1)
    widths = {column: max(len(row[column]) for row in rows) for column in columns}
    names = [row[-1] for row in rows[1:]]
    if limit is not None:
        room = max(limit - sum(width + 2 for width in widths.values()), _SHORTEST_NAME)
        names = [middle_cut(name, room) for name in names]
    for row, name in zip(rows, (_HEADER[-1], *names), strict=True):
        cells = [
            row[column].ljust(width) if column in _LEFT_ALIGNED else row[column].rjust(width)
            for column, width in widths.items()
        ]
        yield "  ".join([*cells, name])


def _cells(trial: TrialRecord, mark: str) -> tuple[str, ...]:
    return (
        mark,
        trial.status,
        count(trial.iterations),
        count(trial.timesteps_total),
        duration(trial.time_total_s),
        score(trial.episode_reward_mean),
        score(trial.best_episode_reward_mean),
        trial.directory,
    )


def _best_trials(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trial with the highest mean reward of each environment that several trials play."""
    best = []
    for env in dict.fromkeys(trial.env for trial in trials):
        same = [trial for trial in trials if trial.env == env]
        known = [trial for trial in same if trial.best_episode_reward_mean is not None]
        if len(same) > 1 and known:
            best.append(max(known, key=lambda trial: trial.best_episode_reward_mean or 0.0))
    return best


def _reasons(trials: Sequence[TrialRecord], run_directory: Path, shown: Path) -> list[str]:
    """Return why trials ended, those with the same reason in one line."""
    names: dict[str, list[str]] = {}
    for trial in trials:
        if trial.status in _VERBS:
            names.setdefault(_reason(trial, run_directory, shown), []).append(trial.name)
    lines = []
    for reason, same in names.items():
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(reason if len(trials) == 1 else f"{same[0]}{more} {reason}")
    return first_of(lines, ", in run.json")


def _reason(trial: TrialRecord, run_directory: Path, shown: Path) -> str:
    if trial.error is not None:
        where = f" (traceback: {shown / trial.error.traceback})" if trial.error.traceback else ""
        said = f"{one_line(trial.error.summary)}{where}"
    elif trial.status is Status.STOPPED:
        said = _kept(trial, run_directory / trial.directory)
    else:
        said = one_line(trial.reason or "")
    verb = _VERBS[trial.status]
    return f"{verb}: {said}" if said else verb


def _kept(trial: TrialRecord, directory: Path) -> str:
    """Return what is left of a trial that was stopped, and from where it can be resumed."""
    if not trial.iterations:
        return "it had no result yet"
    checkpoints = list_checkpoints(directory)
    if not checkpoints:
        return f"iteration {trial.iterations}, no checkpoint: resume starts it from the beginning"
    return f"resume continues from {checkpoints[0].name}"


def _best_checkpoint(run: RunRecord, run_directory: Path) -> Iterator[str]:
    known = [trial for trial in run.trials if trial.best_checkpoint is not None]
    if known:
        best = max(known, key=lambda trial: trial.rank_of_checkpoint)
        yield f"best checkpoint: {run_directory / str(best.best_checkpoint)}"


def _not_saved(run: RunRecord) -> Iterator[str]:
    if any(trial.status is Status.TERMINATED and trial.best_checkpoint is None for trial in run.trials):
        yield from _NOT_SAVED


def _next_steps(run: RunRecord, run_directory: Path) -> list[str]:
    directory = shlex.quote(str(run_directory))
    steps = []
    if any(trial.status is Status.ERROR for trial in run.trials):
        steps.append(f"correct what failed, then: rlexp resume {directory}")
    elif any(trial.status is Status.STOPPED for trial in run.trials):
        steps.append(f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    if len(run.trials) > 1:
        steps.append(f"rlexp compare {directory}")
    steps.append(f"rlexp tensorboard {directory}")
    return _numbered(steps)


def _next_of_sweep(run: RunRecord, run_directory: Path, standings: Standings) -> list[str]:
    directory = shlex.quote(str(run_directory))
    metric = standings.search.metric
    by = "" if metric == _USUAL_METRIC else f" --metric {metric}"
    steps = [f"rlexp compare {directory}{by} --html {directory}/{_REPORT_FILE}", f"rlexp tensorboard {directory}"]
    if standings.best() is not None:
        steps.insert(0, f"rlexp run {directory}/{BEST_FILE}")
    if run.status is Status.STOPPED:
        steps.insert(0, f"rlexp resume {directory}")
    if any(trial.best_checkpoint for trial in run.trials):
        steps.append(f"rlexp evaluate {directory}")
    return _numbered(steps)


def _numbered(steps: list[str]) -> list[str]:
    return [f"{'next:' if number == 0 else '':5} {step}" for number, step in enumerate(steps)]
