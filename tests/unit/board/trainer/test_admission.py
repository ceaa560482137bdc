"""Fragments of transitions that no actor makes are refused with a reason, whoever sends first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlexp.board.trainer.admission import Admission, admission_rules
from rlexp.board.trainer.row_rules import LARGEST, RefusedError
from rlexp.config.keys.apex import ApexConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.rollout.episodes import Episodes
from rlexp.rollout.filters import Moments
from rlexp.rollout.fragment import SampleInfo
from rlexp.sample_batch import ACTIONS, FRAME_IDS, NEW_OBS, OBS, REWARDS, TD_ERRORS, FrameRows
from tests.lab.board import SMALL_APEX, played, trial_of
from tests.lab.envs import IMAGE_ENV

Lie = Callable[[Any, SampleInfo], tuple[Any, SampleInfo]]
CONFIG = ApexConfig.model_validate({**SMALL_APEX, "observation_filter": "MeanStdFilter"})
NUMBER = 3
"""Of the fragment that is refused, the fourth one."""


def column(name: str, change: Callable[[Any], Any]) -> Lie:
    return lambda rows, info: (rows.with_columns(**{name: change(rows[name].copy())}), info)


def report(**changes: Any) -> Lie:
    return lambda rows, info: (rows, replace(info, **changes))


def episodes(returns: list[float], lengths: list[int]) -> Lie:
    return report(episodes=Episodes(np.array(returns), np.array(lengths), np.ones(len(lengths), bool)))


def moments(**changes: Any) -> Lie:
    def changed(rows: Any, info: SampleInfo) -> tuple[Any, SampleInfo]:
        observed = info.observed
        assert observed is not None
        values = {name: change(getattr(observed, name)) for name, change in changes.items()}
        return rows, replace(info, observed=replace(observed, **values))

    return changed


NONE = Episodes(np.zeros(0), np.zeros(0, np.int64), np.zeros(0, bool))


def put(value: float) -> Callable[[Any], Any]:
    def changed(values: Any) -> Any:
        values = np.array(values)
        values.flat[0] = value
        return values

    return changed


LIES: dict[str, tuple[Lie, str]] = {
    "smaller actions": (column(ACTIONS, lambda actions: actions.astype(np.int32)), "actions has another dtype"),
    "larger priorities": (column(TD_ERRORS, lambda errors: errors.astype(np.float64)), "td_errors has another dtype"),
    "huge priority": (column(TD_ERRORS, put(3e38)), "td_errors is not finite, or beyond 10,000,000"),
    "huge reward": (column(REWARDS, put(-2 * LARGEST)), "rewards is not finite, or beyond"),
    "huge observation": (column(NEW_OBS, put(3e38)), "new_obs is not finite, or beyond"),
    "long episode": (episodes([1.0], [501]), "an episode has more steps than it can have"),
    "endless episode": (episodes([9e17], [2**62]), "an episode has more steps than it can have"),
    "many episodes": (episodes([100.0] * 10, [100] * 10), "an episode has more steps than it can have"),
    "return": (episodes([9e17], [20]), "an episode has a return that cannot be"),
    "no steps": (
        report(num_env_steps=0, episodes=NONE, observed=Moments.none((4,))),
        "it has not the steps that it reports",
    ),
    "more steps": (lambda rows, info: (rows.slice(0, 0), info), "it has not the steps that it reports"),
    "mean": (moments(mean=put(1e300)), "moments with a mean that cannot be"),
    "squares": (moments(squares=put(1e308)), "moments with a variance that cannot be"),
    "squares of nothing": (
        report(observed=Moments(0, np.zeros(4), np.ones(4))),
        "moments with a variance that cannot be",
    ),
    "count": (moments(count=lambda count: 100 * count), "moments of more observations than it could make"),
    "shape": (report(observed=Moments.none((3,))), "moments of another shape"),
}


@pytest.mark.parametrize("lie", LIES)
def test_false_fragment_is_refused_with_the_reason(lie: str) -> None:
    change, why = LIES[lie]
    admission = Admission(admission_rules(CONFIG, trial_of("CartPole-v1", CONFIG)))
    fragments = played(CONFIG, count=NUMBER + 1)
    for number, (rows, info) in enumerate(fragments[:NUMBER]):
        admission.check(rows, info, number)
    rows, info = fragments[NUMBER]
    false_rows, false_info = change(rows, info)
    with pytest.raises(RefusedError, match=why):
        admission.check(false_rows, false_info, NUMBER)
    admission.check(rows, info, NUMBER)


def test_a_made_up_number_of_a_fragment_gives_no_longer_episodes() -> None:
    config = CONFIG.model_copy(update={"batch_mode": "complete_episodes"})
    rules = replace(admission_rules(config, trial_of("CartPole-v1", config)), longest_episode=None, min_steps=0)
    ((rows, info),) = played(CONFIG, count=1)
    endless = Episodes(np.array([1e12]), np.array([10**12]), np.array([True]))
    with pytest.raises(RefusedError, match="an episode has more steps than it can have"):
        Admission(rules).check(rows, replace(info, episodes=endless), 2**50)


def test_fragments_are_admitted_in_any_order() -> None:
    admission = Admission(admission_rules(CONFIG, trial_of("CartPole-v1", CONFIG)))
    for number, (rows, info) in reversed([*enumerate(played(CONFIG, count=12))]):
        admission.check(rows, info, number)


def test_frames_of_whole_episodes_are_no_more_than_may_be_sent_when_they_are_whole() -> None:
    config = DQNConfig.model_validate(
        {"batch_mode": "complete_episodes", "sample_batch_size": 1, "board": {"max_fragment_mb": 1}}
    )
    rules = admission_rules(config, trial_of(IMAGE_ENV, config))
    ((rows, info),) = played(config, IMAGE_ENV, 1)
    assert isinstance(rows, FrameRows)
    Admission(rules).check(rows, info, 0)
    count = rules.max_rows + 1
    many = {name: np.repeat(values[:1], count, axis=0) for name, values in rows.rows.columns.items()}
    with pytest.raises(RefusedError, match=f"more than {rules.max_rows} rows"):
        Admission(rules).check(replace(rows, rows=type(rows.rows)(many)), replace(info, num_env_steps=count), 0)
    assert rules.max_rows < 2000
    small_ids = rows.rows.with_columns(**{FRAME_IDS: rows.rows[FRAME_IDS].astype(np.int8)})
    with pytest.raises(RefusedError, match="frame_ids has another dtype"):
        Admission(rules).check(replace(rows, rows=small_ids), info, 0)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST])
def test_largest_numbers_are_admitted(value: float) -> None:
    ((rows, info),) = played(CONFIG, count=1)
    changed = rows.with_columns(**{OBS: np.full_like(rows[OBS], value), REWARDS: np.full_like(rows[REWARDS], value)})
    Admission(admission_rules(CONFIG, trial_of("CartPole-v1", CONFIG))).check(changed, info, 0)
