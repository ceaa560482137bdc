"""The fold of PPO: by hand, and against a model that looks at one env, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.rollout.folds import (
    ADVANTAGES,
    DIST_INPUTS,
    VALUE_TARGETS,
    VF_PREDS,
    Advantages,
    EpisodeAccumulator,
    FragmentAccumulator,
)
from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import ACTIONS, OBS, SampleBatch
from tests.unit.rollout.test_n_step import (
    BOTH,
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Step,
    make_fragment,
    make_steps,
    streams,
)

GAE = Advantages(gamma=0.5, lambda_=0.5, uses_gae=True, uses_critic=True)
RETURNS = replace(GAE, uses_gae=False)
NO_CRITIC = replace(RETURNS, uses_critic=False)


def value_of(obs: int) -> float:
    """Return a value for each observation of ``make_steps`` that tells it from its neighbours."""
    return (obs * 37 % 101) / 8 - 5


def with_values(fragment: Fragment) -> Fragment:
    """Return a fragment of ``make_fragment`` as a policy with ``value_of`` would have recorded it."""
    values = np.vectorize(value_of)(fragment.obs[..., 0].astype(int)).astype(np.float32)
    return replace(fragment, outputs={VF_PREDS: values, DIST_INPUTS: np.stack([values, -values], axis=-1)})


@dataclass(frozen=True)
class Row:
    """What the model expects of a row."""

    obs: int
    advantage: float
    target: float


def slow_rows(steps: list[Step], fold: Advantages) -> list[Row]:
    """Return the rows of one env by the definition: the sum of decayed TD errors to the end, for each step anew."""
    decay = fold.gamma * (fold.lambda_ if fold.uses_gae else 1.0)
    values = [value_of(step.obs) if fold.uses_critic else 0.0 for step in steps]
    values.append(value_of(steps[-1].obs + 1) if fold.uses_critic else 0.0)
    rows = []
    for start, first in enumerate(steps):
        if first.is_reset:
            continue
        advantage, weight = 0.0, 1.0
        for t in range(start, len(steps)):
            following = 0.0 if steps[t].ending in (TERMINATED, BOTH) else values[t + 1]
            advantage += weight * (steps[t].reward + fold.gamma * following - values[t])
            weight *= decay
            if steps[t].ending != GOES_ON:
                break
        rows.append(Row(first.obs, advantage, advantage + values[start]))
    return rows


def assert_rows(batches: list[SampleBatch], expected: list[Row]) -> None:
    """Compare rows in any order: an accumulator of episodes sends those of an env later than those of another."""
    found = SampleBatch.concat(batches)
    order = np.argsort(found[OBS][:, 0])
    expected = sorted(expected, key=lambda row: row.obs)
    assert found[OBS][order, 0].astype(int).tolist() == [row.obs for row in expected]
    for name, numbers in (
        (ADVANTAGES, [row.advantage for row in expected]),
        (VALUE_TARGETS, [row.target for row in expected]),
    ):
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name][order], numbers, rtol=1e-4, atol=1e-4)
    values = [value_of(row.obs) for row in expected]
    np.testing.assert_allclose(found[VF_PREDS][order], values)
    np.testing.assert_allclose(found[DIST_INPUTS][order], np.stack([values, np.negative(values)], axis=1))
    np.testing.assert_array_equal(found[ACTIONS], -found[OBS][:, 0].astype(int))


FOLDS = st.builds(
    Advantages,
    gamma=st.sampled_from([1.0, 0.9, 0.0]),
    lambda_=st.sampled_from([1.0, 0.95, 0.5, 0.0]),
    uses_gae=st.booleans(),
    uses_critic=st.booleans(),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(streams(), FOLDS)
def test_each_fragment_has_the_advantages_of_a_loop_over_each_env(
    stream: tuple[list[list[Step]], list[int]], fold: Advantages
) -> None:
    envs, lengths = stream
    accumulator = FragmentAccumulator(fold)
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        batch = accumulator.push(with_values(make_fragment(envs, start, stop)))
        assert_rows([batch], [row for env in envs for row in slow_rows(env[start:stop], fold)])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(streams(), FOLDS, st.integers(1, 12))
def test_ended_episodes_have_the_advantages_of_a_loop_over_each_episode(
    stream: tuple[list[list[Step]], list[int]], fold: Advantages, min_steps: int
) -> None:
    envs, lengths = stream
    accumulator = EpisodeAccumulator(fold, min_steps)
    batches: list[SampleBatch] = []
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        batch = accumulator.push(with_values(make_fragment(envs, start, stop)))
        if batch is None:
            continue
        batches.append(batch)
        # What has not ended has no row, and no part in the advantages of what has.
        ended = [env[: 1 + max((t for t in range(stop) if env[t].ending != GOES_ON), default=-1)] for env in envs]
        assert_rows(batches, [row for env in ended if env for row in slow_rows(env, fold)])


def by_hand(endings: list[int], fold: Advantages = GAE) -> tuple[list[float], list[float]]:
    """Return advantages and targets of rewards 1, 2, 3 and values .5, .4, .3 and .2, as far as they are rows."""
    fragment = make_fragment([make_steps(0, [1, 2, 3], endings)], 0, 3)
    values = np.array([[0.5], [0.4], [0.3], [0.2]], np.float32)
    batch = fold.rows(replace(fragment, outputs={VF_PREDS: values}), 3)
    return [round(float(number), 5) for number in batch[ADVANTAGES]], [
        round(float(number), 5) for number in batch[VALUE_TARGETS]
    ]


@pytest.mark.parametrize(
    ("endings", "advantages", "targets"),
    [
        ([GOES_ON, GOES_ON, GOES_ON], [1.3125, 2.45, 2.8], [1.8125, 2.85, 3.1]),
        ([GOES_ON, GOES_ON, TERMINATED], [1.30625, 2.425, 2.7], [1.80625, 2.825, 3.0]),
        ([GOES_ON, TRUNCATED, GOES_ON], [1.1375, 1.75], [1.6375, 2.15]),
        ([GOES_ON, TERMINATED, GOES_ON], [1.1, 1.6], [1.6, 2.0]),
        ([GOES_ON, BOTH, GOES_ON], [1.1, 1.6], [1.6, 2.0]),
    ],
    ids=["cut", "terminated at the last step", "truncated before a reset", "terminated before a reset", "both"],
)
def test_gae_of_three_steps_by_hand(endings: list[int], advantages: list[float], targets: list[float]) -> None:
    assert by_hand(endings) == (advantages, targets)


def test_returns_of_three_steps_by_hand() -> None:
    # 1 + .5 * (2 + .5 * (3 + .5 * .2)) with the value of what follows the cut; without a critic that counts as 0.
    returns = [2.775, 3.55, 3.1]
    assert by_hand([GOES_ON] * 3, RETURNS) == ([2.275, 3.15, 2.8], returns)
    assert by_hand([GOES_ON] * 3, NO_CRITIC) == ([2.75, 3.5, 3.0], [2.75, 3.5, 3.0])


def test_lambda_of_one_is_the_return_without_gae() -> None:
    for endings in ([GOES_ON] * 3, [GOES_ON, TRUNCATED, GOES_ON], [GOES_ON, GOES_ON, TERMINATED]):
        assert by_hand(endings, replace(GAE, lambda_=1.0)) == by_hand(endings, RETURNS)


def test_lambda_of_zero_is_one_td_error_wherever_fragments_end() -> None:
    fold = replace(GAE, lambda_=0.0)
    envs = [make_steps(env, list(range(12)), [GOES_ON] * 4 + [TRUNCATED] + [GOES_ON] * 7) for env in range(2)]
    whole = fold.rows(with_values(make_fragment(envs, 0, 12)), 12)
    accumulator = FragmentAccumulator(fold)
    parts = [accumulator.push(with_values(make_fragment(envs, t, t + 3))) for t in range(0, 12, 3)]
    for name in (OBS, ADVANTAGES, VALUE_TARGETS):
        np.testing.assert_array_equal(SampleBatch.concat(parts)[name], whole[name])
    assert whole[ADVANTAGES][0] == pytest.approx(0 + 0.5 * value_of(1) - value_of(0))


def test_a_fragment_of_one_step_has_its_td_error() -> None:
    fragment = make_fragment([make_steps(0, [3], [GOES_ON])], 0, 1)
    batch = GAE.rows(replace(fragment, outputs={VF_PREDS: np.array([[0.5], [0.4]], np.float32)}), 1)
    assert batch[ADVANTAGES].tolist() == pytest.approx([3 + 0.5 * 0.4 - 0.5])


def test_the_fragments_given_are_not_written_into() -> None:
    steps = [make_steps(0, [1, 2, 4, 8], [GOES_ON, TERMINATED, GOES_ON, GOES_ON])]
    fragment = with_values(make_fragment(steps, 0, 4))
    columns = {**vars(fragment), **fragment.outputs}
    del columns["outputs"]
    for column in columns.values():
        column.setflags(write=False)
    FragmentAccumulator(GAE).push(fragment)
    EpisodeAccumulator(GAE, 1).push(fragment)
