"""Whether bundles fit on nodes: first-fit-decreasing, and where that fails, an exact search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import add, le, mul, sub

_PARTS = 10_000
"""Ray counts amounts of resources in these parts."""

_MOST_STEPS = 10_000
"""Of the exact search, some tenths of a second. More may be needed for dozens of nodes that are nearly full."""

Amounts = Mapping[str, float]
_Counts = tuple[int, ...]
"""How many bundles of each kind; or how many parts of each resource."""


def packs(bundles: Sequence[Amounts], nodes: Sequence[Amounts], *, on_one_node: bool = False) -> bool | None:
    """Return whether all ``bundles`` fit on ``nodes``, each as a whole on one of them.

    ``on_one_node``: all of them together. None: the search was given up, but first-fit-decreasing found no way.
    """
    if on_one_node:
        bundles = [_together(bundles)]
    names = sorted({name for bundle in bundles for name, amount in bundle.items() if amount > 0})
    kinds = _kinds([_parts(bundle, names) for bundle in bundles])
    rooms = sorted((_parts(node, names) for node in nodes), reverse=True)
    if not kinds:
        return True
    if not _may_fit(kinds, rooms):
        return False
    if _first_fit_decreasing(kinds, rooms):
        return True
    return _Search(kinds, rooms).result()


def _together(bundles: Sequence[Amounts]) -> dict[str, float]:
    names = {name for bundle in bundles for name in bundle}
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in names}


def _parts(amounts: Amounts, names: Sequence[str]) -> _Counts:
    return tuple(round(amounts.get(name, 0.0) * _PARTS) for name in names)


def _kinds(bundles: Sequence[_Counts]) -> dict[_Counts, int]:
    """Return the different bundles with their numbers, without those that need nothing."""
    kinds: dict[_Counts, int] = {}
    for bundle in bundles:
        if any(bundle):
            kinds[bundle] = kinds.get(bundle, 0) + 1
    return kinds


def _may_fit(kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> bool:
    """Return False where a bundle is larger than every node, or all together are larger than all nodes."""
    if not all(any(_number_in(room, kind) for room in rooms) for kind in kinds):
        return False
    needed = [sum(kind[i] * number for kind, number in kinds.items()) for i in range(len(next(iter(kinds))))]
    return all(amount <= sum(room[i] for room in rooms) for i, amount in enumerate(needed))


def _number_in(room: _Counts, kind: _Counts) -> int:
    """Return how many bundles of a kind fit into ``room``."""
    return min(has // needs for has, needs in zip(room, kind, strict=True) if needs)


def _without(room: _Counts, kind: _Counts, number: int) -> _Counts:
    return tuple(has - needs * number for has, needs in zip(room, kind, strict=True))


def _first_fit_decreasing(kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> bool:
    """Return whether all fit where each, the largest first, goes to the first node with room for it."""
    totals = [max(sum(column), 1) for column in zip(*rooms, strict=True)]
    left = list(rooms)
    for kind in sorted(kinds, key=lambda kind: -max(part / all_ for part, all_ in zip(kind, totals, strict=True))):
        missing = kinds[kind]
        for i, room in enumerate(left):
            number = min(missing, _number_in(room, kind))
            left[i] = _without(room, kind, number)
            missing -= number
        if missing:
            return False
    return True


class _Search:
    """Fills one node after the other, with every choice of bundles, until all have a node.

    A node is only filled so that no further bundle fits: where there is a way at all, bundles of later nodes can be
    moved to it until it is full, so there is also a way with a full one.
    """

    def __init__(self, kinds: Mapping[_Counts, int], rooms: Sequence[_Counts]) -> None:
        self._kinds = tuple(kinds)
        self._numbers = tuple(kinds.values())
        self._rooms = tuple(rooms)
        behind: list[_Counts] = [(0,) * len(rooms[0])]
        for room in reversed(rooms):
            behind.append(tuple(map(add, behind[-1], room)))
        self._room_from = behind[::-1]
        """What each node and those after it have together."""
        self._steps = 0

    def result(self) -> bool | None:
        """Return whether there is a way; None where it was not found in so many steps."""
        failed: set[tuple[int, _Counts]] = set()
        path = [(self._numbers, self._fillings(0, self._numbers))]
        while path:
            left, fillings = path[-1]
            filling = next(fillings, None)
            if self._steps > _MOST_STEPS:
                return None
            if filling is None:
                path.pop()
                failed.add((len(path), left))
                continue
            left = tuple(map(sub, left, filling))
            if not any(left):
                return True
            if (len(path), left) not in failed and self._may_fit(len(path), left):
                path.append((left, self._fillings(len(path), left)))
        return False

    def _may_fit(self, node: int, left: _Counts) -> bool:
        """Return False where the nodes from this one on are smaller together than the bundles."""
        needed = (sum(map(mul, column, left)) for column in zip(*self._kinds, strict=True))
        return node < len(self._rooms) and all(map(le, needed, self._room_from[node]))

    def _fillings(self, node: int, left: _Counts) -> Iterator[_Counts]:
        """Yield each choice of bundles that fills a node, with as many of the first kind as possible first."""
        for chosen, room in self._choices(self._rooms[node], left):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                return
            unused = map(sub, left, chosen)
            if not any(more and _number_in(room, kind) for kind, more in zip(self._kinds, unused, strict=True)):
                yield chosen

    def _choices(self, room: _Counts, left: _Counts) -> Iterator[tuple[_Counts, _Counts]]:
        """Yield numbers of bundles of each kind that fit into ``room``, and what they leave of it."""
        if not left:
            yield (), room
            return
        index = len(self._kinds) - len(left)
        kind, most = self._kinds[index], min(left[0], _number_in(room, self._kinds[index]))
        # Of the last kind, a node that is full has as many as fit.
        for number in range(most, -1 if len(left) > 1 else most - 1, -1):
            for others, rest in self._choices(_without(room, kind, number), left[1:]):
                yield (number, *others), rest
