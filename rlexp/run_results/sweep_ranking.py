"""The ranking of a sweep as ``sweep.json`` has it; the file may come from anyone, so nothing in it is trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlexp.errors import Notice
from rlexp.run_results.group import Group
from rlexp.run_results.trial_folder import TrialFolder, number, read_mapping
from rlexp.runs.directories import as_typed
from rlexp.search.ranking import CONFIRMATION_FOLDER, SWEEP_FILE, Tier


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
