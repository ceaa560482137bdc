"""The packing of bundles on nodes, against trying every way."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from rlexp.cluster.room import packing
from rlexp.cluster.room.packing import packs

Amounts = dict[str, float]


def by_every_way(bundles: list[Amounts], nodes: list[Amounts]) -> bool:
    """Return the same as ``packs``, slowly: tries each node for each bundle."""
    for way in product(range(len(nodes)), repeat=len(bundles)):
        left = [dict(node) for node in nodes]
        for bundle, node in zip(bundles, way, strict=True):
            for name, amount in bundle.items():
                left[node][name] = round(left[node].get(name, 0.0) - amount, 6)
        if all(amount >= 0 for node in left for amount in node.values()):
            return True
    return False


def random_case(rng: random.Random) -> tuple[list[Amounts], list[Amounts]]:
    names = rng.sample(["CPU", "GPU", "licence"], rng.randint(1, 3))
    kinds = [{name: rng.choice([0.0, 0.5, 1.0, 2.0, 3.0]) for name in names} for _ in range(rng.randint(1, 3))]
    bundles = [rng.choice(kinds) for _ in range(rng.randint(1, 6))]
    nodes = [{name: float(rng.randint(0, 6)) for name in names} for _ in range(rng.randint(1, 3))]
    return bundles, nodes


def test_packing_equals_trying_every_way() -> None:
    rng = random.Random(7)
    found = {True: 0, False: 0}
    for _ in range(600):
        bundles, nodes = random_case(rng)
        expected = by_every_way(bundles, nodes)
        assert packs(bundles, nodes) is expected, (bundles, nodes)
        found[expected] += 1
    assert min(found.values()) > 100


def cpus(*amounts: float) -> list[Amounts]:
    return [{"CPU": float(amount)} for amount in amounts]


def test_exact_search_finds_what_first_fit_decreasing_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles, nodes = cpus(6, 5, 5, 4, 4, 3, 3), cpus(15, 15)  # 6 + 5 + 4 and 5 + 4 + 3 + 3
    assert packs(bundles, nodes) is True
    bundles, nodes = cpus(4, 4, 3, 3, 3, 3), cpus(10, 10)
    searched: list[Any] = []
    monkeypatch.setattr(packing._Search, "result", lambda search: searched.append(search))
    assert packs(bundles, nodes) is None
    assert searched, "the largest first leaves 4 + 4 and no room for the last 3"


@pytest.mark.parametrize(
    ("bundles", "nodes", "expected"),
    [
        ([], [], True),
        ([{}], [], True),
        (cpus(1), [], False),
        (cpus(*[0.1] * 30), cpus(1, 1, 1), True),
        (cpus(*[0.1] * 31), cpus(1, 1, 1), False),
        (cpus(3, 3, 3), cpus(4, 5), False),
        ([{"CPU": 1.0, "rack": 1.0}], [{"CPU": 4.0}, {"rack": 1.0}], False),
        ([{"CPU": 1.0, "rack": 1.0}], [{"CPU": 4.0}, {"CPU": 1.0, "rack": 1.0}], True),
    ],
)
def test_packing(bundles: list[Amounts], nodes: list[Amounts], expected: bool) -> None:
    assert packs(bundles, nodes) is expected


def test_packing_on_one_node() -> None:
    assert packs(cpus(1, 2, 3), cpus(5, 5)) is True
    assert packs(cpus(1, 2, 3), cpus(5, 5), on_one_node=True) is False
    assert packs(cpus(1, 2, 3), cpus(5, 6), on_one_node=True) is True


def test_a_thousand_workers_and_nodes_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(packing, "_Search")
    assert packs([*cpus(8), *cpus(*[1] * 4000)], cpus(*[8] * 501)) is True


def test_a_search_without_an_end_is_given_up() -> None:
    rng = random.Random(1)
    bundles = cpus(*(rng.randint(200, 500) for _ in range(20)))
    room = sum(bundle["CPU"] for bundle in bundles) / 6
    assert packs(bundles, cpus(*[int(room) + 1] * 6)) in (True, None)
