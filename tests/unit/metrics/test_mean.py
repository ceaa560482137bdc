from __future__ import annotations

from rlexp.metrics.windows import Mean


def test_draining_returns_the_mean_and_begins_anew() -> None:
    mean = Mean()
    for value in (1.0, 2.0, 6.0):
        mean.add(value)
    assert mean.drain() == 3.0
    mean.add(10.0)
    assert mean.drain() == 10.0


def test_the_mean_of_nothing_is_zero() -> None:
    assert Mean().drain() == 0.0
