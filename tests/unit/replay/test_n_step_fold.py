"""n-step transitions of the replay library, folded from steps as they come, are those that a run's workers fold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.replay import NStepConfig, NStepFold
from rlexp.rollout.folds import NStep
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array

COLUMNS = {
    OBS: ((2,), np.float32),
    ACTIONS: ((), np.int64),
    REWARDS: ((), np.float32),
    "terminated": ((), bool),
    NEW_OBS: ((2,), np.float32),
}
GOES_ON, TERMINATED, TRUNCATED = range(3)


def steps_of(endings: list[int]) -> dict[str, Array]:
    """Steps that end as ``endings`` say; the observation after an end is none that another step has."""
    numbers = np.arange(len(endings), dtype=np.float32)
    obs = np.stack([numbers, 2 * numbers], axis=1)
    return {
        OBS: obs,
        ACTIONS: np.arange(len(endings)),
        REWARDS: 2.0**numbers,
        "terminated": np.equal(endings, TERMINATED),
        NEW_OBS: np.where(np.equal(endings, GOES_ON)[:, None], obs + np.array([1, 2]), -obs - 1).astype(np.float32),
    }


def folded_by_workers(endings: list[int], n_step: int, gamma: float) -> dict[str, Array]:
    """Return the transitions of the same steps by the fold of a run: each end is followed by a step that resets."""
    steps, obs, real = steps_of(endings), list[Array](), list[int]()
    for number, ending in enumerate(endings):
        real.append(len(obs))
        obs.append(steps[OBS][number])
        if ending != GOES_ON:
            obs.append(steps[NEW_OBS][number])
    obs.append(steps[NEW_OBS][-1])
    stream_of: dict[str, Array] = {name: np.zeros((len(obs) - 1, 1), np.float32) for name in (REWARDS, ACTIONS)}
    flags: dict[str, Array] = {name: np.zeros((len(obs) - 1, 1), bool) for name in ("terminated", "truncated", "valid")}
    for name in (REWARDS, ACTIONS):
        stream_of[name][real, 0] = steps[name]
    flags["valid"][real] = True
    flags["terminated"][real, 0] = np.equal(endings, TERMINATED)
    flags["truncated"][real, 0] = np.equal(endings, TRUNCATED)
    stream = Fragment(
        np.stack(obs)[:, None],
        stream_of[ACTIONS],
        stream_of[REWARDS],
        flags["terminated"],
        flags["truncated"],
        flags["valid"],
    )
    return NStep(n_step, gamma).rows(stream, stream.num_steps).columns


@given(
    endings=st.lists(st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED]), min_size=1, max_size=20),
    n_step=st.integers(1, 5),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
)
def test_fold_is_that_of_workers(endings: list[int], n_step: int, lengths: list[int]) -> None:
    endings = [*endings, TRUNCATED]  # where the stream stops, nothing waits
    fold = NStepFold({**COLUMNS, "cut": ((1,), np.uint8)}, NStepConfig(n_step, 0.5, truncated="cut"))
    steps = {**steps_of(endings), "cut": np.equal(endings, TRUNCATED)[:, None]}
    parts, start = [], 0
    for length in lengths * len(endings):
        if start < len(endings):
            parts.append(fold.add(**{name: column[start : start + length] for name, column in steps.items()}))
            start += length
    assert len(fold.on_episode_end()[OBS]) == 0
    expected = folded_by_workers(endings, n_step, 0.5)
    for name in (OBS, ACTIONS, REWARDS, DISCOUNTS, NEW_OBS):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), expected[name])


@given(endings=st.lists(st.sampled_from([GOES_ON, TERMINATED, TRUNCATED]), min_size=1, max_size=12))
def test_fold_episode_end_is_a_truncation(endings: list[int]) -> None:
    fold, parts = NStepFold(COLUMNS, NStepConfig(3, 0.5)), []
    steps = steps_of(endings)
    for number, ending in enumerate(endings):
        parts.append(fold.add(**{name: column[number] for name, column in steps.items()}))
        if ending == TRUNCATED:
            parts.append(fold.on_episode_end())
    parts.append(fold.on_episode_end())
    last = TRUNCATED if endings[-1] == GOES_ON else endings[-1]
    expected = folded_by_workers([*endings[:-1], last], 3, 0.5)
    for name in (REWARDS, DISCOUNTS):
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), expected[name])


def test_fold_keeps_copies_of_waiting_steps() -> None:
    fold, obs = NStepFold(COLUMNS, NStepConfig(2, 1.0)), np.zeros(2, np.float32)
    folded = []
    for number in range(3):
        obs[:] = number  # an env that uses its array again
        folded.append(fold.add(obs=obs, actions=number, rewards=1.0, terminated=False, new_obs=obs))
    obs[:] = 99
    assert [rows[OBS].tolist() for rows in folded] == [[], [[0, 0]], [[1, 1]]]
    assert [rows[NEW_OBS].tolist() for rows in folded] == [[], [[1, 1]], [[2, 2]]]


def test_fold_columns_have_discounts_and_no_ends() -> None:
    config = NStepConfig(2, 0.9, rewards="r", terminated="t", truncated="c", new_columns=("next_a", "next_b"))
    columns: dict[str, Any] = dict.fromkeys(("r", "t", "c", "a", "next_a", "next_b"), ((), np.float64))
    assert set(NStepFold(columns, config).columns) == {"r", "a", "next_a", "next_b", DISCOUNTS}
    steps = {name: np.arange(3.0) + place for place, name in enumerate(columns)} | {"t": [0, 0, 1], "c": [0, 0, 0]}
    rows = NStepFold(columns, config).add(**steps)
    assert rows["next_a"].tolist() == [5, 6, 6]
    assert rows["next_b"].tolist() == [6, 7, 7]
    assert rows["r"].dtype == np.float64
    assert rows["r"].tolist() == [0.9, 1 + 0.9 * 2, 2]
    assert rows[DISCOUNTS].tolist() == [np.float32(0.9**2), 0, 0]


@pytest.mark.parametrize(
    ("columns", "config", "message"),
    [
        (COLUMNS, NStepConfig(2, 0.9, truncated="cut"), "not declared: cut"),
        ({**COLUMNS, DISCOUNTS: ((), np.float32)}, NStepConfig(2, 0.9), "discounts: it cannot be declared"),
        ({**COLUMNS, REWARDS: ((), np.int64)}, NStepConfig(2, 0.9), "rewards are floats"),
        ({**COLUMNS, REWARDS: ((3,), np.float32)}, NStepConfig(2, 0.9), r"one number a step, not \[3\]"),
    ],
)
def test_fold_refuses_columns_that_do_not_fit(columns: Any, config: NStepConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NStepFold(columns, config)


@pytest.mark.parametrize("wrong", [{"n_step": 0}, {"gamma": 1.5}])
def test_fold_refuses_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1 and gamma from 0 to 1"):
        replace(NStepConfig(2, 0.9), **wrong)


def test_fold_takes_nothing_of_wrong_steps() -> None:
    fold = NStepFold(COLUMNS, NStepConfig(2, 0.9))
    with pytest.raises(ValueError, match="missing: new_obs"):
        fold.add(obs=[0, 0], actions=0, rewards=0.0, terminated=False)
    assert len(fold.on_episode_end()[OBS]) == 0
