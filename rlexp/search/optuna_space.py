"""Points of a space as parameters of Optuna: one for each key, and one for each sampler inside a value of a key.

Numbers stay as they are, values of lists are shown as a reader knows them. Optuna's spaces are defined by running: of a
``choice`` whose values hold samplers, the place of the value is suggested first, then the parameters inside it under
names such as ``exploration_config[1].temperature``. A parameter has the same name and distribution in every
configuration, as ``TPESampler(multivariate=True, group=True)`` needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from rlexp.config.space.domains import Domain, Listed, Range
from rlexp.config.space.points import Alternatives, identity
from rlexp.config.sweep import Point
from rlexp.config.yaml.nodes import KeyPath, dotted

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
    """Return a point as Optuna has it, with the parameters inside the values that it has.

    Raises KeyError or ValueError where the point does not fit the space.
    """
    found = (_parameters(key, domain, point[key]) for key, domain in domains.items())
    return dict(chain.from_iterable(found))


def _suggested(trial: optuna.trial.BaseTrial, name: str, domain: Domain) -> Any:
    if isinstance(domain, Listed):
        values = _labelled(domain)
        return values[trial.suggest_categorical(name, list(values))]
    if isinstance(domain, Alternatives):
        place = trial.suggest_categorical(name, range(len(domain.alternatives)))
        return domain.alternatives[place].filled(
            lambda path, inside: _suggested(trial, _name_inside(name, place, path), inside)
        )
    assert isinstance(domain, Range)  # others were refused when the file was read
    if domain.step is None:
        return domain.limited(trial.suggest_float(name, domain.low, domain.high, log=domain.is_log))
    if isinstance(domain.step, int) and isinstance(domain.low, int) and isinstance(domain.high, int):
        step = 1 if domain.is_log else domain.step
        return domain.limited(trial.suggest_int(name, domain.low, domain.high, step=step, log=domain.is_log))
    return domain.limited(trial.suggest_float(name, domain.low, domain.high, step=domain.step))


def _parameters(name: str, domain: Domain, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameter of a value, and those of the samplers inside it."""
    if isinstance(domain, Listed):
        yield name, {identity(known): label for label, known in _labelled(domain).items()}[identity(value)]
    elif isinstance(domain, Alternatives):
        place, values = domain.taken(value)
        yield name, place
        for path, inside in domain.alternatives[place].domains.items():
            yield from _parameters(_name_inside(name, place, path), inside, values[path])
    else:
        yield name, value


def _name_inside(name: str, place: int, path: KeyPath) -> str:
    """Return the name of a parameter inside the nth value of another: ``exploration_config[1].temperature``."""
    inside = dotted(path)
    return f"{name}[{place}]" + (inside if not inside or inside.startswith("[") else f".{inside}")


def _labelled(domain: Listed) -> dict[Label, Any]:
    """Return the distinct values of a list by their labels: themselves, or JSON where Optuna cannot hold one of them.

    Optuna has text, numbers, true, false and null, and takes 1 and true for the same.
    """
    values = {identity(value): value for value in domain.values}
    plain: dict[Label, Any] = {
        value: value for value in values.values() if value is None or isinstance(value, bool | int | float | str)
    }
    return plain if len(plain) == len(values) else dict(values.items())
