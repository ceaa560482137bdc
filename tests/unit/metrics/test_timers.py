from __future__ import annotations

import pytest

from rlexp import metrics
from rlexp.metrics import LONGEST_GAP_S, Laps, RunningClock, Stopwatch


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def lap(stopwatch: Stopwatch, clock: Clock, part: str, seconds: float) -> None:
    with stopwatch.lap(part):
        clock.now_s += seconds


def lap_that_raises(stopwatch: Stopwatch, clock: Clock) -> None:
    with stopwatch.lap("wait"):
        clock.now_s += 2.0
        raise KeyError


def test_stopwatch_adds_laps_of_a_part(clock: Clock) -> None:
    stopwatch = Stopwatch()
    lap(stopwatch, clock, "wait", 2.0)
    lap(stopwatch, clock, "learn", 3.0)
    lap(stopwatch, clock, "wait", 1.0)
    clock.now_s += 4.0
    assert stopwatch.drain() == Laps(elapsed_s=10.0, parts_s={"wait": 3.0, "learn": 3.0})


def test_stopwatch_drain_resets(clock: Clock) -> None:
    stopwatch = Stopwatch()
    lap(stopwatch, clock, "wait", 2.0)
    first = stopwatch.drain()
    lap(stopwatch, clock, "learn", 5.0)
    assert stopwatch.drain() == Laps(elapsed_s=5.0, parts_s={"learn": 5.0})
    assert first.parts_s == {"wait": 2.0}


def test_stopwatch_counts_lap_that_raises(clock: Clock) -> None:
    stopwatch = Stopwatch()
    with pytest.raises(KeyError):
        lap_that_raises(stopwatch, clock)
    assert stopwatch.drain().parts_s == {"wait": 2.0}


def test_running_clock_limits_time_between_calls(clock: Clock) -> None:
    running = RunningClock(clock.perf_counter)
    seen = []
    for seconds in (0.0, 1.0, 2.0, 3600.0, 1.0):
        clock.now_s += seconds
        seen.append(running())
    assert seen == [0.0, 1.0, 3.0, 3.0 + LONGEST_GAP_S, 4.0 + LONGEST_GAP_S]
