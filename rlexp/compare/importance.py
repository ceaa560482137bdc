"""Importance: which searched keys set the best configurations of a sweep apart, by PED-ANOVA of Optuna."""

from __future__ import annotations

import importlib.util
import inspect
import math
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rlexp.compare.sweep import Configuration, RecordedOutcome, SweepResults
from rlexp.config.domains import Listed, Range
from rlexp.files import to_json
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    import optuna

METHOD: Final = "PED-ANOVA"
SIGNIFICANT: Final = 0.05
"""A key with a higher ``chance`` may be as important as a key without any effect."""
_BEST_SHARE: Final = 0.2
"""The share of configurations that count as the best. Optuna's default, 0.1, finds less in the few that a sweep has: in
40 configurations, a key with two values that decides most of the score was significant in 7 of 20 cases, and in 19 with
0.2."""
_USUAL_BEST: Final = 5
"""The number of best configurations if ``_BEST_SHARE`` gives fewer, as fewer say little."""
_FEWEST_BEST: Final = 4
_FEWEST: Final = 8
_SHUFFLES: Final = 50
_SEED: Final = 0
"""Seed of the shuffles: the same sweep has the same importances."""


@dataclass(frozen=True)
class KeyImportance:
    """The importance of one key."""

    key: str
    share: float
    """Its share of the sum over all keys."""
    chance: float
    """How often (0..1) the key is at least as important after the configurations are put in a random order."""

    @property
    def is_significant(self) -> bool:
        """Whether chance alone rarely gives such an importance."""
        return self.chance <= SIGNIFICANT


@dataclass(frozen=True)
class Importance:
    """The importances of the searched keys, or why there are none."""

    keys: tuple[KeyImportance, ...] = ()
    """The most important first; without keys that Optuna cannot assess."""
    configurations: int = 0
    """Number of used configurations."""
    best: int = 0
    """Number of them that count as the best."""
    notes: tuple[str, ...] = ()
    """How it was computed, in sentences."""
    problem: str | None = None
    """Why there are none, as a sentence."""


def importance_of(results: SweepResults) -> Importance:
    """Return the importances of the keys of a sweep.

    PED-ANOVA (Watanabe et al. 2023, https://arxiv.org/abs/2304.10255) estimates the density of a key's values in the
    best configurations and in all. It takes the Pearson divergence of the two. It needs no scores, only which
    configurations are the best. So those that ended early or failed can be used at their place in the ranking. If they
    were left out, a key whose bad values all ended early would seem to be unimportant.
    """
    used = [each for each in results.configurations if each.outcome is not RecordedOutcome.UNFINISHED]
    places = _places(used)
    best = _number_of_best(places)
    problem = _problem(results, used, best)
    if problem is not None:
        return Importance(problem=problem)
    divergences, shuffled = _divergences(results.domains, used, places, best)
    total = sum(divergences.values())
    keys = [
        KeyImportance(key, value / total if total else 0.0, _chance(value, [each.get(key, 0.0) for each in shuffled]))
        for key, value in divergences.items()
    ]
    keys.sort(key=lambda each: (-each.share, each.chance))
    return Importance(tuple(keys), len(used), best, tuple(_notes(results, used, best, divergences.keys())))


def _places(used: Sequence[Configuration]) -> Array:
    """Return the place of each configuration [N] in the ranking, 0 for the best.

    Configurations with the same value share a place; so do all that failed.
    """
    keys = [(each.outcome, None if each.outcome is RecordedOutcome.FAILED else each.value) for each in used]
    places = [0]
    for before, after in pairwise(keys):
        places.append(places[-1] + (before != after))
    return np.array(places[: len(used)], dtype=float)


