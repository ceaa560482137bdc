"""Points of a space as parameters of an Optuna trial: numbers as they are, values of lists by what a reader sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlexp.config.space.distinct import identity
from rlexp.config.space.domains import Domain, Listed, Range
from rlexp.config.variants.sweep import Point

if TYPE_CHECKING:
    import optuna

Label = None | bool | int | float | str


def suggested_point(trial: optuna.Trial, domains: Mapping[str, Domain]) -> Point:
    """Return the point that a trial's sampler chooses."""
    return {key: _suggested(trial, key, domain) for key, domain in domains.items()}


def parameters_of(point: Point, domains: Mapping[str, Domain]) -> dict[str, Any]:
    """Return a point as Optuna has it; raises KeyError for a key or a value that is not in the space."""
    return {key: _parameter(domain, point[key]) for key, domain in domains.items()}


def _parameter(domain: Domain, value: Any) -> Any:
    if not isinstance(domain, Listed):
        return value
    return {identity(known): label for label, known in _labelled(domain).items()}[identity(value)]


def _suggested(trial: optuna.Trial, key: str, domain: Domain) -> Any:
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
