"""V-trace by hand, against its definition as sums, and against n-step returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.agents.impala import VTraceClips, suffix_sums, vtrace
from rlexp.rollout.folds import DIST_INPUTS, IS_STEP, LOGP
from rlexp.sample_batch import ACTIONS, Array
from tests.lab.agents import updates_of
from tests.lab.impala import make_agent, segments_of, slow_vtrace

UNCLIPPED = VTraceClips(np.inf, np.inf)


def found(columns: tuple[Array, ...], ratios: Array, clips: VTraceClips) -> tuple[Array, Array]:
    """Return targets and advantages of ``values, rewards, discounts, is_step`` and ratios, in double precision."""
    tensors = [torch.tensor(each, dtype=torch.float64) for each in (*columns, np.log(ratios))]
    targets, advantages = vtrace(*tensors, clips=clips)
    return targets.numpy(), advantages.numpy()


def test_two_steps_by_hand() -> None:
    """Rewards 1 and 1, no values yet, 1 after them; gamma 0.5; ratios 2 and 0.5."""
    columns = (np.array([0.0, 0, 1]), np.array([1.0, 1, 0]), np.full(3, 0.5), np.array([1.0, 1, 0]))
    targets, advantages = found(columns, np.array([2.0, 0.5, 1.0]), VTraceClips(1.0, 1.0))
    np.testing.assert_allclose(targets, [1.375, 0.75, 1.0])
    np.testing.assert_allclose(advantages[:2], [1.375, 0.75])


@st.composite
def segments(draw: st.DrawFn) -> tuple[tuple[Array, ...], Array]:
    """Return the columns of segments, which end with a terminated episode or with a value, and ratios."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    is_step = np.concatenate([[1.0] * length + [0.0] for length in lengths])
    count = len(is_step)
    discounts = np.full(count, draw(st.sampled_from([0.0, 0.5, 0.99, 1.0])))
    last = np.flatnonzero(is_step == 0) - 1
    discounts[last[rng.random(len(last)) < 0.5]] = 0.0
    values, rewards = rng.normal(size=(2, count)) * 3
    ratios = np.exp(rng.normal(size=count) * draw(st.sampled_from([0.0, 1.0, 3.0])))
    return (values, rewards, discounts, is_step), ratios


@given(segments(), st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 3.0]))
@settings(max_examples=100, deadline=None)
def test_it_is_the_sum_of_the_paper(drawn: tuple[tuple[Array, ...], Array], rho: float, pg_rho: float) -> None:
    columns, ratios = drawn
    targets, advantages = found(columns, ratios, VTraceClips(rho, pg_rho))
    values, rewards, discounts, is_step = columns
    expected_targets, expected = slow_vtrace(values, rewards, discounts, is_step, ratios, rho=rho, pg_rho=pg_rho)
    np.testing.assert_allclose(targets, expected_targets, rtol=1e-9, atol=1e-9)
    steps = is_step == 1
    np.testing.assert_allclose(advantages[steps], expected[steps], rtol=1e-9, atol=1e-9)


@given(segments())
@settings(max_examples=50, deadline=None)
def test_on_policy_targets_are_n_step_returns(drawn: tuple[tuple[Array, ...], Array]) -> None:
    """Whatever the limits above 1 are: from each step the discounted rewards, and the value behind the segment."""
    (values, rewards, discounts, is_step), _ = drawn
    targets, _ = found((values, rewards, discounts, is_step), np.ones(len(values)), UNCLIPPED)
    for segment in segments_of(is_step):
        following = values[segment.stop]
        for step in reversed(segment):
            following = rewards[step] + discounts[step] * following
            np.testing.assert_allclose(targets[step], following, rtol=1e-9, atol=1e-9)


def test_sums_reach_over_any_number_of_rows() -> None:
    for count in (1, 2, 3, 7, 64, 65):
        factors = torch.full((count,), 0.5, dtype=torch.float64)
        factors[-1] = 0.0
        sums = suffix_sums(torch.ones(count, dtype=torch.float64), factors)
        following = 0.0
        for index in range(count - 1, -1, -1):
            following = 1.0 + float(factors[index]) * following
            assert sums[index].item() == following


def test_a_ratio_that_overflows_is_clipped() -> None:
    tensors = [torch.tensor(each) for each in ([0.0, 0.0], [1.0, 0.0], [0.5, 0.5], [1.0, 0.0], [200.0, 200.0])]
    targets, advantages = vtrace(*tensors, clips=VTraceClips(1.0, 1.0))
    assert targets.tolist() == [1.0, 0.0]
    assert advantages[0].item() == 1.0


@pytest.mark.parametrize("run", ["APPO", "IMPALA"])
def test_a_row_that_is_no_step_may_be_improbable(run: str) -> None:
    """Its action was not drawn from its policy; the ratio of two densities there may overflow."""
    keys: dict[str, Any] = {"target_update_frequency": 100} if run == "APPO" else {}
    agent = make_agent(run, "Pendulum-v1", **keys)
    batch = updates_of(agent, 1)[0].batch
    no_steps = np.flatnonzero(~batch[IS_STEP])
    batch[ACTIONS][no_steps, 0] = np.resize([1e6, -1e6], len(no_steps))
    batch[LOGP][no_steps] = -1e13
    batch[DIST_INPUTS][no_steps] = [1e25, 0.0]  # mean and logarithm of the deviation
    with agent.optimizer.paused() as learner:
        stats = learner.learn_on_batch(batch).stats
    assert np.isfinite([*stats.values()]).all()
