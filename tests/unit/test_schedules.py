from __future__ import annotations

import pytest

from rlexp.schedules import LinearSchedule


@pytest.mark.parametrize(
    ("t", "value"), [(0, 1.0), (1, 0.91), (5, 0.55), (9, 0.19), (10, 0.1), (11, 0.1), (10**12, 0.1)]
)
def test_falls_linearly_then_stays(t: int, value: float) -> None:
    assert LinearSchedule(initial=1.0, final=0.1, timesteps=10).value(t) == pytest.approx(value)


def test_rises_where_the_final_value_is_higher() -> None:
    assert LinearSchedule(initial=0.4, final=1.0, timesteps=4).value(1) == pytest.approx(0.55)


@pytest.mark.parametrize("timesteps", [0, -1])
def test_without_time_it_is_at_its_end_at_once(timesteps: int) -> None:
    assert LinearSchedule(initial=1.0, final=0.1, timesteps=timesteps).value(0) == pytest.approx(0.1)


def test_epsilon_as_the_design_writes_it() -> None:
    # epsilon(t) = 1 + min(t / (fraction * max_timesteps), 1) * (final - 1)
    schedule = LinearSchedule(1.0, 0.02, int(0.1 * 100_000))
    assert schedule.value(2_500) == pytest.approx(1 + 0.25 * (0.02 - 1))
