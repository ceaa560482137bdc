"""Distinct values: how many a searched key can have, and which; by them points are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import product
from math import prod
from typing import Any, Final

from rlexp.config.space.alternatives import Alternative, Alternatives, domains_in
from rlexp.config.space.domains import SIGNIFICANT, Domain, Listed, Number, Range
from rlexp.files import plain

_FIRST: Final[int] = 10 ** (SIGNIFICANT - 1)
_PER_DECADE: Final = 9 * _FIRST
"""Numbers with so many significant digits between two powers of ten."""


def identity(value: Any) -> str:
    """Return a text that equal values share: those of true and 1 differ, those of 1.0 and 1 do not."""
    return json.dumps(_with_whole_numbers(plain(value)), sort_keys=True)


def number_of_values(domain: Domain) -> int | None:
    """Return how many values a domain has, None where there is no bound on their number.

    A value that several alternatives of a ``choice`` with samplers can be is counted in each of them.
    """
    if isinstance(domain, Listed):
        return len({identity(value) for value in domain.values})
    if isinstance(domain, Alternatives):
        inside = [_number_inside(alternative) for alternative in domain.alternatives]
        return None if None in inside else sum(number for number in inside if number is not None)
    if not isinstance(domain, Range):
        return None
    if domain.step is not None:
        return _steps(domain) + 1
    return None if domain.low <= 0 <= domain.high else len(_short_ranks(domain)) + 2


def every_value(domain: Domain) -> Iterator[Any]:
    """Yield each value of a domain that has a number of them, once."""
    if isinstance(domain, Listed):
        yield from {identity(value): value for value in domain.values}.values()
    elif isinstance(domain, Alternatives):
        values = (value for alternative in domain.alternatives for value in _every_inside(alternative))
        yield from _without_repetitions(values)
    elif isinstance(domain, Range) and domain.step is not None:
        yield from (domain.limited(domain.low + place * domain.step) for place in range(_steps(domain) + 1))
    elif isinstance(domain, Range):
        yield from _short_numbers(domain)


def is_continuous(domain: Domain) -> bool:
    """Return whether neighbouring values of a domain differ by rounding only."""
    if isinstance(domain, Alternatives):
        return any(is_continuous(inside) for inside in domains_in(domain) if inside is not domain)
    return not isinstance(domain, Listed) and not (isinstance(domain, Range) and domain.step is not None)


def _number_inside(alternative: Alternative) -> int | None:
    numbers = [number_of_values(domain) for domain in alternative.domains.values()]
    return None if None in numbers else prod(number for number in numbers if number is not None)


def _every_inside(alternative: Alternative) -> Iterator[Any]:
    for values in product(*map(every_value, alternative.domains.values())):
        yield _with_values(alternative, values)


def _with_values(alternative: Alternative, values: Sequence[Any]) -> Any:
    chosen = dict(zip(alternative.domains, values, strict=True))
    return alternative.filled(lambda path, _: chosen[path])


def _without_repetitions(values: Iterable[Any]) -> Iterator[Any]:
    found: set[str] = set()
    for value in values:
        if identity(value) not in found:
            found.add(identity(value))
            yield value


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
