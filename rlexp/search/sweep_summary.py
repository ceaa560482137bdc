"""The summary of a sweep: how many configurations ended early, what that saved, and when the best was found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rlexp.runs.record import Status
from rlexp.search.ranking import TrialStanding
from rlexp.search.standings import Standings


@dataclass(frozen=True)
class SweepSummary:
    """The summary, by the names that ``sweep.json`` has."""

    configurations: int
    """How many began."""
    ended_early: int
    """How many of them the scheduler ended."""
    env_steps: int
    """Of all trials."""
    env_steps_saved: int | None
    """An estimate: how many more there would be if the trials that the scheduler ended had run to their stop.

    None where no trial ended that way, or where it is not known how long it would have run.
    """
    time_s: float
    """Training time, the sum over all trials: of trials that run side by side each counts."""
    time_saved_s: float | None
    """The time that these steps would have taken, at the speed that each trial had."""
    best_configuration: int | None
    """The number of the configuration of rank 1; None if no configuration has a score."""
    best_found_after_s: float | None
    """For how long the sweep had run when that configuration ended; None if it has not."""
    best_found_after_env_steps: int | None
    """How many env steps all trials had taken then."""


def summary_of(standings: Standings) -> SweepSummary:
    """Return the summary of a sweep, at its end or while it runs."""
    trials, best = standings.trials(), standings.best()
    found = None if best is None else standings.ends.get(best.configuration)
    saved = list(_saved(trials))
    return SweepSummary(
        configurations=len(standings.ranked()),
        ended_early=sum(each.status is Status.PRUNED for each in standings.ranked()),
        env_steps=standings.env_steps,
        env_steps_saved=round(sum(steps for steps, _ in saved)) if saved else None,
        time_s=sum(trial.time_total_s for trial in trials),
        time_saved_s=sum(seconds for _, seconds in saved) if saved else None,
        best_configuration=None if best is None else best.configuration,
        best_found_after_s=None if found is None else found.elapsed_s,
        best_found_after_env_steps=None if found is None else found.env_steps,
    )


def _saved(trials: Sequence[TrialStanding]) -> Iterator[tuple[float, float]]:
    """Yield the steps and seconds that each pruned trial was short of its stop."""
    usual = _usual_steps(trials)
    for trial in trials:
        steps = trial.trial.experiment.stop.get("timesteps_total", usual)
        if trial.status is Status.PRUNED and trial.timesteps_total and steps is not None:
            missing = max(steps - trial.timesteps_total, 0.0)
            yield missing, missing * trial.time_total_s / trial.timesteps_total


def _usual_steps(trials: Iterable[TrialStanding]) -> float | None:
    """Return the mean env steps of completed trials."""
    completed = [trial.timesteps_total for trial in trials if trial.status is Status.TERMINATED]
    return float(np.mean(completed)) if completed else None
