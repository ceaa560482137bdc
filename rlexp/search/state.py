"""SearchState: the knowledge of a search from its events, also restored from its journal."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlexp.config.keys.search import TimeAttribute
from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Point, Sweep
from rlexp.errors import ConfigError
from rlexp.runs.record import RecordedError, Status, known_number
from rlexp.search.ranking import EndedEarly
from rlexp.search.record import Event, damaged, read_events, study_member
from rlexp.search.searchers import Searcher, make_searcher
from rlexp.search.shared_study import StudyMember
from rlexp.search.standings import Standings
from rlexp.search.trial_scheduler import CONTINUE, Exploit, Judgement, Report, Verdict, make_trial_scheduler
from rlexp.search.trial_source import Outcome, OutcomeStatus

OVER: Final = frozenset({Status.TERMINATED, Status.PRUNED, Status.ERROR})
"""The statuses of trials that have ended for good, also in a resumed sweep."""


class SearchState:
    """Owns searcher, scheduler and standings; each method records an event, and touches no file.

    ``Search`` calls them while trials run, and writes each event to a journal. ``restored`` makes the same calls from
    the journal, so that a sweep that was killed continues with the same state.
    """

    def __init__(self, sweep: Sweep, searcher: Searcher) -> None:
        search = sweep.search
        self.sweep = sweep
        self.searcher = searcher
        self.standings = Standings(search, sweep.number_of_configurations)
        self.scheduler = make_trial_scheduler(sweep)
        self.sign = -1.0 if search.mode == "min" else 1.0
        """Factor of the metric, so that more is better."""
        self.configurations = 0
        """Number of configurations that the searcher has suggested."""
        self.waiting: deque[Trial] = deque()
        """Trials that have not begun, or not since the sweep was resumed, the next one first."""
        self.running: set[str] = set()
        self.paused: set[str] = set()
        self.points: dict[str, Point] = {}
        """The current point of each trial."""
        self.pruned: dict[str, str] = {}
        """The trials that the scheduler stopped, and why."""
        self._configurations: dict[str, int] = {}
        """The number of each trial's configuration."""
        self._progress_at: dict[str, dict[TimeAttribute, float]] = {}
        """The progress of its trial at each checkpoint of a milestone."""

    def configured(self, point: Point, trials: Sequence[Trial]) -> None:
        """Record the next configuration and its trials."""
        self.scheduler.configured([trial.name for trial in trials])
        self.waiting.extend(trials)
        self.points |= {trial.name: point for trial in trials}
        self._configurations |= dict.fromkeys((trial.name for trial in trials), self.configurations)
        self.configurations += 1

    def refused(self, why: str) -> None:
        """Record that the point of the next configuration is invalid, which counts as a failure."""
        self.standings.refused[self.configurations] = why
        self.searcher.record(self.configurations, Outcome(OutcomeStatus.FAILED, None))
        self.configurations += 1
        self.scheduler.configured([])

    def exhausted(self) -> None:
        """Record that the searcher has no other point, so there are only the present configurations."""
        self.standings.number_of_configurations = self.configurations

    @property
    def is_exhausted(self) -> bool:
        """Whether the searcher has suggested all configurations."""
        return self.configurations >= self.standings.number_of_configurations

    def begun(self, trial: Trial) -> None:
        """Record that a trial begins, or continues."""
        self._leave_queue(trial)
        self.paused.discard(trial.name)
        self.running.add(trial.name)
        self.standings.begin(self._configurations[trial.name], trial)

    def reported(
        self,
        trial: Trial,
        row: Mapping[str, Any],
        is_last: bool,
        checkpoint: str | None,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> Judgement:
        """Record a flat row; return the scheduler's judgement; it does not judge last rows.

        ``checkpoint`` is a milestone's, relative to the run.
        """
        self.standings.on_result(trial, row)
        if checkpoint is not None:
            self._progress_at[checkpoint] = self.standings.of(trial).progress
        value = known_number(row.get(self.sweep.search.metric))
        report = Report(
            trial=trial.name,
            time=float(row[self.sweep.search.time_attr]),
            value=math.nan if value is None else self.sign * value,
            point=self.points[trial.name],
            checkpoint=checkpoint,
            others_wait=others_wait,
            is_running=lambda name: name in self.running,
        )
        if is_last:
            self.scheduler.record_last(report)
            return CONTINUE
        return self._noted(trial.name, self.scheduler.judge(report))

    def judge_waiting(self, name: str) -> Judgement:
        """Return the scheduler's judgement of a trial that is paused or has not begun."""
        return self._noted(name, self.scheduler.judge_paused(name))

    def paused_by_scheduler(self, trial: Trial) -> None:
        """Record that a trial's process ends for a while."""
        self.running.discard(trial.name)
        self.paused.add(trial.name)

    def exploited(self, exploit: Exploit, changed: Trial) -> None:
        """Record that a trial continues as ``changed`` from another one's checkpoint."""
        self.scheduler.exploited(exploit)
        self.points[exploit.trial] = exploit.after
        self.waiting = deque(changed if each.name == changed.name else each for each in self.waiting)
        self.standings.on_exploit(changed, exploit.donor, self._progress_at[exploit.checkpoint])

    def ended(self, trial: Trial, status: Status, error: RecordedError | None) -> None:
        """Record that a trial ended; the searcher gets the outcome of a configuration without remaining trials.

        The trial may not have begun, if another seed of its configuration failed first.
        """
        self._leave_queue(trial)
        self.standings.begin(self._configurations[trial.name], trial)
        self.running.discard(trial.name)
        self.paused.discard(trial.name)
        if status in OVER:
            self.scheduler.ended(trial.name, failed=status is Status.ERROR)
        self.standings.on_end(trial, status, error)
        self._record_outcome(self._configurations[trial.name])

    def unfinished(self) -> list[Trial]:
        """Return the trials that have begun and not ended, in the order in which they began."""
        return [standing.trial for standing in self.standings.trials() if standing.status not in OVER]

    def requeue(self) -> None:
        """Record that nothing runs any more: unfinished trials begin again, before any new one."""
        unfinished = self.unfinished()
        self.waiting.extendleft(reversed(unfinished))
        self.running.clear()
        self.paused.clear()
        for trial in unfinished:
            self.standings.on_status(trial, Status.PENDING)

    def summary(self) -> dict[str, Any]:
        """Return the state of the scheduler for ``sweep.json``."""
        return {"early_stopping": [], "exploits": [], **self.scheduler.state()}

    def _noted(self, name: str, judgement: Judgement) -> Judgement:
        if judgement.verdict is Verdict.STOP:
            self.pruned[name] = judgement.reason or self.sweep.search.scheduler
            if not math.isnan(judgement.value):
                ended = EndedEarly(judgement.at, self.sign * judgement.value)
                self.standings.on_early_end(self._configurations[name], ended)
        return judgement

    def _leave_queue(self, trial: Trial) -> None:
        self.waiting = deque(each for each in self.waiting if each.name != trial.name)

    def _record_outcome(self, configuration: int) -> None:
        standing = self.standings.of_configuration(configuration)
        is_over = all(trial.status in OVER for trial in standing.trials)
        if len(standing.trials) < self.sweep.search.num_seeds or not is_over:
            return
        if standing.score is None:
            self.searcher.record(configuration, Outcome(OutcomeStatus.FAILED, None))
            return
        ended = standing.trials[0].ended_early
        if ended is not None:
            self.searcher.record(configuration, Outcome(OutcomeStatus.PRUNED, self.sign * ended.value, ended.at))
            return
        status = OutcomeStatus.FINISHED if standing.status is Status.TERMINATED else OutcomeStatus.PRUNED
        steps = min(trial.timesteps_total for trial in standing.trials)
        self.searcher.record(configuration, Outcome(status, self.sign * standing.score, steps))


@dataclass(frozen=True)
class Restored:
    """A sweep restored from its journal."""

    state: SearchState
    """The state after the last event; trials that ran then still count as running."""
    elapsed_s: float
    """Seconds that the sweep ran."""
    exploited: tuple[tuple[Trial, str], ...]
    """Trials with their new keys, and the checkpoint (relative to the run) from which each is to continue, if they have
    not begun since."""


def restored(sweep: Sweep, run_directory: Path) -> Restored:
    """Return the state of a sweep whose axes are in the order of the journal's heading.

    Raises ResumeError if the journal is missing or damaged, or does not fit the sweep.
    """
    reader = _JournalReader(sweep, study_member(run_directory))
    for line, event in read_events(run_directory):
        try:
            reader.apply(event)
        except (LookupError, TypeError, ValueError, AttributeError, ConfigError) as error:
            raise damaged(run_directory, line, error) from error
    return Restored(reader.state, reader.elapsed_s, tuple(reader.exploited.values()))


class _JournalReader:
    """Applies the events of a journal to a new state."""

    def __init__(self, sweep: Sweep, member: StudyMember) -> None:
        self.state = SearchState(sweep, make_searcher(sweep, member))
        self.elapsed_s = 0.0
        self.exploited: dict[str, tuple[Trial, str]] = {}
        self._sweep = sweep
        self._trials: dict[str, Trial] = {}

    def apply(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case Event.CONFIGURED:
                self._configured(event["number"], event["point"], event["refused"])
            case Event.EXHAUSTED:
                self.state.exhausted()
            case Event.BEGUN:
                self.exploited.pop(event["trial"], None)
                self.state.begun(self._trials[event["trial"]])
            case Event.REPORTED:
                if event["checkpoint"] is not None:
                    _refuse_elsewhere(event["checkpoint"])
                self.state.reported(self._trials[event["trial"]], event["row"], event["is_last"], event["checkpoint"])
            case Event.EXPLOITED:
                self._exploited(Exploit(**event["exploit"]))
            case Event.NOT_EXPLOITED:
                self.state.scheduler.not_exploited(event["trial"])
            case Event.ENDED:
                self.state.standings.elapsed_s = float(event["elapsed_s"])
                self._ended(event["trial"], Status(event["status"]), event["error"])
            case other:
                raise ValueError(f"there is no event {other!r}")
        self.elapsed_s = float(event["elapsed_s"])

    def _configured(self, number: int, point: Mapping[str, Any], refused: str | None) -> None:
        if number != self.state.configurations:
            raise ValueError(f"expected configuration {self.state.configurations}, found {number}")
        self.state.searcher.restore(number, point)
        if refused is not None:
            self.state.refused(refused)
            return
        trials = self._sweep.trials(number, point)
        self._trials |= {trial.name: trial for trial in trials}
        self.state.configured(self._sweep.current_point(trials[0], point), trials)

    def _exploited(self, exploit: Exploit) -> None:
        _refuse_elsewhere(exploit.checkpoint)
        changed = self._sweep.changed(self._trials[exploit.trial], exploit.after)
        self._trials[exploit.trial] = changed
        self.exploited[exploit.trial] = changed, exploit.checkpoint
        self.state.exploited(replace(exploit, after=self._sweep.current_point(changed, exploit.after)), changed)

    def _ended(self, name: str, status: Status, error: Mapping[str, Any] | None) -> None:
        if status is Status.PRUNED and name not in self.state.pruned:  # while it waited, which has no event
            self.state.judge_waiting(name)
        self.state.ended(self._trials[name], status, None if error is None else RecordedError(**error))


def _refuse_elsewhere(checkpoint: str) -> None:
    """Raise ValueError for a path that would lead out of the run, as a journal may come from anywhere."""
    parts = Path(checkpoint).parts
    if len(parts) != 2 or ".." in parts or Path(checkpoint).is_absolute():
        raise ValueError(f"{checkpoint!r} is not a checkpoint of a trial")
