"""``sweep.json`` as comparisons and reports need it: ranks and scores, configurations, domains of the searched keys.

The file may come from anyone: nothing in it is trusted, and what is missing or wrong in it is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rlexp.compare.group import Group
from rlexp.compare.run_listing import TrialFolder, number, read_mapping
from rlexp.config.keys.search import SCHEDULERS
from rlexp.config.space.domains import Domain, Listed, Normal, Number, Range
from rlexp.config.space.samplers import GRID, SAMPLERS, MalformedError, read_sampler
from rlexp.config.translation import node_of
from rlexp.config.yaml.nodes import Node, Place
from rlexp.errors import Notice
from rlexp.files import to_json
from rlexp.runs.directories import as_typed
from rlexp.runs.record import Status
from rlexp.search.ranking import CONFIRMATION_FOLDER, SWEEP_FILE, Tier
from rlexp.text import count, duration, exact, percent


@dataclass(frozen=True)
class SweepEnd:
    """Where a configuration ended early."""

    at: float
    of: float | None
    """The ``stop`` in the same unit, if it has one."""
    unit: str
    """``timesteps_total``, ``training_iteration`` or ``time_total_s``."""
    value: float
    rank_1_value: float | None
    """Of the configuration of rank 1 at the same time, if it has one."""


@dataclass(frozen=True)
class SweepRanking:
    """Ranks, scores and early ends, by the names of the trials' directories."""

    metric: str
    lower_is_better: bool
    ranks: Mapping[str, int]
    """Of each trial's configuration, from 0, the best."""
    scores: Mapping[str, float]
    """Of the trials of configurations that completed."""
    ends: Mapping[str, SweepEnd]
    """Of the trials of configurations that ended early."""
    tiers: Mapping[str, str]
    """Of each trial's configuration, by its name in ``sweep.json``."""

    def rank(self, group: Group) -> float:
        """Return the rank of a group's configuration; infinite where the file does not have it yet."""
        return min((self.ranks[trial.name] for trial in group.trials if trial.name in self.ranks), default=math.inf)

    def first_tier(self, trials: Sequence[TrialFolder]) -> list[TrialFolder]:
        """Return those trials that are in the same tier as the one of the best rank."""
        best = min(trials, key=lambda trial: self.ranks.get(trial.name, math.inf))
        return [trial for trial in trials if self.tiers.get(trial.name) == self.tiers.get(best.name)]

    def end(self, group: Group) -> SweepEnd | None:
        """Return where a group's configuration ended early; None where it did not."""
        return next((self.ends[trial.name] for trial in group.trials if trial.name in self.ends), None)


def read_sweep_ranking(run: Path) -> SweepRanking | None:
    """Return the ranking of the sweep at ``run``; None where that is no sweep."""
    content = read_mapping(run / SWEEP_FILE)
    search, configurations = content.get("search"), content.get("configurations")
    if not isinstance(search, dict) or not isinstance(configurations, list):
        return None
    ranks: dict[str, int] = {}
    scores: dict[str, float] = {}
    ends: dict[str, SweepEnd] = {}
    tiers: dict[str, str] = {}
    for rank, configuration in enumerate(each for each in configurations if isinstance(each, dict)):
        end = _end(configuration.get("ended_early"))
        for trial in _trials(configuration):
            name, score = str(trial.get("name")), number(trial.get("score"))
            ranks[name], tiers[name] = rank, str(configuration.get("tier"))
            if score is not None and tiers[name] == Tier.COMPLETED.name.lower():
                scores[name] = score
            if end is not None:
                ends[name] = end
    return SweepRanking(str(search.get("metric")), search.get("mode") == "min", ranks, scores, ends, tiers)


