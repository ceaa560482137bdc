"""Population based training: a trial scheduler under which the worst trials continue from copies of the best ones.

Exploits makes a copy: another trial's checkpoint, with other keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import PurePath
from random import Random
from typing import Any

from rlexp.config.keys.trial import Trial
from rlexp.config.sweep import Point, Sweep
from rlexp.errors import CheckpointError, ConfigError
from rlexp.runs.kept_checkpoints import copy_checkpoint
from rlexp.runs.run_directory import RunDirectory
from rlexp.search.record import Event, Journal
from rlexp.search.state import SearchState
from rlexp.search.trial_scheduler import EXPLOIT, PAUSE, YIELD, Exploit, Judgement, Milestones, Report, TrialScheduler


class Exploits:
    """Carries out the exploits that the scheduler requests; ``Search`` calls it while a sweep runs."""

    def __init__(self, state: SearchState, directory: RunDirectory, journal: Journal) -> None:
        self._state = state
        self._directory = directory
        self._journal = journal

    def carry_out_idle(self) -> None:
        """Carry out exploits of trials that do not run; call it before any trial continues."""
        for name in self._state.scheduler.due():
            if name not in self._state.running:
                self.carry_out(self._state.standings.trial(name))

    def carry_out(self, trial: Trial) -> Trial | None:
        """Let a trial that is due, and whose process ends, continue from another one's checkpoint.

        Returns it with its new keys; None if nothing can be copied, and it then continues unchanged.
        """
        problem: Exception | None = None
        for exploit in self._state.scheduler.exploits(trial.name):
            try:
                return self._carried_out(trial, exploit)
            except (CheckpointError, ConfigError, OSError) as error:
                problem = problem or error
        self._journal.write(Event.NOT_EXPLOITED, trial=trial.name)
        self._state.scheduler.not_exploited(trial.name)
        self._state.standings.note(
            f"{trial.name[:5]} copies no other trial: {problem or 'the better ones have failed'}"
        )
        return None

    def _carried_out(self, trial: Trial, exploit: Exploit) -> Trial:
        donor, directory = self._directory.path / exploit.checkpoint, self._directory.trial_directory(trial)
        changed = self._state.sweep.changed(trial, exploit.after)
        copy_checkpoint(donor, directory, lambda: self._journal.write(Event.EXPLOITED, exploit=asdict(exploit)))
        self._directory.change(changed)
        self._state.exploited(exploit, changed)
        values = f"{self._state.sign * exploit.value:.4g} against {self._state.sign * exploit.donor_value:.4g}"
        self._state.standings.note(f"{exploit.trial[:5]} copies {exploit.donor[:5]}, {values}: {exploit.changes}")
        return changed


class Population(TrialScheduler):
    """Owns what trials report at each milestone (Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846).

    Truncation selection: when all trials have reached a milestone, each of the worst quantile there copies weights and
    keys of a random one of the best quantile there, and each key is moved or drawn again. Random choices depend on the
    trial and the milestone only, not on the order of reports.

    With ``synch``, a trial pauses at a milestone until all have reached it; else only if others wait for a place to
    run.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._milestones = Milestones(sweep.search.time_attr, sweep.stop_interval, writes_checkpoint=True)
        self.milestones = self._milestones
        self._sweep = sweep
        self._size = sweep.number_of_configurations
        self._reached: dict[str, float] = {}
        """The highest milestone of each trial that reported at one; infinite after it completed."""
        self._reached_by_all = 0.0
        self._reports: dict[float, dict[str, Report]] = {}
        """Reports by milestone and trial, until all have reached it; without reports that have no value."""
        self._checkpoints: dict[str, dict[str, Report]] = {}
        """Reports at milestones by trial and path of the checkpoint, the newest last."""
        self._due: dict[str, tuple[Report, Sequence[Report]]] = {}
        """The report of each trial that is to exploit, and the donors' reports at the same milestone."""
        self._exploits: list[Exploit] = []

    @classmethod
    def of(cls, sweep: Sweep) -> Population:
        return cls(sweep)

    def judge(self, report: Report) -> Judgement:
        if report.trial not in self._due and report.checkpoint is not None:
            self._record(report, report.checkpoint)
        if report.trial in self._due:
            return EXPLOIT
        if report.checkpoint is not None and report.others_wait():
            return PAUSE
        return self.judge_paused(report.trial)

    def judge_paused(self, trial: str) -> Judgement:
        waits = self._sweep.search.pbt.synch and self._reached.get(trial, 0.0) > self._reached_by_all
        return PAUSE if waits else YIELD

    def due(self) -> Collection[str]:
        return tuple(self._due)

    def exploits(self, trial: str) -> Iterator[Exploit]:
        """Yield the exploits of the checkpoints of the milestone, then of the donors' newest ones.

        A donor's checkpoint may be gone: ``keep_checkpoints_num`` deletes it, and the donor's own exploits replace it.
        """
        report, donors = self._due[trial]
        donors = self._rng("exploit", report).sample(donors, len(donors))
        for donor in donors:
            if donor.checkpoint in self._checkpoints.get(donor.trial, {}):
                yield self._exploit(report, donor, donor)
        for donor in donors:
            newest = next(reversed(self._checkpoints.get(donor.trial, {}).values()), donor)
            if newest is not donor:
                yield self._exploit(report, donor, newest)

    def exploited(self, exploit: Exploit) -> None:
        """Record that a trial continues from a copy, which replaces its own checkpoints of that or a later time."""
        self._exploits.append(exploit)
        self._due.pop(exploit.trial, None)
        self._reached[exploit.trial] = self._milestone(self._checkpoints[exploit.donor][exploit.checkpoint])
        copy, own = PurePath(exploit.checkpoint).name, self._checkpoints.get(exploit.trial, {})
        self._checkpoints[exploit.trial] = {path: own[path] for path in own if PurePath(path).name < copy}
        self._compare()

    def not_exploited(self, trial: str) -> None:
        self._due.pop(trial, None)

    def ended(self, trial: str, failed: bool) -> None:
        """Record that a trial has ended, so that no other waits for it. A failed trial is not copied any more."""
        self._due.pop(trial, None)
        self._reached[trial] = math.inf
        if failed:
            del self._reached[trial]
            self._size -= 1
            self._checkpoints.pop(trial, None)
            self._forget(trial, 0.0)
        self._compare()

    def configured(self, trials: Sequence[str]) -> None:
        if not trials:
            self._size -= 1
            self._compare()

    def state(self) -> Mapping[str, Any]:
        return {"exploits": [asdict(exploit) for exploit in self._exploits]}

    def _record(self, report: Report, checkpoint: str) -> None:
        at = self._milestone(report)
        if at <= self._reached.get(report.trial, 0.0):
            return
        self._reached[report.trial] = at
        self._checkpoints.setdefault(report.trial, {})[checkpoint] = report
        if not math.isnan(report.value):
            self._reports.setdefault(at, {})[report.trial] = report
        self._compare()

    def _compare(self) -> None:
        """Compare trials at each milestone that all have reached since the last call."""
        while True:
            reached = self._reached.values() if len(self._reached) >= self._size else ()
            self._reached_by_all = min(reached, default=0.0)
            first = min(self._reports, default=math.inf)
            if first > self._reached_by_all or math.isinf(first):
                return
            self._select(first, list(self._reports.pop(first).values()))

    def _select(self, at: float, reports: Sequence[Report]) -> None:
        """Let the worst quantile exploit; their progress since that milestone is dropped."""
        ranked = sorted(reports, key=lambda report: (report.value, report.trial))
        count = quantile_size(len(ranked), self._sweep.search.pbt.quantile_fraction)
        for report in ranked[:count]:
            donors = [donor for donor in ranked[-count:] if donor.value > report.value]
            if donors and not math.isinf(self._reached[report.trial]):
                self._due[report.trial] = report, donors
                self._reached[report.trial] = at
                self._forget(report.trial, at)

    def _forget(self, trial: str, after: float) -> None:
        """Drop a trial's reports at milestones after ``after``."""
        for at, reports in list(self._reports.items()):
            if at > after:
                reports.pop(trial, None)
            if not reports:
                del self._reports[at]

    def _exploit(self, report: Report, donor: Report, copied: Report) -> Exploit:
        return Exploit(
            trial=report.trial,
            donor=donor.trial,
            time=report.time,
            value=report.value,
            donor_value=donor.value,
            checkpoint=str(copied.checkpoint),
            before=report.point,
            after=self._explored(copied.point, self._rng("explore", report)),
        )

    def _explored(self, point: Point, rng: Random) -> Point:
        pbt = self._sweep.search.pbt
        explored = {}
        for key, domain in self._sweep.space.domains.items():
            draws_anew = rng.random() < pbt.resample_probability
            explored[key] = domain.draw(rng) if draws_anew else domain.moved(point[key], pbt.perturbation_factor, rng)
        return explored

    def _milestone(self, report: Report) -> float:
        return self._milestones.passed_by(report.time)

    def _rng(self, stream: str, report: Report) -> Random:
        return self._sweep.rng(stream, report.trial, repr(self._milestone(report)))


def quantile_size(number: int, fraction: float) -> int:
    """Return the size of the worst and best quantile of ``number`` trials: rounded up as in Tune, at most a half."""
    return min(math.ceil(number * fraction), number // 2)
