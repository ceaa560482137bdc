"""Standings: the progress of a sweep's trials, while they train and at the end, and the protocol of displays.

This is not in ``ranking``, as ``rlexp compare`` imports that without the writer of TensorBoard files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from rlexp.config.keys.search import SearchConfig, TimeAttribute
from rlexp.config.keys.trial import Trial
from rlexp.runs.record import RecordedError, RunRecord, Status, known_number
from rlexp.search.ranking import (
    EndComparison,
    EndedEarly,
    Standing,
    TrialStanding,
    common_end,
    end_comparison,
    ranking,
    score_of,
    standing_of,
)


@dataclass(frozen=True)
class Moment:
    """A moment of a sweep."""

    elapsed_s: float
    """Seconds that the sweep had run, without the time between a stop and a resume."""
    env_steps: int
    """Env steps of all its trials until then."""


class Standings:
    """Owns the progress of a sweep's trials; displays read it.

    The ranking is computed again only when it is asked for after a change, and only for changed configurations.
    """

    def __init__(self, search: SearchConfig, number_of_configurations: int) -> None:
        self.search = search
        self.number_of_configurations = number_of_configurations
        """Most configurations that will be tried."""
        self.notes: list[str] = []
        """Notes between trials that were not drained, the newest last."""
        self.confirmation: Standings | None = None
        """The standings of the best configurations with other seeds, after the confirmation has begun."""
        self.refused: dict[int, str] = {}
        """Configurations that could not even begin, and why."""
        self.elapsed_s = 0.0
        """Seconds that the sweep has run, at the newest event."""
        self.env_steps = 0
        """Env steps of all trials."""
        self.ends: dict[int, Moment] = {}
        """When the last trial of each configuration ended."""
        self._by_name: dict[str, TrialStanding] = {}
        self._configurations: dict[int, list[TrialStanding]] = {}
        self._end: float | None = None
        """The env steps that all completed trials have."""
        self._ranked: list[Standing] = []
        self._ranked_end: float | None = None
        """``_end`` when ``_ranked`` was computed."""
        self._changed: set[int] = set()
        """Configurations that changed after that."""

    def begin(self, configuration: int, trial: Trial) -> None:
        """Record that a trial begins; a resumed one is known already."""
        if trial.name in self._by_name:
            return
        standing = TrialStanding(trial, configuration)
        self._by_name[trial.name] = standing
        self._configurations.setdefault(configuration, []).append(standing)
        self._changed.add(configuration)

    def of(self, trial: Trial) -> TrialStanding:
        """Return the known facts of a trial."""
        return self._by_name[trial.name]

    def trial(self, name: str) -> Trial:
        """Return a trial that has begun, with its current keys."""
        return self._by_name[name].trial

    def of_configuration(self, configuration: int) -> Standing:
        """Return a configuration's standing."""
        return standing_of(configuration, self._configurations[configuration], self._end, self.search)

    def score_of(self, trial: Trial) -> float | None:
        """Return the present score of a trial; it may change until all trials have ended."""
        return score_of(self._by_name[trial.name], self._end)

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Record a flat row; rows of later steps are removed, as the trial began again from an earlier one."""
        standing = self._by_name[trial.name]
        kept = bisect_right(standing.steps, row["timesteps_total"] - row["timesteps_this_iter"])
        del standing.steps[kept:], standing.values[kept:], standing.times[kept:]
        self.on_status(trial, Status.RUNNING)
        self.env_steps += row["timesteps_total"] - standing.timesteps_total
        standing.iterations = row["training_iteration"]
        standing.timesteps_total = row["timesteps_total"]
        standing.time_total_s = row["time_total_s"]
        value = known_number(row.get(self.search.metric))
        if value is not None:
            standing.steps.append(row["timesteps_total"])
            standing.values.append(value)
            standing.times.append(row[self.search.time_attr])

    def on_status(self, trial: Trial, status: Status) -> None:
        """Record the present activity of a trial."""
        standing = self._by_name[trial.name]
        before, standing.status = standing.status, status
        self._changed.add(standing.configuration)
        if before is Status.TERMINATED and status is not before:
            self._end = common_end(self._by_name.values())
        elif status is Status.TERMINATED and standing.steps:
            self._end = standing.steps[-1] if self._end is None else min(self._end, standing.steps[-1])

    def note(self, text: str) -> None:
        """Record an event between trials."""
        self.notes.append(text)

    def drain_notes(self) -> list[str]:
        """Return the notes since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def on_exploit(self, trial: Trial, donor: str, progress: Mapping[TimeAttribute, float]) -> None:
        """Record that a trial continues with other keys from another trial, with that one's progress."""
        standing, other = self._by_name[trial.name], self._by_name[donor]
        standing.trial = trial
        standing.timesteps_total = int(progress["timesteps_total"])
        standing.iterations = int(progress["training_iteration"])
        standing.time_total_s = progress["time_total_s"]
        count = sum(step <= standing.timesteps_total for step in other.steps)
        standing.steps, standing.values = other.steps[:count], other.values[:count]
        standing.times = other.times[:count]
        self._changed.add(standing.configuration)

    def on_early_end(self, configuration: int, ended: EndedEarly) -> None:
        """Record where the scheduler ended a configuration."""
        for standing in self._configurations[configuration]:
            standing.ended_early = ended
        self._changed.add(configuration)

    def on_end(self, trial: Trial, status: Status, error: RecordedError | None) -> None:
        """Record that a trial ended."""
        standing = self._by_name[trial.name]
        standing.error = error.summary if error else None
        self.on_status(trial, status)
        self.ends[standing.configuration] = Moment(self.elapsed_s, self.env_steps)

    def ranked(self) -> Sequence[Standing]:
        """Return the configurations, the best first."""
        if self._end != self._ranked_end:
            self._changed.update(self._configurations)
        if self._changed:
            kept = [standing for standing in self._ranked if standing.configuration not in self._changed]
            changed = [self.of_configuration(number) for number in sorted(self._changed)]
            self._ranked, self._ranked_end = ranking([*kept, *changed], self.search), self._end
            self._changed.clear()
        return self._ranked

    def end_comparison(self, standing: Standing) -> EndComparison | None:
        """Return a configuration beside the configuration of rank 1 if it ended early; otherwise None."""
        return end_comparison(standing, self.ranked()[0], self.search.time_attr)

    def best(self) -> Standing | None:
        """Return the best configuration; None if there is no score yet."""
        ranked = self.ranked()
        return ranked[0] if ranked and ranked[0].score is not None else None

    def trials(self) -> list[TrialStanding]:
        """Return all trials in the order in which they began."""
        return list(self._by_name.values())

    def failures(self) -> list[TrialStanding]:
        """Return the trials that failed."""
        return [trial for trial in self._by_name.values() if trial.status is Status.ERROR]


