"""The n-step accumulator against a model that folds one row of one env at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.rollout.folds import FragmentAccumulator, NStep
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, DISCOUNTS, NEW_OBS, OBS, REWARDS, Array, SampleBatch, new

OUTPUT = "output"
GOES_ON, TERMINATED, TRUNCATED, BOTH = range(4)
RESET_REWARD = 999.0
"""Reward of resetting steps: no row may hold any of it."""


@dataclass(frozen=True)
class Step:
    """One step of one env; ``obs`` is what it acted on."""

    obs: int
    reward: int
    ending: int
    is_reset: bool


@dataclass(frozen=True)
class Row:
    """A transition, as the model folds it."""

    obs: int
    reward: float
    discount: float
    new_obs: int


def slow_rows(steps: list[Step], n_step: int, gamma: float) -> list[Row]:
    """Fold the rows of one env whose n successors are all there; the observation after the last step is one more."""
    rows = []
    observations = [step.obs for step in steps] + [steps[-1].obs + 1]
    for t in range(len(steps) - n_step + 1):
        if steps[t].is_reset:
            continue
        reward, discount, m = 0.0, 1.0, 0
        while m < n_step:
            step = steps[t + m]
            reward += discount * step.reward
            discount *= gamma
            m += 1
            if step.ending in (TERMINATED, BOTH):
                discount = 0.0
            if step.ending != GOES_ON:
                break
        rows.append(Row(observations[t], reward, discount, observations[t + m]))
    return rows


def make_steps(env: int, rewards: list[int], endings: list[int]) -> list[Step]:
    """Build the stream of one env, where every observation is a number of its own."""
    steps: list[Step] = []
    for t, (reward, ending) in enumerate(zip(rewards, endings, strict=True)):
        is_reset = bool(steps) and steps[-1].ending != GOES_ON
        steps.append(Step(1000 * env + t, reward, GOES_ON if is_reset else ending, is_reset))
    return steps


def make_fragment(envs: list[list[Step]], start: int, stop: int) -> Fragment:
    """Record steps ``start`` to ``stop`` of all envs, as a worker would."""

    def record(value: str) -> Array:
        return np.array([[getattr(env[t], value) for env in envs] for t in range(start, stop)])

    last_obs = [[env[stop].obs if stop < len(env) else env[-1].obs + 1 for env in envs]]
    obs, endings, is_reset = record("obs"), record("ending"), record("is_reset")
    return Fragment(
        obs=np.concatenate([obs, last_obs])[..., None].astype(np.float32),
        actions=-obs,
        rewards=np.where(is_reset, RESET_REWARD, record("reward")).astype(np.float32),
        terminated=np.isin(endings, (TERMINATED, BOTH)),
        truncated=np.isin(endings, (TRUNCATED, BOTH)),
        valid=~is_reset,
        outputs={OUTPUT: 10 * np.concatenate([obs, last_obs])},
    )


def as_rows(batch: SampleBatch) -> list[Row]:
    columns = (batch[OBS][:, 0], batch[REWARDS], batch[DISCOUNTS], batch[NEW_OBS][:, 0])
    return [Row(int(o), float(r), float(d), int(n)) for o, r, d, n in zip(*columns, strict=True)]


def assert_same_rows(found: list[Row], expected: list[Row]) -> None:
    found, expected = (sorted(rows, key=lambda row: row.obs) for rows in (found, expected))
    assert [row.obs for row in found] == [row.obs for row in expected]
    assert [row.new_obs for row in found] == [row.new_obs for row in expected]
    assert [row.reward for row in found] == pytest.approx([row.reward for row in expected], rel=1e-5, abs=1e-5)
    assert [row.discount for row in found] == pytest.approx([row.discount for row in expected], rel=1e-6)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[list[Step]], list[int]]:
    """Steps of one to three envs, and the lengths of the fragments that they are recorded in."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    total = sum(lengths)
    rewards = st.lists(st.integers(-8, 8), min_size=total, max_size=total)
    ending = st.sampled_from([GOES_ON, GOES_ON, GOES_ON, TERMINATED, TRUNCATED, BOTH])
    endings = st.lists(ending, min_size=total, max_size=total)
    return [make_steps(env, draw(rewards), draw(endings)) for env in range(draw(st.integers(1, 3)))], lengths


