"""``sweep.json`` for comparisons and reports: configurations by rank, their trials, domains of searched keys.

The file may come from anyone: nothing in it is trusted, and missing or wrong parts are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_args

from rlexp.compare.group import Group
from rlexp.compare.run_listing import TrialFolder, number, read_mapping
from rlexp.config.domains import GRID, SAMPLERS, Domain, Listed, MalformedError, Normal, Number, Range, read_sampler
from rlexp.config.keys.search import SCHEDULERS, TimeAttribute
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import Node, Place
from rlexp.errors import Notice
from rlexp.files import to_json
from rlexp.runs.directories import as_typed
from rlexp.runs.record import Status
from rlexp.search.ranking import CONFIRMATION_FOLDER, SWEEP_FILE, EndComparison
from rlexp.text import count, duration, percent

_PLACE: Final = Place(SWEEP_FILE)
_NODE: Final = Node(None, _PLACE, _PLACE)
_COSTS: Final = (
    ("env_steps", "env_steps_saved", "env steps", count),
    ("time_s", "time_saved_s", "of training in all trials", duration),
)
"""Key, key of what early stopping saved, unit and format of each cost in ``summary``."""


class RecordedOutcome(StrEnum):
    """The end of a configuration, as reports name it."""

    COMPLETED = "completed"
    ENDED_EARLY = "ended early"
    FAILED = "failed"
    UNFINISHED = "unfinished"
    """It still runs, was stopped, or has no score."""


@dataclass(frozen=True)
class Configuration:
    """One configuration of a sweep."""

    number: int
    point: Mapping[str, Any]
    """The values of its keys; some keys can be missing."""
    outcome: RecordedOutcome
    tier: str
    """Its tier, by the name in the file."""
    trials: Mapping[str, float | None]
    """Score of each trial, by the name of its directory."""
    score: float | None
    """Score of a completed configuration, else None: scores of others are from fewer steps."""
    last_value: float | None
    """Last value of a configuration that did not complete: the metric at its early end, or over its last steps."""
    ended_early: EndComparison | None

    @property
    def value(self) -> float | None:
        """The score, or the last value of a configuration that did not complete."""
        return self.last_value if self.score is None else self.score


@dataclass(frozen=True, eq=False)
class SweepResults:
    """The configurations of a sweep, and what it searched."""

    metric: str
    lower_is_better: bool
    scheduler: str
    domains: Mapping[str, Listed | Range]
    """The values of each searched key. A list has the values that occur; a range includes all values that occur."""
    configurations: tuple[Configuration, ...]
    """Configurations in the order of the ranking, the best first."""
    summary: Mapping[str, Any]

    @cached_property
    def ranks(self) -> Mapping[str, int]:
        """The rank of each trial's configuration, from 0, the best, by the name of the trial's directory."""
        return {name: rank for rank, each in enumerate(self.configurations) for name in each.trials}

    def rank(self, group: Group) -> float:
        """Return the rank of a group's configuration; infinite if the file does not have it yet."""
        return min((self.ranks[trial.name] for trial in group.trials if trial.name in self.ranks), default=math.inf)

    def configuration(self, trial: TrialFolder) -> Configuration | None:
        """Return a trial's configuration; None if the file does not have it yet."""
        rank = self.ranks.get(trial.name)
        return None if rank is None else self.configurations[rank]

    def score(self, trial: TrialFolder) -> float | None:
        """Return the score of a trial of a configuration that completed; None for others."""
        found = self.configuration(trial)
        return None if found is None or found.score is None else found.trials[trial.name]

    def first_tier(self, trials: Sequence[TrialFolder]) -> list[TrialFolder]:
        """Return the trials in the same tier as the trial of the best rank."""
        tiers = {trial: found.tier for trial in trials if (found := self.configuration(trial)) is not None}
        best = min(trials, key=lambda trial: self.ranks.get(trial.name, math.inf))
        return [trial for trial in trials if tiers.get(trial) == tiers.get(best)]

    def end(self, group: Group) -> EndComparison | None:
        """Return where a group's configuration ended early; None if it did not."""
        found = (self.configuration(trial) for trial in group.trials)
        return next((each.ended_early for each in found if each is not None and each.ended_early is not None), None)

    @property
    def best(self) -> Configuration | None:
        """The best configuration that completed."""
        return next((each for each in self.configurations if each.outcome is RecordedOutcome.COMPLETED), None)

    @property
    def changes_keys(self) -> bool:
        """Whether the scheduler changes the keys of a trial while it trains."""
        options = SCHEDULERS.get(self.scheduler)
        return options is not None and options.COPIES_TRIALS

    def number_of(self, outcome: RecordedOutcome) -> int:
        """Return how many configurations have an outcome."""
        return sum(each.outcome is outcome for each in self.configurations)

    def facts(self) -> Iterator[str]:
        """Yield sentences: how many configurations there are, what they cost, and when the best was found."""
        counts = Counter(each.outcome for each in self.configurations)
        listed = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in RecordedOutcome if counts[outcome])
        all_of_them = len(self.configurations)
        yield f"{all_of_them:,} configuration{'s' if all_of_them > 1 else ''}: {listed}."
        known = {key: number(value) for key, value in self.summary.items()}
        for key, saved, unit, text in _COSTS:
            spent = known.get(key)
            if spent is not None:
                yield f"{text(spent)} {unit}{_saved(spent, known.get(saved), text)}."
        if known.get("best_found_after_s") is not None:
            yield f"The best was found after {duration(known['best_found_after_s'])}."


