"""A trial whose episodes do not end says so once, and which key cuts them."""

from __future__ import annotations

from typing import Any

import pytest

from rlexp.config.keys.agents import experiment_class
from rlexp.tuning.stop_condition import STEPS_OF_AN_ENV, row_notes

LONG = 2 * 3 * STEPS_OF_AN_ENV


def said(steps: int, before: int | None, episodes: int = 0, done: bool = False, **config: Any) -> list[str]:
    keys = {"num_workers": 2, "num_envs_per_worker": 3, **config}
    given = {"name": "e", "run": "DQN", "env": "CartPole-v1", "config": keys}
    row = {"timesteps_total": steps, "episodes_total": episodes, "done": done}
    earlier = {} if before is None else {"timesteps_total": before}
    return row_notes(experiment_class("DQN").model_validate(given), row, earlier)


def test_key_that_cuts_episodes_is_named() -> None:
    (sentence,) = said(LONG, LONG - 1)
    assert sentence.startswith("no episode has ended in 30,000 env steps")
    assert sentence.endswith("config.horizon cuts episodes")


@pytest.mark.parametrize(
    ("steps", "before", "options", "number"),
    [
        (LONG - 1, None, {}, 0),
        (LONG, None, {}, 1),
        (LONG + 1, LONG, {}, 0),
        (LONG, LONG - 1, {"episodes": 1}, 0),
        (LONG, LONG - 1, {"horizon": 10**6}, 0),
        (100, 50, {"done": True}, 1),
        (LONG + 1, LONG, {"done": True}, 0),
        (LONG, None, {"num_workers": 0, "num_envs_per_worker": 1}, 1),
        (STEPS_OF_AN_ENV - 1, None, {"num_workers": 0, "num_envs_per_worker": 1}, 0),
    ],
)
def test_it_is_said_once(steps: int, before: int | None, options: dict[str, Any], number: int) -> None:
    assert len(said(steps, before, **options)) == number
