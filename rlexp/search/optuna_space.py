"""Points of a space as parameters of an Optuna trial: numbers as they are, values of lists by what a reader sees."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rlexp.config.space.distinct import identity
from rlexp.config.space.domains import Domain, Listed, Range
from rlexp.config.variants.sweep import Point

if TYPE_CHECKING:
    import optuna

Label = None | bool | int | float | str
_REHEARSALS: Final = 64


def suggested_point(trial: optuna.trial.BaseTrial, domains: Mapping[str, Domain]) -> Point:
    """Return the point that a trial's sampler chooses."""
    return {key: _suggested(trial, key, domain) for key, domain in domains.items()}


def known_point(parameters: Mapping[str, Any], domains: Mapping[str, Domain]) -> Point | None:
    """Return the point that a trial has, None for parameters that are missing or are not in the space."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a parameter is not in its range
        try:
            return suggested_point(optuna.trial.FixedTrial(dict(parameters)), domains)
        except (KeyError, TypeError, ValueError):
            return None


def rehearsed_distributions(domains: Mapping[str, Domain]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return what each parameter can be; where a value decides which others there are, of enough points to see all."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for _ in range(_REHEARSALS):
        trial = study.ask()
        suggested_point(trial, domains)
        found |= trial.distributions
    return found


def parameters_of(point: Point, domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Return a point as Optuna has it; raises KeyError for a key or a value that is not in the space."""
    return {key: _parameter(domain, point[key]) for key, domain in domains.items()}


def _parameter(domain: Domain, value: Any) -> Any:
    if not isinstance(domain, Listed):
        return value
    return {identity(known): label for label, known in _labelled(domain).items()}[identity(value)]


def _suggested(trial: optuna.trial.BaseTrial, key: str, domain: Domain) -> Any:
    if isinstance(domain, Listed):
        values = _labelled(domain)
        return values[trial.suggest_categorical(key, list(values))]
    assert isinstance(domain, Range)  # others were refused when the file was read
    if domain.step is None:
        return domain.limited(trial.suggest_float(key, domain.low, domain.high, log=domain.is_log))
    if isinstance(domain.step, int) and isinstance(domain.low, int) and isinstance(domain.high, int):
        step = 1 if domain.is_log else domain.step
        return domain.limited(trial.suggest_int(key, domain.low, domain.high, step=step, log=domain.is_log))
    return domain.limited(trial.suggest_float(key, domain.low, domain.high, step=domain.step))


def _labelled(domain: Listed) -> dict[Label, Any]:
    """Return the distinct values of a list by their labels: themselves, or JSON where Optuna cannot hold one of them.

    Optuna has text, numbers, true, false and null, and takes 1 and true for the same.
    """
    values = {identity(value): value for value in domain.values}
    plain: dict[Label, Any] = {
        value: value for value in values.values() if value is None or isinstance(value, bool | int | float | str)
    }
    return plain if len(plain) == len(values) else dict(values.items())
