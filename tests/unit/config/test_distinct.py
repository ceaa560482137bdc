"""Distinct values of domains: their number and the values agree with what is drawn."""

from __future__ import annotations

from random import Random

import pytest

from rlexp.config.space.domains import Domain, Listed, Normal, Range
from rlexp.config.space.points import Alternative, Alternatives, every_value, identity, is_continuous, number_of_values

LAYER = Range("randint", (3, 6), 3, 5, step=1)
LAYERS = Alternatives(
    "choice",
    [
        Alternative([64], {}),
        Alternative([{}, {}], {(0,): LAYER, (1,): LAYER}),
        Alternative({"a": {}}, {("a",): Alternatives("choice", [Alternative({}, {(): LAYER}), Alternative(None, {})])}),
    ],
)
COUNTED: list[tuple[Domain, int]] = [
    (Listed("choice", [1, 1.0, True, "1", [2], [2]]), 4),
    (Range("randint", (1, 9), 1, 8, step=1), 8),
    (Range("lograndint", (3, 20), 3, 19, True, 1), 17),
    (Range("quniform", (0.5, 2.0, 0.25), 0.5, 2.0, step=0.25), 7),
    (Range("quniform", (8, 64, 8), 8, 64, step=8), 8),
    (Range("uniform", (0.99, 0.999), 0.99, 0.999), 91),
    (LAYERS, 1 + 3 * 3 + 3 + 1),
    (Range("uniform", (9.99, 10.03), 9.99, 10.03), 14),  # 9.990 to 9.999, and 10.00 to 10.03
    (Range("uniform", (-0.999, -0.99), -0.999, -0.99), 91),
    (Range("uniform", (0.12344, 0.1237), 0.12344, 0.1237), 4),  # its low end is what 0.1234 is limited to
]


@pytest.mark.parametrize(("domain", "count"), COUNTED)
def test_every_value_and_no_other_is_drawn(domain: Domain, count: int) -> None:
    listed = [identity(value) for value in every_value(domain)]
    rng = Random(0)
    drawn = {identity(domain.draw(rng)) for _ in range(200 * count)}
    assert number_of_values(domain) == len(listed) == len(set(listed)) == count
    assert drawn <= set(listed)
    assert len(drawn) > 0.9 * count


def test_log_range_has_as_many_values_in_each_decade() -> None:
    domain = Range("loguniform", (1e-4, 1e-2), 1e-4, 1e-2, is_log=True)
    values = list(every_value(domain))
    assert number_of_values(domain) == len(values) == 18_001
    assert values == sorted(set(values))


def test_conditional_space_is_continuous_where_a_range_inside_is() -> None:
    rate = Range("uniform", (0.99, 0.999), 0.99, 0.999)
    assert not is_continuous(LAYERS)
    assert is_continuous(Alternatives("choice", [Alternative(1, {}), Alternative({}, {(): rate})]))
    assert number_of_values(Alternatives("choice", [Alternative({}, {(): Normal(0, 1)})])) is None


def test_value_of_several_alternatives_is_listed_once() -> None:
    twice = Alternatives("choice", [Alternative(4, {}), Alternative({}, {(): LAYER})])
    assert list(every_value(twice)) == [4, 3, 5]


@pytest.mark.parametrize("domain", [Normal(0.0, 1.0), Range("uniform", (-1, 1), -1, 1), Range("uniform", (0, 1), 0, 1)])
def test_numbers_around_zero_have_no_bound(domain: Domain) -> None:
    assert number_of_values(domain) is None
    assert is_continuous(domain)