@settings(max_examples=200, deadline=None, derandomize=True)
@given(streams(), st.integers(1, 6), st.sampled_from([1.0, 0.9, 0.5, 0.0]))
def test_the_pushes_together_hold_each_row_of_the_model_once(
    stream: tuple[list[list[Step]], list[int]], n_step: int, gamma: float
) -> None:
    envs, lengths = stream
    accumulator = FragmentAccumulator(NStep(n_step, gamma))
    found: list[Row] = []
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        batch = accumulator.push(make_fragment(envs, start, stop))
        assert batch.count <= length * len(envs)
        assert (batch[ACTIONS] == -batch[OBS][:, 0]).all()
        assert (batch[OUTPUT] == 10 * batch[OBS][:, 0]).all()
        assert (batch[new(OUTPUT)] == 10 * batch[NEW_OBS][:, 0]).all()
        found += as_rows(batch)
        # After every push, not only at the end: what can be folded is never held back.
        seen = [slow_rows(env[:stop], n_step, gamma) if stop >= n_step else [] for env in envs]
        assert_same_rows(found, [row for rows in seen for row in rows])


def rows_of(rewards: list[int], endings: list[int], n_step: int, gamma: float) -> list[Row]:
    steps = [make_steps(0, rewards, endings)]
    return as_rows(FragmentAccumulator(NStep(n_step, gamma)).push(make_fragment(steps, 0, len(rewards))))


def test_three_steps_by_hand() -> None:
    rows = rows_of(rewards=[1, 2, 4, 8], endings=[GOES_ON] * 4, n_step=3, gamma=0.5)
    assert rows == [Row(0, 1 + 0.5 * 2 + 0.25 * 4, 0.125, 3), Row(1, 2 + 0.5 * 4 + 0.25 * 8, 0.125, 4)]


def test_a_termination_ends_the_fold_and_nothing_follows() -> None:
    rows = rows_of([1, 2, 4, 8, 16], [GOES_ON, TERMINATED, GOES_ON, GOES_ON, GOES_ON], n_step=3, gamma=0.5)
    assert rows == [Row(0, 1 + 0.5 * 2, 0.0, 2), Row(1, 2, 0.0, 2)]


def test_a_truncation_ends_the_fold_and_bootstraps_with_the_steps_folded() -> None:
    rows = rows_of([1, 2, 4, 8, 16], [GOES_ON, TRUNCATED, GOES_ON, GOES_ON, GOES_ON], n_step=3, gamma=0.5)
    assert rows == [Row(0, 1 + 0.5 * 2, 0.25, 2), Row(1, 2, 0.5, 2)]


def test_fragments_shorter_than_n_wait_for_their_successors() -> None:
    steps = [make_steps(0, [1, 2, 4], [GOES_ON] * 3)]
    accumulator = FragmentAccumulator(NStep(3, 0.5))
    counts = [accumulator.push(make_fragment(steps, t, t + 1)).count for t in range(3)]
    assert counts == [0, 0, 1]


def test_columns_keep_their_types() -> None:
    steps = [make_steps(0, [1, 2], [GOES_ON] * 2)]
    batch = FragmentAccumulator(NStep(1, 0.9)).push(make_fragment(steps, 0, 2))
    assert {name: column.dtype for name, column in batch.columns.items()} == {
        OBS: np.float32,
        ACTIONS: np.int64,
        REWARDS: np.float32,
        DISCOUNTS: np.float32,
        NEW_OBS: np.float32,
        OUTPUT: np.int64,
        new(OUTPUT): np.int64,
    }


def test_the_fragments_given_are_not_written_into() -> None:
    steps = [make_steps(0, [1, 2, 4, 8], [GOES_ON, TERMINATED, GOES_ON, GOES_ON])]
    accumulator = FragmentAccumulator(NStep(3, 0.9))
    for start in (0, 2):
        fragment = make_fragment(steps, start, start + 2)
        columns = vars(fragment) | {"outputs": fragment.outputs[OUTPUT]}
        for column in columns.values():
            column.setflags(write=False)
        accumulator.push(fragment)