def read_sweep_results(path: Path) -> SweepResults | None:
    """Return the results of the sweep in a directory; None if it has no ``sweep.json`` with configurations."""
    content = read_mapping(path / SWEEP_FILE)
    search = _mapping(content.get("search"))
    configurations = tuple(_configurations(content.get("configurations")))
    if not configurations:
        return None
    space = _mapping(content.get("space"))
    keys = dict.fromkeys([*space, *(key for each in configurations for key in each.point)])
    values = {key: [each.point[key] for each in configurations if key in each.point] for key in keys}
    return SweepResults(
        metric=str(search.get("metric")),
        lower_is_better=search.get("mode") == "min",
        scheduler=str(search.get("scheduler")),
        domains={key: _domain(space.get(key), found) for key, found in values.items() if found},
        configurations=configurations,
        summary=_mapping(content.get("summary")),
    )


def without_confirmation(groups: Sequence[Group], run: Path) -> tuple[list[Group], tuple[Notice, ...]]:
    """Return the groups of the sweep at ``run`` without the trials of its confirmation, and a notice that says so."""
    confirmation = read_sweep_results(run / CONFIRMATION_FOLDER)
    if confirmation is None:
        return list(groups), ()
    table = as_typed(run) / CONFIRMATION_FOLDER / "trials.csv"
    notice = Notice(
        str(as_typed(run)), f"the trials that confirm its best configurations are left out; {table} has them"
    )
    kept = (tuple(trial for trial in group.trials if trial.name not in confirmation.ranks) for group in groups)
    pairs = zip(groups, kept, strict=True)
    return [Group(group.name, trials) for group, trials in pairs if trials], (notice,)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _configurations(listed: Any) -> Iterator[Configuration]:
    for content in _mappings(listed):
        if not isinstance(content.get("point"), dict):
            continue
        score, ended = number(content.get("score")), _end(_mapping(content.get("ended_early")))
        outcome = _outcome(content.get("status"), score)
        completed = outcome is RecordedOutcome.COMPLETED
        last_value = score if ended is None else ended.value
        yield Configuration(
            number=int(number(content.get("configuration")) or 0),
            point=content["point"],
            outcome=outcome,
            tier=str(content.get("tier")),
            trials={str(each.get("name")): number(each.get("score")) for each in _mappings(content.get("trials"))},
            score=score if completed else None,
            last_value=None if completed or outcome is RecordedOutcome.FAILED else last_value,
            ended_early=ended,
        )


def _end(content: Mapping[str, Any]) -> EndComparison | None:
    at, value = number(content.get("at")), number(content.get("value"))
    unit = next((each for each in get_args(TimeAttribute) if each == content.get("unit")), None)
    if at is None or value is None or unit is None:
        return None
    return EndComparison(at, number(content.get("of")), unit, value, number(content.get("rank_1_value")))


def _outcome(status: Any, score: float | None) -> RecordedOutcome:
    if status == Status.ERROR:
        return RecordedOutcome.FAILED
    if status == Status.PRUNED:
        return RecordedOutcome.ENDED_EARLY
    return (
        RecordedOutcome.COMPLETED if status == Status.TERMINATED and score is not None else RecordedOutcome.UNFINISHED
    )


def _domain(data: Any, values: Sequence[Any]) -> Listed | Range:
    """Return the domain that a file describes, with the values that occur; without a description, the values' own.

    A trial's point can have other spellings than its file, and values outside of a range after a change by hand.
    """
    domain = _read_domain(data)
    numbers = [value for value in values if number(value) is not None]
    if isinstance(domain, Listed) or len(numbers) < len(values):
        return _listed(domain.values if isinstance(domain, Listed) else (), values)
    return _range(domain, min(numbers), max(numbers))


def _read_domain(data: Any) -> Domain | None:
    """Return the domain of ``{sampler: arguments}``; None if it is not one."""
    [(name, arguments)] = data.items() if isinstance(data, dict) and len(data) == 1 else [("", None)]
    if name == GRID and isinstance(arguments, list):
        return Listed(GRID, arguments)
    try:
        return read_sampler(name, node_of(arguments, _NODE)).domain if name in SAMPLERS else None
    except MalformedError:
        return None


def _listed(order: Sequence[Any], values: Sequence[Any]) -> Listed:
    occurring = {to_json(value): value for value in values}
    first = [text for text in map(to_json, order) if text in occurring]
    return Listed("choice", [occurring[text] for text in dict.fromkeys([*first, *occurring])])


def _range(domain: Domain | None, lowest: Number, highest: Number) -> Range:
    if isinstance(domain, Normal):
        domain = Range("randn", (domain.mean, domain.deviation), *domain.ends)
    if not isinstance(domain, Range):
        return Range("uniform", (lowest, highest), lowest, highest)
    low, high = min(domain.low, lowest), max(domain.high, highest)
    is_inside = (low, high) == (domain.low, domain.high)
    return domain if is_inside else Range("uniform", (low, high), low, high, domain.is_log and low > 0)


def _saved(spent: float, saved: float | None, text: Callable[[float], str]) -> str:
    if not saved or saved + spent <= 0:
        return ""
    return f"; about {text(saved)} ({percent(saved / (spent + saved))} of all) saved by ending configurations early"
