"""Population based training: a trial scheduler under which the worst trials copy the best ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rlexp.config.variants.sweep import Point, Sweep
from rlexp.search.trial_scheduler import (
    CONTINUE,
    PAUSE,
    Exploit,
    Judgement,
    Milestones,
    Report,
    TrialScheduler,
    Verdict,
)


class Population(TrialScheduler):
    """Owns the last milestone of each trial (Jaderberg et al., "Population Based Training of Neural Networks", 2017).

    Truncation selection: a trial in the worst quantile copies a random one of the best quantile, weights and keys, and
    each key is changed by a factor or drawn again. Where not all fit on the machine, trials take turns: one pauses at
    a milestone if others wait.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.milestones = Milestones(sweep.search.time_attr, sweep.stop_interval, writes_checkpoint=True)
        self._sweep = sweep
        self._size = sweep.number_of_configurations
        self._members: dict[str, Report] = {}
        self._exploits: list[Exploit] = []

    @classmethod
    def of(cls, sweep: Sweep) -> Population:
        return cls(sweep)

    def judge(self, report: Report) -> Judgement:
        if report.checkpoint is None:
            return CONTINUE
        if not math.isnan(report.value):
            self._members[report.trial] = report
            exploit = self._exploit_of(report)
            if exploit is not None:
                return Judgement(Verdict.EXPLOIT, exploit=exploit)
        return PAUSE if report.others_wait() else CONTINUE

    def exploited(self, exploit: Exploit) -> None:
        """Record an exploit; the trial keeps its own value here until it reaches its next milestone."""
        self._exploits.append(exploit)

    def ended(self, trial: str, failed: bool) -> None:
        """Drop a trial that failed: no other waits for it or copies it."""
        if failed:
            self._members.pop(trial, None)
            self._size -= 1

    def state(self) -> Mapping[str, Any]:
        return {"exploits": [asdict(exploit) for exploit in self._exploits]}

    def _exploit_of(self, report: Report) -> Exploit | None:
        """Return the exploit that a trial is due for at a milestone, after all trials have reached a first one."""
        if len(self._members) < self._size or self._size < 2:
            return None
        ranked = sorted(self._members, key=lambda name: self._members[name].value)
        count = max(round(self._size * self._sweep.search.pbt.quantile_fraction), 1)
        worst, best = ranked[:count], ranked[-count:]
        if report.trial not in worst or self._members[best[0]].value <= report.value:
            return None
        rng = self._sweep.rng("exploit", len(self._exploits))
        donor = self._members[best[rng.randrange(len(best))]]
        assert donor.checkpoint is not None
        return Exploit(
            trial=report.trial,
            donor=donor.trial,
            time=report.time,
            value=report.value,
            donor_value=donor.value,
            checkpoint=donor.checkpoint,
            before=report.point,
            after=self._explored(donor.point),
        )

    def _explored(self, point: Point) -> Point:
        pbt = self._sweep.search.pbt
        rng = self._sweep.rng("explore", len(self._exploits))
        explored = {}
        for axis, key in zip(self._sweep.space.axes, self._sweep.space.keys, strict=True):
            draws_anew = rng.random() < pbt.resample_probability
            explored[key] = (
                axis.domain.draw(rng) if draws_anew else axis.domain.moved(point[key], pbt.perturbation_factor, rng)
            )
        return explored
