"""Conditional spaces: ``choice`` of values that hold samplers, of which only those in the drawn value are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlexp.config.space.domains import Domain, Listed, Normal, Range
from rlexp.config.yaml.nodes import MISSING, KeyPath, at


@dataclass(frozen=True)
class Alternative:
    """One value of a ``choice``, and the samplers inside it."""

    data: Any
    """As a file has it, with its samplers."""
    domains: Mapping[KeyPath, Domain]
    """Its samplers by their paths inside it; ``()`` where the value itself is one."""

    def filled(self, value_of: Callable[[KeyPath, Domain], Any]) -> Any:
        """Return the value with what ``value_of`` gives in place of each sampler."""
        value = copy.deepcopy(self.data)
        for path, domain in self.domains.items():
            value = _replaced(value, path, value_of(path, domain))
        return value

    def values_in(self, value: Any) -> Mapping[KeyPath, Any] | None:
        """Return what ``value`` has in place of each sampler; None where it cannot have been made by ``filled``."""
        values = {path: at(value, path) for path in self.domains}
        could_be = all(
            values[path] is not MISSING and domain.holds(values[path]) for path, domain in self.domains.items()
        )
        return values if could_be and self.filled(lambda path, _: values[path]) == value else None


@dataclass(frozen=True)
class Alternatives:
    """``choice`` of values of which some hold samplers; each value is as likely as the others."""

    sampler: str
    alternatives: Sequence[Alternative]

    def data(self) -> dict[str, Any]:
        return {self.sampler: [alternative.data for alternative in self.alternatives]}

    def holds(self, value: Any) -> bool:
        return any(alternative.values_in(value) is not None for alternative in self.alternatives)

    def draw(self, rng: Random) -> Any:
        alternative = self.alternatives[rng.randrange(len(self.alternatives))]
        return alternative.filled(lambda path, domain: domain.draw(rng))

    def moved(self, value: Any, factor: float, rng: Random) -> Any:
        """Return the value with the samplers inside it moved; the alternative stays."""
        place, values = self.taken(value)
        return self.alternatives[place].filled(lambda path, domain: domain.moved(values[path], factor, rng))

    def taken(self, value: Any) -> tuple[int, Mapping[KeyPath, Any]]:
        """Return the place of the first alternative that can be ``value``, and the values of the samplers inside it.

        Raises ValueError where none can.
        """
        for place, alternative in enumerate(self.alternatives):
            values = alternative.values_in(value)
            if values is not None:
                return place, values
        raise ValueError(f"{value!r} is none of the alternatives")


def domains_in(domain: Domain) -> Iterator[Domain]:
    """Yield a domain and those inside it, at any depth."""
    yield domain
    if isinstance(domain, Alternatives):
        for alternative in domain.alternatives:
            for inside in alternative.domains.values():
                yield from domains_in(inside)


def columns_of(key: str, value: Any) -> dict[str, Any]:
    """Return a drawn value as tables show it: a mapping by its keys, ``{"group.key": 1}``; any other as it is."""
    if not isinstance(value, Mapping) or not value:
        return {key: value}
    return {
        column: item for name, inside in value.items() for column, item in columns_of(f"{key}.{name}", inside).items()
    }


def column_domains(key: str, domain: Domain) -> dict[str, Domain]:
    """Return what each column of a key can be: a sampler, or the values of a list.

    A column that is a value in one alternative and a sampler in another, or a list with samplers, is left out.
    """
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
        for column, item in columns_of(key, alternative.filled(lambda path, inside: inside)).items():
            if isinstance(item, Alternatives):
                yield from _column_items(column, item)
            else:
                yield column, item


def _common_domain(items: Sequence[Any]) -> Domain | None:
    first = items[0]
    if isinstance(first, Listed | Range | Normal):
        return first if all(item == first for item in items) else None
    return Listed("choice", [*_distinct(items)]) if all(map(_is_value, items)) else None


def _distinct(values: Sequence[Any]) -> Iterator[Any]:
    yield from (value for place, value in enumerate(values) if value not in values[:place])


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
