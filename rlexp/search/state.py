"""SearchState: what a search knows, by what has happened so far."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rlexp.config.keys.trial import Trial
from rlexp.config.variants.search_space import Point
from rlexp.config.variants.sweep import Sweep
from rlexp.runs.recorders import flatten
from rlexp.runs.run_record import Status, TrialError, known_number
from rlexp.search.searchers import Fate, Outcome, Searcher
from rlexp.search.standings import Standings
from rlexp.search.trial_scheduler import CONTINUE, Exploit, Judgement, Report, Verdict, make_trial_scheduler

OVER: Final = frozenset({Status.TERMINATED, Status.PRUNED, Status.ERROR})
"""How a trial has ended for good, also in a sweep that is resumed."""


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
        """The metric times this: more is better."""
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
        self._steps_at: dict[str, int] = {}
        """Env steps at each checkpoint of a milestone."""

    def configured(self, point: Point, trials: Sequence[Trial]) -> None:
        """Record the next configuration and its trials."""
        self.configurations += 1
        self.waiting.extend(trials)
        self.points |= {trial.name: point for trial in trials}

    def refused(self, why: str) -> None:
        """Record that the point of the next configuration is invalid, which counts as a failure."""
        self.standings.refused[self.configurations] = why
        self.searcher.tell(self.configurations, Outcome(Fate.FAILED, None))
        self.configurations += 1

    def begun(self, trial: Trial) -> None:
        """Record that a trial begins, or continues."""
        self._leave_queue(trial)
        self.paused.discard(trial.name)
        self.running.add(trial.name)
        self.standings.begin(self._configuration(trial), trial)

    def reported(
        self,
        trial: Trial,
        row: Mapping[str, Any],
        is_last: bool,
        checkpoint: str | None,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> Judgement:
        """Record a row; return what the scheduler says, which judges no trial by its last row.

        ``checkpoint``, relative to the run, is that of a milestone.
        """
        self.standings.on_result(trial, row)
        if is_last:
            return CONTINUE
        flat = flatten(row)
        if checkpoint is not None:
            self._steps_at[checkpoint] = flat["timesteps_total"]
        value = known_number(flat.get(self.sweep.search.metric))
        report = Report(
            trial=trial.name,
            time=float(flat[self.sweep.search.time_attr]),
            value=math.nan if value is None else self.sign * value,
            point=self.points[trial.name],
            checkpoint=checkpoint,
            others_wait=others_wait,
        )
        return self._noted(trial.name, self.scheduler.judge(report))

    def judge_waiting(self, name: str) -> Verdict:
        """Return what the scheduler says about a trial that is paused or has not begun."""
        return self._noted(name, self.scheduler.judge_paused(name)).verdict

    def paused_by_scheduler(self, trial: Trial) -> None:
        """Record that a trial's process ends for a while."""
        self.running.discard(trial.name)
        self.paused.add(trial.name)

    def exploited(self, exploit: Exploit, changed: Trial) -> None:
        """Record that a trial continues as ``changed`` from another one's checkpoint."""
        self.scheduler.exploited(exploit)
        self.points[exploit.trial] = exploit.after
        self.standings.on_exploit(changed, exploit.donor, self._steps_at[exploit.checkpoint])

    def ended(self, trial: Trial, status: Status, error: TrialError | None) -> None:
        """Record that a trial ended; the searcher gets the outcome of a configuration that has no trial left."""
        self._leave_queue(trial)
        self.running.discard(trial.name)
        self.paused.discard(trial.name)
        if status in OVER:
            self.scheduler.ended(trial.name, failed=status is Status.ERROR)
        self.standings.on_end(trial, status, error)
        self._tell(self._configuration(trial))

    def unfinished(self) -> list[Trial]:
        """Return the trials that have begun and are not over, in the order in which they began."""
        return [standing.trial for standing in self.standings.trials() if standing.status not in OVER]

    def requeue(self) -> None:
        """Record that nothing runs any more: unfinished trials begin again, before any new one."""
        unfinished = self.unfinished()
        self.waiting.extendleft(reversed(unfinished))
        self.running.clear()
        self.paused.clear()
        for trial in unfinished:
            self.standings.of(trial).status = Status.PENDING

    def summary(self) -> dict[str, Any]:
        """Return the state of the scheduler, as ``sweep.json`` has it."""
        return {"early_stopping": [], "exploits": [], **self.scheduler.state()}

    def _noted(self, name: str, judgement: Judgement) -> Judgement:
        if judgement.verdict is Verdict.STOP:
            self.pruned[name] = judgement.reason or self.sweep.search.scheduler
        return judgement

    def _leave_queue(self, trial: Trial) -> None:
        self.waiting = deque(each for each in self.waiting if each.name != trial.name)

    def _configuration(self, trial: Trial) -> int:
        return trial.index // self.sweep.search.num_seeds

    def _tell(self, configuration: int) -> None:
        standing = self.standings.of_configuration(configuration)
        is_over = all(trial.status in OVER for trial in standing.trials)
        if len(standing.trials) < self.sweep.search.num_seeds or not is_over:
            return
        if standing.score is None:
            self.searcher.tell(configuration, Outcome(Fate.FAILED, None))
            return
        fate = Fate.FINISHED if standing.status is Status.TERMINATED else Fate.PRUNED
        steps = min(trial.timesteps_total for trial in standing.trials)
        self.searcher.tell(configuration, Outcome(fate, self.sign * standing.score, steps))
