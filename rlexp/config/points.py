"""Values of searched keys: values of a ``choice`` with samplers, their number, and which were tried.

In a ``choice``, only the samplers in the drawn value are drawn. Points are compared by ``identity``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import product
from math import prod
from random import Random
from typing import Any, Final

from rlexp.config.domains import SIGNIFICANT, Domain, Listed, Normal, Number, Range
from rlexp.config.keys.fields import whole
from rlexp.config.yaml.nodes import MISSING, KeyPath, at, changed
from rlexp.files import plain


@dataclass(frozen=True)
class Alternative:
    """One value of a ``choice``, and the samplers inside it."""

    data: Any
    """The value in the form of a file, with its samplers."""
    domains: Mapping[KeyPath, Domain]
    """Its samplers by their paths inside it; ``()`` if the value itself is one."""

    def filled(self, values: Mapping[KeyPath, Any]) -> Any:
        """Return the value with ``values`` in place of its samplers."""
        filled = copy.deepcopy(self.data)
        for path, value in values.items():
            filled = _replaced(filled, path, value)
        return filled

    def values_in(self, value: Any) -> Mapping[KeyPath, Any] | None:
        """Return the values in place of each sampler; None if ``filled`` cannot have made ``value``."""
        values = {path: at(value, path) for path in self.domains}
        could_be = all(
            values[path] is not MISSING and domain.holds(values[path]) for path, domain in self.domains.items()
        )
        return values if could_be and self.filled(values) == value else None


@dataclass(frozen=True)
class Alternatives:
    """``choice`` of values of which some hold samplers; all values are equally likely."""

    sampler: str
    alternatives: Sequence[Alternative]

    def data(self) -> dict[str, Any]:
        return {self.sampler: [alternative.data for alternative in self.alternatives]}

    def holds(self, value: Any) -> bool:
        return any(alternative.values_in(value) is not None for alternative in self.alternatives)

    def draw(self, rng: Random) -> Any:
        alternative = self.alternatives[rng.randrange(len(self.alternatives))]
        return alternative.filled({path: domain.draw(rng) for path, domain in alternative.domains.items()})

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return the value with its samplers moved; the alternative stays."""
        place, values = self.taken(value)
        domains = self.alternatives[place].domains
        moved = {path: domain.moved(values[path], factor, rng) for path, domain in domains.items()}
        return self.alternatives[place].filled(moved)

    def taken(self, value: Any) -> tuple[int, Mapping[KeyPath, Any]]:
        """Return the index of the first alternative that can be ``value``, and the values of its samplers.

        Raises ValueError if none can.
        """
        for place, alternative in enumerate(self.alternatives):
            values = alternative.values_in(value)
            if values is not None:
                return place, values
        raise ValueError(f"{value!r} is not one of the alternatives")


def domains_in(domain: Domain) -> Iterator[Domain]:
    """Yield a domain and the domains inside it, at any depth."""
    yield domain
    if isinstance(domain, Alternatives):
        for alternative in domain.alternatives:
            for inside in alternative.domains.values():
                yield from domains_in(inside)


def columns_of(key: str, value: Any) -> dict[str, Any]:
    """Return a drawn value as tables show it: a mapping by its keys, ``{"group.key": 1}``; any other unchanged."""
    if not isinstance(value, Mapping) or not value:
        return {key: value}
    return {
        column: item for name, inside in value.items() for column, item in columns_of(f"{key}.{name}", inside).items()
    }


def column_domains(key: str, domain: Domain) -> dict[str, Domain]:
    """Return the possible values of each column of a key: a sampler, or the values of a list."""
    if not isinstance(domain, Alternatives):
        return {key: domain}
    found: dict[str, list[Any]] = {}
    for column, item in _column_items(key, domain):
        found.setdefault(column, []).append(item)
    domains = {column: _common_domain(items) for column, items in found.items()}
    return {column: common for column, common in domains.items() if common is not None}


def _column_items(key: str, domain: Alternatives) -> Iterator[tuple[str, Any]]:
    """Yield what each alternative, at any depth, has in each of its columns: a value or a sampler."""
    for alternative in domain.alternatives:
        for column, item in columns_of(key, alternative.filled(alternative.domains)).items():
            if isinstance(item, Alternatives):
                yield from _column_items(column, item)
            else:
                yield column, item


def _common_domain(items: Sequence[Any]) -> Domain | None:
    first = items[0]
    if isinstance(first, Listed | Range | Normal):
        return first if all(item == first for item in items) else None
    distinct = [item for place, item in enumerate(items) if item not in items[:place]]
    return Listed("choice", distinct) if all(map(_is_value, items)) else None


def _is_value(item: Any) -> bool:
    """Return whether an item has no sampler."""
    if isinstance(item, list):
        return all(map(_is_value, item))
    return not isinstance(item, Listed | Range | Normal | Alternatives)


def _replaced(data: Any, path: KeyPath, value: Any) -> Any:
    """Return ``data``, whose lists and mappings are changed in place, with ``value`` at a path."""
    if not path:
        return value
    data[path[0]] = _replaced(data[path[0]], path[1:], value)
    return data


_FIRST: Final[int] = 10 ** (SIGNIFICANT - 1)
_PER_DECADE: Final = 9 * _FIRST
"""Numbers with so many significant digits between two powers of ten."""


def identity(value: Any) -> str:
    """Return a text that equal values share: true and 1 differ, 1.0 and 1 do not."""
    return json.dumps(changed(plain(value), whole), sort_keys=True)