def without_confirmation(groups: Sequence[Group], run: Path) -> tuple[list[Group], tuple[Notice, ...]]:
    """Return the groups of the sweep at ``run`` without the trials of its confirmation, and a notice that says so."""
    confirmation = read_sweep_ranking(run / CONFIRMATION_FOLDER)
    if confirmation is None:
        return list(groups), ()
    table = as_typed(run) / CONFIRMATION_FOLDER / "trials.csv"
    notice = Notice(
        str(as_typed(run)), f"the trials that confirm its best configurations are left out; {table} has them"
    )
    kept = (tuple(trial for trial in group.trials if trial.name not in confirmation.ranks) for group in groups)
    pairs = zip(groups, kept, strict=True)
    return [Group(group.name, trials) for group, trials in pairs if trials], (notice,)


def _trials(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    trials = configuration.get("trials")
    return [trial for trial in trials if isinstance(trial, dict)] if isinstance(trials, list) else []


def _end(content: Any) -> SweepEnd | None:
    if not isinstance(content, dict):
        return None
    at, value = number(content.get("at")), number(content.get("value"))
    if at is None or value is None:
        return None
    of, rank_1 = number(content.get("of")), number(content.get("rank_1_value"))
    return SweepEnd(at, of, str(content.get("unit")), value, rank_1)


_PLACE: Final = Place(SWEEP_FILE)
_NODE: Final = Node(None, _PLACE, _PLACE)
_COSTS: Final = (
    ("env_steps", "env_steps_saved", "env steps", count),
    ("time_s", "time_saved_s", "of training in all trials", duration),
)
"""Key, key of what early stopping saved, unit and format of each cost in ``summary``."""


class RecordedOutcome(StrEnum):
    """How a configuration ended, as reports name it."""

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
    score: float | None
    """Of a configuration that completed, else None: the scores of others are from fewer steps."""
    last_value: float | None
    """Of a configuration that did not complete: the metric at the rung where it ended, or over its last steps."""
    ended_at: str | None = None
    """The rung where it ended early, in words."""

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
    """In the order of the ranking, the best first."""
    summary: Mapping[str, Any] = field(default_factory=dict)

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
    search, listed = _mapping(content.get("search")), content.get("configurations")
    configurations = tuple(_configurations(listed if isinstance(listed, list) else []))
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


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _configurations(listed: Sequence[Any]) -> Iterator[Configuration]:
    for content in listed:
        if not isinstance(content, dict) or not isinstance(content.get("point"), dict):
            continue
        score, early = number(content.get("score")), _mapping(content.get("ended_early"))
        outcome = _outcome(content.get("status"), score)
        completed = outcome is RecordedOutcome.COMPLETED
        at, at_rung = number(early.get("at")), number(early.get("value"))
        last_value = score if at_rung is None else at_rung
        yield Configuration(
            number=int(number(content.get("configuration")) or 0),
            point=content["point"],
            outcome=outcome,
            score=score if completed else None,
            last_value=None if completed or outcome is RecordedOutcome.FAILED else last_value,
            ended_at=None if at is None else f"{exact(at)} {early.get('unit', '')}".strip(),
        )


def _outcome(status: Any, score: float | None) -> RecordedOutcome:
    if status == Status.ERROR:
        return RecordedOutcome.FAILED
    if status == Status.PRUNED:
        return RecordedOutcome.ENDED_EARLY
    return (
        RecordedOutcome.COMPLETED if status == Status.TERMINATED and score is not None else RecordedOutcome.UNFINISHED
    )


def _domain(data: Any, values: Sequence[Any]) -> Listed | Range:
    """Return the domain that a file describes, with the values that occur; without a description, that of the values.

    The point of a trial can have other spellings than its file, and values outside of a range after a change by hand.
    """
    domain = _read_domain(data)
    numbers = [value for value in values if number(value) is not None]
    if isinstance(domain, Listed) or len(numbers) < len(values):
        return _listed(domain.values if isinstance(domain, Listed) else (), values)
    return _range(domain, min(numbers), max(numbers))


def _read_domain(data: Any) -> Domain | None:
    """Return the domain that ``{sampler: arguments}`` means, None if it means none."""
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
