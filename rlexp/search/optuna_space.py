"""A search space as Optuna's parameters: one for each key, and for values with samplers inside one for each of these.

Optuna's spaces are defined by running: of a ``choice`` whose values hold samplers, the value is suggested first, then
the parameters inside it under names such as ``exploration_config[1].temperature``. A parameter has the same name and
distribution in every configuration, as ``TPESampler(multivariate=True, group=True)`` needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from rlexp.config.space.alternatives import Alternatives
from rlexp.config.space.domains import Domain, Listed, Range
from rlexp.config.variants.sweep import Point, Space
from rlexp.config.yaml.nodes import KeyPath, dotted

if TYPE_CHECKING:
    import optuna


def suggested_point(trial: optuna.Trial, space: Space) -> Point:
    """Return the point that Optuna suggests for a trial."""
    return {key: _suggested(trial, key, domain) for key, domain in space.domains.items()}


def parameters_of(space: Space, point: Point) -> dict[str, Any]:
    """Return a point as Optuna has it: places in lists, numbers, and the parameters inside the values that it has.

    Raises KeyError or ValueError where the point does not fit the space.
    """
    found = (_parameters(key, domain, point[key]) for key, domain in space.domains.items())
    return dict(chain.from_iterable(found))


def _suggested(trial: optuna.Trial, name: str, domain: Domain) -> Any:
    if isinstance(domain, Listed):
        return domain.values[trial.suggest_categorical(name, range(len(domain.values)))]
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
        yield name, list(domain.values).index(value)
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