@dataclass(frozen=True)
class SweepSummary:
    """The summary, by the names in ``sweep.json``."""

    configurations: int
    """Number of configurations that began."""
    ended_early: int
    """Number of them that the scheduler ended."""
    env_steps: int
    """Env steps of all trials."""
    env_steps_saved: int | None
    """An estimate of the further steps if the trials that the scheduler ended had run to their stop.

    None if no trial ended that way, or if it is not known how long it would have run.
    """
    time_s: float
    """Training time, summed over all trials; trials side by side are all counted."""
    time_saved_s: float | None
    """The time that these steps would have taken, at the speed that each trial had."""
    best_configuration: int | None
    """The number of the configuration of rank 1; None if no configuration has a score."""
    best_found_after_s: float | None
    """Seconds that the sweep had run when that configuration ended; None if it has not."""
    best_found_after_env_steps: int | None
    """Env steps that all trials had taken then."""


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
    """Yield the steps and seconds that each pruned trial lacked to its stop, or to the mean of completed ones."""
    completed = [trial.timesteps_total for trial in trials if trial.status is Status.TERMINATED]
    usual = float(np.mean(completed)) if completed else None
    for trial in trials:
        steps = trial.trial.experiment.stop.get("timesteps_total", usual)
        if trial.status is Status.PRUNED and trial.timesteps_total and steps is not None:
            missing = max(steps - trial.timesteps_total, 0.0)
            yield missing, missing * trial.time_total_s / trial.timesteps_total


class Display(Protocol):
    """Shows a run: progress on stderr, its outcome on stdout. A context manager that restores the terminal."""

    def follow(self, standings: Standings) -> None:
        """Show the standings of a sweep; called before ``start``, which then has no trials yet."""

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Show what a trial's process does between two results, or what the command itself does.

        Also called before ``start``, and at the end.
        """

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Show that the run begins."""

    def on_trial_start(self, trial: Trial) -> None:
        """Show that the trial has its resources and begins, or begins again."""

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Show a result row: flat except the dict ``info``."""

    def on_note(self, trial: Trial | None, text: str) -> None:
        """Show an event: of the trial, such as a replaced worker, or between trials."""

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        """Show that the trial ended, with a sentence if there is more to say."""

    def on_stop_request(self) -> None:
        """Note that the run was asked to save and end; the next tick shows it.

        Called from a signal handler, which may interrupt a write to the same stream, so it must not write.
        """

    def tick(self) -> None:
        """Redraw; the runner calls this some five times a second."""

    def finish(self, run: RunRecord) -> None:
        """Show the outcome of the run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
