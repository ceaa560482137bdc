"""TriedPoints: which points of a space were tried, so that none is tried twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

from rlexp.config.space.distinct import every_value, identity, number_of_values
from rlexp.config.space.domains import Domain

_Point = Mapping[str, Any]
_MOST_DRAWS: Final = 20
"""Points that are drawn at random until one is new; then the points are listed one after the other."""


class TriedPoints:
    """Owns the identities of the points that were tried; gives points that were not.

    Listing begins where it stopped the time before, so that to use up a space of N points takes N steps in all.
    """

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._domains = domains
        self._tried: set[str] = set()
        self._listed: dict[str, Iterator[_Point]] = {}
        """The rest of the points of the space, by the fixed values."""

    def __contains__(self, point: _Point) -> bool:
        return identity(point) in self._tried

    def add(self, point: _Point) -> None:
        """Record that a point is tried."""
        self._tried.add(identity(point))

    def new(self, rng: Random, fixed: _Point) -> _Point | None:
        """Return a point with the values of ``fixed`` that was not tried, drawn at random; None where none is left.

        The first draw is the point that is drawn where nothing was tried.
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
        """Yield every point with the values of ``fixed``; none where their number has no bound."""
        free = [domain for key, domain in self._domains.items() if key not in fixed]
        if all(number_of_values(domain) is not None for domain in free):
            yield from self._below({}, fixed, keys)

    def _below(self, chosen: _Point, fixed: _Point, keys: list[str]) -> Iterator[_Point]:
        if not keys:
            yield chosen
            return
        key, rest = keys[0], keys[1:]
        for value in [fixed[key]] if key in fixed else every_value(self._domains[key]):
            yield from self._below({**chosen, key: value}, fixed, rest)
