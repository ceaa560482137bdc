"""Population based training as a pure rule: who takes over from whom, and with which keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlexp.config.variants.sweep import Point, Sweep


@dataclass(frozen=True)
class Member:
    """What a trial was at its last milestone."""

    time: float
    """Its own, in what the population counts time in."""
    value: float
    """Of which more is better."""
    checkpoint: str
    """Relative to the run."""
    point: Point
    steps: int
    """Env steps until then."""


@dataclass(frozen=True)
class Exploit:
    """One trial took over from another."""

    trial: str
    donor: str
    time: float
    """The taker's, when it gave up its own training."""
    value: float
    donor_value: float
    checkpoint: str
    """The donor's, relative to the run."""
    before: Point
    """The taker's keys."""
    after: Point
    """The donor's, moved."""

    @property
    def changes(self) -> str:
        """The keys that are other ones now."""
        pairs = ((key, self.before[key], self.after[key]) for key in self.after)
        return ", ".join(f"{key} {old} → {new}" for key, old, new in pairs if old != new) or "same keys"


class Population:
    """Owns what is known of the members (Jaderberg et al., "Population Based Training of Neural Networks", 2017).

    Truncation selection: a member in the worst quantile takes over a random one of the best quantile, weights and
    keys, and each key is moved or drawn anew.
    """

    def __init__(self, sweep: Sweep, size: int) -> None:
        self.exploits: list[Exploit] = []
        """Takeovers that have happened; a taker keeps its own value here until it has trained to a milestone again."""
        self._sweep = sweep
        self._size = size
        self._members: dict[str, Member] = {}

    def lost(self, trial: str) -> None:
        """Take over that a trial failed: nobody waits for it or learns from it."""
        self._members.pop(trial, None)
        self._size -= 1

    def take(self, trial: str, member: Member) -> None:
        """Take over what a trial is at a milestone."""
        self._members[trial] = member

    def due(self, trial: str, checkpoint: str) -> Exploit | None:
        """Return the takeover that a trial is due for at the milestone of a checkpoint, after all had a first one."""
        member = self._members.get(trial)
        if member is None or member.checkpoint != checkpoint or len(self._members) < self._size or self._size < 2:
            return None
        ranked = sorted(self._members, key=lambda name: self._members[name].value)
        count = max(round(self._size * self._sweep.search.pbt.quantile_fraction), 1)
        worst, best = ranked[:count], ranked[-count:]
        if trial not in worst or self._members[best[0]].value <= member.value:
            return None
        rng = self._sweep.rng("exploit", len(self.exploits))
        name = best[rng.randrange(len(best))]
        donor = self._members[name]
        return Exploit(
            trial=trial,
            donor=name,
            time=member.time,
            value=member.value,
            donor_value=donor.value,
            checkpoint=donor.checkpoint,
            before=member.point,
            after=self._explored(donor.point),
        )

    def member(self, trial: str) -> Member:
        """Return a member as it was at its last milestone."""
        return self._members[trial]

    def state(self) -> list[Mapping[str, Any]]:
        """Return the history, as JSON has it."""
        return [asdict(exploit) for exploit in self.exploits]

    def _explored(self, point: Point) -> Point:
        pbt = self._sweep.search.pbt
        rng = self._sweep.rng("explore", len(self.exploits))
        explored = {}
        for axis, key in zip(self._sweep.space.axes, self._sweep.space.keys, strict=True):
            draws_anew = rng.random() < pbt.resample_probability
            factor = pbt.perturbation_factor if rng.random() < 0.5 else 1 / pbt.perturbation_factor
            explored[key] = axis.domain.draw(rng) if draws_anew else axis.domain.moved(point[key], factor, rng)
        return explored
