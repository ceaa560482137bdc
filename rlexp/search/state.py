"""What a search knows, by what has happened so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rlexp.config.keys.trial import Trial
from rlexp.config.variants.sweep import Point, Sweep
from rlexp.runs.recorders import flatten
from rlexp.runs.run_record import Status, TrialError, known_number
from rlexp.search.early_stopping import Asha, EarlyStopping, MedianStopping, NeverStopping
from rlexp.search.population import Exploit, Member, Population
from rlexp.search.searchers import Fate, Outcome, Searcher
from rlexp.search.standings import Standings

OVER: Final = frozenset({Status.TERMINATED, Status.PRUNED, Status.ERROR})
"""Where a trial has no more to do, also in a sweep that is resumed."""


class SearchState:
    """Owns searcher, scheduler and standings; each method takes over what happened, and touches no file.

    ``Search`` calls them while trials run, and keeps a journal of it. ``restored`` goes through the journal with the
    very same calls, so that a sweep that was killed goes on with what it knew.
    """

    def __init__(self, sweep: Sweep, searcher: Searcher) -> None:
        search = sweep.search
        self.sweep = sweep
        self.searcher = searcher
        self.standings = Standings(search, sweep.number_of_configurations)
        self.early_stopping = make_early_stopping(sweep)
        self.population: Population | None = None
        if search.scheduler == "pbt":
            self.population = Population(sweep, sweep.number_of_configurations)
        self.sign = -1.0 if search.mode == "min" else 1.0
        """Times this, more of the metric is better."""
        self.configurations = 0
        """How many the searcher has given."""
        self.waiting: deque[Trial] = deque()
        """Trials that are to begin, the next one first."""
        self.running: set[str] = set()
        self.paused: set[str] = set()
        self.points: dict[str, Point] = {}
        """Where each trial is now."""
        self.pruned: dict[str, str] = {}
        """Why trials were ended early."""

    def configured(self, point: Point, trials: Sequence[Trial]) -> None:
        """Take over the next configuration and its trials."""
        self.configurations += 1
        self.waiting.extend(trials)
        self.points |= {trial.name: point for trial in trials}

    def refused(self, why: str) -> None:
        """Take over that no trial can have the point of the next configuration, which counts as a failure."""
        self.standings.refused[self.configurations] = why
        self.searcher.tell(self.configurations, Outcome(Fate.FAILED, None))
        self.configurations += 1

    def begun(self, trial: Trial) -> None:
        """Take over that a trial begins, or goes on."""
        if self.waiting and self.waiting[0].name == trial.name:
            self.waiting.popleft()
        self.paused.discard(trial.name)
        self.running.add(trial.name)
        self.standings.begin(self._configuration(trial), trial)

    def reported(self, trial: Trial, row: Mapping[str, Any], is_last: bool, checkpoint: str | None) -> None:
        """Take over a row; ``checkpoint``, relative to the run, is that of a milestone. None is judged by its last."""
        self.standings.on_result(trial, row)
        flat = flatten(row)
        value = known_number(flat.get(self.sweep.search.metric))
        if is_last or value is None:
            return
        at = float(flat[self.sweep.search.time_attr])
        if self.population is None:
            why = self.early_stopping.judge(trial.name, at, self.sign * value)
            if why is not None:
                self.pruned[trial.name] = why
        elif checkpoint is not None:
            point = self.points[trial.name]
            self.population.take(trial.name, Member(at, self.sign * value, checkpoint, point, flat["timesteps_total"]))

    def paused_at_milestone(self, trial: Trial) -> None:
        """Take over that a trial makes room for others."""
        self.running.discard(trial.name)
        self.paused.add(trial.name)

    def took_over(self, exploit: Exploit, changed: Trial) -> None:
        """Take over that a trial goes on as ``changed`` from another one's checkpoint."""
        assert self.population is not None
        self.population.exploits.append(exploit)
        self.points[exploit.trial] = exploit.after
        self.standings.on_takeover(changed, exploit.donor, self.population.member(exploit.donor).steps)

    def ended(self, trial: Trial, status: Status, error: TrialError | None) -> None:
        """Take over that a trial ended; the searcher hears of a configuration that has no trial left."""
        self.running.discard(trial.name)
        self.paused.discard(trial.name)
        if status is Status.ERROR and self.population is not None:
            self.population.lost(trial.name)
        self.standings.on_end(trial, status, error)
        self._tell(self._configuration(trial))

    def unfinished(self) -> list[Trial]:
        """Return the trials that have begun and are not over, in the order in which they began."""
        return [standing.trial for standing in self.standings.trials() if standing.status not in OVER]

    def requeue(self) -> None:
        """Take over that nothing runs any more: what is not over begins again, before anything that is new."""
        unfinished = self.unfinished()
        self.waiting.extendleft(reversed(unfinished))
        self.running.clear()
        self.paused.clear()
        for trial in unfinished:
            self.standings.of(trial).status = Status.PENDING

    def summary(self) -> dict[str, Any]:
        """Return what scheduler and population remember, as ``sweep.json`` has it."""
        exploits = self.population.state() if self.population else []
        return {"early_stopping": self.early_stopping.state(), "exploits": exploits}

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


def make_early_stopping(sweep: Sweep) -> EarlyStopping:
    """Return the rule that ends trials of a sweep early."""
    search = sweep.search
    if search.scheduler == "asha":
        return Asha(sweep.stop_interval, search.asha.reduction_factor)
    if search.scheduler == "median":
        return MedianStopping(sweep.stop_interval, search.median.min_samples_required)
    return NeverStopping()