def _number_of_best(places: Array) -> int:
    """Return how many configurations count as the best: never one that shares the last place."""
    if not len(places):
        return 0
    wanted = max(_USUAL_BEST, math.ceil(len(places) * _BEST_SHARE))
    return min(wanted, len(places) // 2, int((places < places.max()).sum()))


def _problem(results: SweepResults, used: Sequence[Configuration], best: int) -> str | None:
    """Return why there can be no importances."""
    if results.changes_keys:
        return (
            f"No importance is computed: {results.scheduler} changes the keys of a trial while it trains, so that its "
            "score does not belong to one value of a key."
        )
    if len(used) < _FEWEST:
        return f"No importance is computed: it needs {_FEWEST} configurations that ended, and there are {len(used)}."
    if best < _FEWEST_BEST:
        return (
            f"No importance is computed: it needs {_FEWEST_BEST} configurations that are better than the worst, and "
            f"there are {best}."
        )
    if importlib.util.find_spec("optuna") is None:
        return "No importance is computed: it needs Optuna, which is not installed. pip install 'rlexp[sweep]'"
    return None


def _divergences(
    domains: Mapping[str, Listed | Range], used: Sequence[Configuration], places: Array, best: int
) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Return the divergence of each key, and the divergences for random orders of the configurations."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    rng = np.random.default_rng(_SEED)
    orders = [places, *(rng.permutation(places) for _ in range(_SHUFFLES))]
    # Half a configuration less, as the number of the best is rounded up.
    quantile = (best - 0.5) / len(used)
    parameters = inspect.signature(PedAnovaImportanceEvaluator).parameters
    name = "target_quantile" if "target_quantile" in parameters else "baseline_quantile"
    options: dict[str, Any] = {name: quantile}
    with warnings.catch_warnings():  # notes about what is experimental, and that lower targets are better
        warnings.simplefilter("ignore")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study()
        study.add_trials([_trial(each, domains) for each in used])
        evaluator = PedAnovaImportanceEvaluator(**options)
        found = [
            get_param_importances(study, evaluator=evaluator, target=_target(order), normalize=False)
            for order in orders
        ]
    return found[0], found[1:]


def _target(places: Array) -> Callable[[optuna.trial.FrozenTrial], float]:
    return lambda trial: float(places[trial.number])


def _trial(configuration: Configuration, domains: Mapping[str, Listed | Range]) -> optuna.trial.FrozenTrial:
    from optuna.trial import create_trial

    known = {key: domain for key, domain in domains.items() if key in configuration.point}
    return create_trial(
        params={key: _parameter(configuration.point[key], domain) for key, domain in known.items()},
        distributions={key: _distribution(domain) for key, domain in known.items()},
        value=0.0,  # the targets of the evaluator are the places
    )


def _parameter(value: Any, domain: Listed | Range) -> Any:
    """Return the index of a value in its list, or a number unchanged."""
    return [to_json(each) for each in domain.values].index(to_json(value)) if isinstance(domain, Listed) else value


def _distribution(domain: Listed | Range) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Listed):
        return CategoricalDistribution(range(len(domain.values)))
    low, high, step = domain.low, domain.high, domain.step
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        return IntDistribution(low, high, log=domain.is_log, step=1 if domain.is_log else step)
    return FloatDistribution(low, high, log=domain.is_log)


def _chance(value: float, by_chance: Sequence[float]) -> float:
    """Return how often chance gives at least ``value``; the order of the sweep itself counts as one more."""
    return (1 + sum(other >= value for other in by_chance)) / (1 + len(by_chance))


def _notes(results: SweepResults, used: Sequence[Configuration], best: int, keys: Container[str]) -> Iterator[str]:
    import optuna

    yield (
        f"{METHOD} (Optuna {optuna.__version__}) compares the values of a key in the best {best} of {len(used)} "
        "configurations with its values in all of them."
    )
    others = [
        f"{results.number_of(outcome)} that {verb}"
        for outcome, verb in ((RecordedOutcome.ENDED_EARLY, "ended early"), (RecordedOutcome.FAILED, "failed"))
        if results.number_of(outcome)
    ]
    if others:
        yield (
            f"The {len(used)} include {' and '.join(others)}, at their places in the ranking: without them a key "
            "whose bad values all ended early or failed would seem to be unimportant."
        )
    if unfinished := results.number_of(RecordedOutcome.UNFINISHED):
        yield f"{unfinished} unfinished are left out."
    yield (
        f"The chance of a key: how often it is at least as important in {_SHUFFLES} random orders of the "
        f"configurations. Above {SIGNIFICANT * 100:g} % its importance may be due to chance."
    )
    if missing := [key for key in results.domains if key not in keys]:
        yield f"Not assessed, as only some configurations have them: {', '.join(missing)}."