def number_of_values(domain: Domain) -> int | None:
    """Return how many values a domain has; None if there is no bound.

    A value that is in several alternatives of a ``choice`` with samplers is counted in each.
    """
    if isinstance(domain, Listed):
        return len({identity(value) for value in domain.values})
    if isinstance(domain, Alternatives):
        inside = [number_of_points(alternative.domains.values()) for alternative in domain.alternatives]
        return None if None in inside else sum(number for number in inside if number is not None)
    if not isinstance(domain, Range):
        return None
    if domain.step is not None:
        return _steps(domain) + 1
    return None if domain.low <= 0 <= domain.high else len(_short_ranks(domain)) + 2


def number_of_points(domains: Iterable[Domain]) -> int | None:
    """Return how many combinations of values some domains have; None if there is no bound."""
    numbers = [number_of_values(domain) for domain in domains]
    return None if None in numbers else prod(number for number in numbers if number is not None)


def every_value(domain: Domain) -> Iterator[Any]:
    """Yield each value of a finite domain once."""
    if isinstance(domain, Listed):
        yield from {identity(value): value for value in domain.values}.values()
    elif isinstance(domain, Alternatives):
        yield from _without_repetitions(
            alternative.filled(dict(zip(alternative.domains, point, strict=True)))
            for alternative in domain.alternatives
            for point in product(*map(every_value, alternative.domains.values()))
        )
    elif isinstance(domain, Range) and domain.step is not None:
        yield from (domain.limited(domain.low + place * domain.step) for place in range(_steps(domain) + 1))
    elif isinstance(domain, Range):
        yield from _short_numbers(domain)


def is_continuous(domain: Domain) -> bool:
    """Return whether neighbouring values of a domain differ by rounding only."""
    if isinstance(domain, Alternatives):
        return any(is_continuous(inside) for inside in domains_in(domain) if inside is not domain)
    return not isinstance(domain, Listed) and not (isinstance(domain, Range) and domain.step is not None)


def _without_repetitions(values: Iterable[Any]) -> Iterator[Any]:
    found: set[str] = set()
    for value in values:
        if identity(value) not in found:
            found.add(identity(value))
            yield value


def _steps(domain: Range) -> int:
    assert domain.step is not None
    return round((domain.high - domain.low) / domain.step)


def _short_ranks(domain: Range) -> range:
    """Return the ranks of the numbers with SIGNIFICANT digits between the ends of a range without zero."""
    low, high = sorted((abs(domain.low), abs(domain.high)))
    return range(_rank(low, ROUND_FLOOR) + 1, _rank(high, ROUND_CEILING))


def _rank(number: Number, rounding: str) -> int:
    """Return the place of a positive number, rounded, among all that have SIGNIFICANT digits."""
    exact = Decimal(repr(number))
    digits = exact.scaleb(SIGNIFICANT - 1 - exact.adjusted()).to_integral_value(rounding)
    return _PER_DECADE * exact.adjusted() + int(digits) - _FIRST


def _short_numbers(domain: Range) -> Iterator[Number]:
    sign = -1 if domain.low < 0 else 1
    yield domain.low
    for rank in _short_ranks(domain):
        exponent, digits = divmod(rank, _PER_DECADE)
        yield sign * float(f"{digits + _FIRST}e{exponent - SIGNIFICANT + 1}")
    yield domain.high


_Point = Mapping[str, Any]
_MOST_DRAWS: Final = 20
"""Draws for a new point; after them, points are listed one after another."""


class TriedPoints:
    """Owns the identities of the points that were tried; gives points that were not.

    Listing continues where it stopped, so that using up a space of N points takes N steps in all.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._domains = domains
        self._tried: set[str] = set()
        self._listed: dict[str, Iterator[_Point]] = {}
        """The remaining points of the space, by the fixed values."""

    def __contains__(self, point: _Point) -> bool:
        return identity(point) in self._tried

    def add(self, point: _Point) -> None:
        """Record that a point is tried."""
        self._tried.add(identity(point))

    def new(self, rng: Random, fixed: _Point) -> _Point | None:
        """Return a random new point with the values of ``fixed``; None if there is none.

        The first draw is the point that is drawn if nothing was tried.
        """
        for _ in range(_MOST_DRAWS):
            point = self.drawn(rng, fixed)
            if point not in self:
                return point
        return next((point for point in self._rest(fixed) if point not in self), None)

    def drawn(self, rng: Random, fixed: _Point) -> _Point:
        """Return a point with the values of ``fixed`` and a draw for every other axis."""
        return {key: fixed[key] if key in fixed else domain.draw(rng) for key, domain in self._domains.items()}

    def _rest(self, fixed: _Point) -> Iterator[_Point]:
        return self._listed.setdefault(identity(fixed), self._every(fixed, list(self._domains)))

    def _every(self, fixed: _Point, keys: list[str]) -> Iterator[_Point]:
        """Yield every point with the values of ``fixed``; none if their number has no bound."""
        free = [domain for key, domain in self._domains.items() if key not in fixed]
        if number_of_points(free) is not None:
            yield from self._below({}, fixed, keys)

    def _below(self, chosen: _Point, fixed: _Point, keys: list[str]) -> Iterator[_Point]:
        if not keys:
            yield chosen
            return
        key, rest = keys[0], keys[1:]
        for value in [fixed[key]] if key in fixed else every_value(self._domains[key]):
            yield from self._below({**chosen, key: value}, fixed, rest)
