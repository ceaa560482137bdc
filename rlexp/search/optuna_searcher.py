"""OptunaSearcher: a searcher that lets a sampler of Optuna choose each point from the outcomes so far."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlexp.config.space.domains import Domain, Listed, Range
from rlexp.config.variants.sweep import Point, Sweep
from rlexp.errors import UsageError
from rlexp.search.outcome import Outcome, OutcomeStatus

if TYPE_CHECKING:
    import optuna


class OptunaSearcher:
    """``optuna``: tree-structured Parzen estimators, seeded; points being tried count as bad ones meanwhile.

    The study is in memory. That of a resumed sweep has the same points and values, but not the state of the sampler's
    generator: what it suggests next is as good as what would have come, and not the same.
    """

    def __init__(self, sweep: Sweep) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sweep = sweep
        self._study = optuna.create_study(sampler=self._sampler(), direction="maximize")
        self._domains: Mapping[str, Domain] = {
            key: axis.domain for axis, key in zip(sweep.space.axes, sweep.space.keys, strict=True)
        }
        self._left = sweep.search.num_samples
        self._asked: dict[int, optuna.Trial] = {}

    def suggest(self, configuration: int) -> Point | None:
        return self._ask(configuration) if self._left else None

    def restore(self, configuration: int, point: Point) -> None:
        """Add a point to the study as one that is being tried; raises KeyError or ValueError where it does not fit."""
        self._study.enqueue_trial({key: _parameter(domain, point[key]) for key, domain in self._domains.items()})
        self._ask(configuration)  # gets the point that was enqueued
        # With the first seed of the study, the next draws would repeat its first points.
        self._study.sampler = self._sampler("resumed", configuration + 1)

    def record(self, configuration: int, outcome: Outcome) -> None:
        """Pass the outcome to the study; a failure as pruned before its first value, which is worse than any value.

        Optuna ignores failures and NaN: it would continue to suggest points that diverge.
        """
        from optuna.trial import TrialState

        trial = self._asked.pop(configuration)
        if outcome.status is OutcomeStatus.FINISHED and outcome.value is not None:
            self._study.tell(trial, outcome.value)
            return
        if outcome.status is OutcomeStatus.PRUNED and outcome.value is not None:
            trial.report(outcome.value, outcome.time)
        self._study.tell(trial, state=TrialState.PRUNED)

    def _ask(self, configuration: int) -> Point:
        self._left -= 1
        trial = self._study.ask()
        self._asked[configuration] = trial
        return {key: _suggested(trial, key, domain) for key, domain in self._domains.items()}

    def _sampler(self, *stream: str | int) -> optuna.samplers.BaseSampler:
        import optuna

        seed = self._sweep.rng("optuna", *stream).getrandbits(31)
        startup = self._sweep.search.optuna.n_startup_trials
        return optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)


def require_sweep_extra(sweep: Sweep) -> None:
    """Raise UsageError where a sweep wants Optuna and it is not installed."""
    if sweep.searcher == "optuna" and importlib.util.find_spec("optuna") is None:
        raise UsageError("searcher optuna needs Optuna, which is not installed", "pip install 'rlexp[sweep]'")


def _parameter(domain: Domain, value: Any) -> Any:
    """Return what Optuna knows a value as: its place in a list, or itself."""
    return list(domain.values).index(value) if isinstance(domain, Listed) else value


def _suggested(trial: optuna.Trial, key: str, domain: Domain) -> Any:
    if isinstance(domain, Listed):
        return domain.values[trial.suggest_categorical(key, range(len(domain.values)))]
    assert isinstance(domain, Range)  # others were refused when the file was read
    if domain.step is None:
        return domain.limited(trial.suggest_float(key, domain.low, domain.high, log=domain.is_log))
    if isinstance(domain.step, int) and isinstance(domain.low, int) and isinstance(domain.high, int):
        step = 1 if domain.is_log else domain.step
        return domain.limited(trial.suggest_int(key, domain.low, domain.high, step=step, log=domain.is_log))
    return domain.limited(trial.suggest_float(key, domain.low, domain.high, step=domain.step))
