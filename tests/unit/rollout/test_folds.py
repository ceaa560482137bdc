"""All folds by hand, and both accumulators against models that look at one env, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.errors import TrialError
from rlexp.rollout import fragment
from rlexp.rollout.folds import (
    ADVANTAGES,
    DIST_INPUTS,
    IS_STEP,
    VALUE_TARGETS,
    VF_PREDS,
    Advantages,
    EpisodeAccumulator,
    Fold,
    FragmentAccumulator,
    NStep,
    Segments,
)
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
class NStepRow:
    """A transition, as the model folds it."""

    obs: int
    reward: float
    discount: float
    new_obs: int


def slow_n_step_rows(steps: list[Step], n_step: int, gamma: float) -> list[NStepRow]:
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
        rows.append(NStepRow(observations[t], reward, discount, observations[t + m]))
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


def as_rows(batch: SampleBatch) -> list[NStepRow]:
    columns = (batch[OBS][:, 0], batch[REWARDS], batch[DISCOUNTS], batch[NEW_OBS][:, 0])
    return [NStepRow(int(o), float(r), float(d), int(n)) for o, r, d, n in zip(*columns, strict=True)]


def assert_same_rows(found: list[NStepRow], expected: list[NStepRow]) -> None:
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
    found: list[NStepRow] = []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        batch = accumulator.push(make_fragment(envs, start, stop))
        assert batch.count <= (stop - start) * len(envs)
        assert (batch[ACTIONS] == -batch[OBS][:, 0]).all()
        assert (batch[OUTPUT] == 10 * batch[OBS][:, 0]).all()
        assert (batch[new(OUTPUT)] == 10 * batch[NEW_OBS][:, 0]).all()
        found += as_rows(batch)
        # After every push, not only at the end: what can be folded is never held back.
        seen = [slow_n_step_rows(env[:stop], n_step, gamma) if stop >= n_step else [] for env in envs]
        assert_same_rows(found, [row for rows in seen for row in rows])


THREE_MORE = [GOES_ON] * 3


@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        ([GOES_ON] * 4, [NStepRow(0, 1 + 0.5 * 2 + 0.25 * 4, 0.125, 3), NStepRow(1, 2 + 0.5 * 4 + 0.25 * 8, 0.125, 4)]),
        ([GOES_ON, TERMINATED, *THREE_MORE], [NStepRow(0, 1 + 0.5 * 2, 0.0, 2), NStepRow(1, 2, 0.0, 2)]),
        ([GOES_ON, TRUNCATED, *THREE_MORE], [NStepRow(0, 1 + 0.5 * 2, 0.25, 2), NStepRow(1, 2, 0.5, 2)]),
    ],
    ids=["no end", "nothing follows a termination", "a truncation bootstraps with the steps folded"],
)
def test_three_steps_by_hand(endings: list[int], expected: list[NStepRow]) -> None:
    rewards = [1, 2, 4, 8, 16][: len(endings)]
    fragment = make_fragment([make_steps(0, rewards, endings)], 0, len(rewards))
    assert as_rows(FragmentAccumulator(NStep(3, 0.5)).push(fragment)) == expected


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
    for start, stop in pairwise(accumulate(lengths, initial=0)):
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
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        batch = accumulator.push(with_values(make_fragment(envs, start, stop)))
        if batch is None:
            continue
        batches.append(batch)
        # What has not ended has no row, and no part in the advantages of what has.
        ended = [env[: 1 + max((t for t in range(stop) if env[t].ending != GOES_ON), default=-1)] for env in envs]
        assert_rows(batches, [row for env in ended if env for row in slow_rows(env, fold)])


def test_a_state_in_which_no_step_waits_can_be_loaded() -> None:
    accumulator = EpisodeAccumulator(GAE, 1)
    accumulator.push(with_values(make_fragment([make_steps(0, [1, 2], [GOES_ON, TERMINATED])], 0, 2)))
    again = EpisodeAccumulator(GAE, 1)
    again.load(accumulator.state())
    batch = again.push(with_values(make_fragment([make_steps(0, [3], [TERMINATED])], 0, 1)))
    assert batch is not None
    assert batch.count == 1


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


@pytest.mark.parametrize("fold", [GAE, NStep(3, 0.9)], ids=["GAE", "3-step"])
def test_the_fragments_given_are_not_written_into(fold: Fold) -> None:
    steps = [make_steps(0, [1, 2, 4, 8], [GOES_ON, TERMINATED, GOES_ON, GOES_ON])]
    accumulators = FragmentAccumulator(fold), EpisodeAccumulator(fold, 1)
    for start in (0, 2):
        fragment = with_values(make_fragment(steps, start, start + 2))
        for column in (
            *fragment.outputs.values(),
            *(vars(fragment)[name] for name in vars(fragment) if name != "outputs"),
        ):
            column.setflags(write=False)
        for accumulator in accumulators:
            accumulator.push(fragment)


def ended_rows(steps: list[Step], n_step: int, gamma: float) -> list[NStepRow]:
    """Return the rows of one env up to its last end of an episode."""
    ends = [t for t, step in enumerate(steps) if step.ending != GOES_ON]
    if not ends:
        return []
    # What follows the end is never folded: any steps will do, so that the model finds its n successors.
    beyond = [Step(steps[ends[-1]].obs + 1 + k, 0, GOES_ON, is_reset=True) for k in range(n_step)]
    return slow_n_step_rows(steps[: ends[-1] + 1] + beyond, n_step, gamma)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(streams(), st.integers(1, 6), st.sampled_from([1.0, 0.5]), st.integers(1, 12))
def test_each_ended_episode_is_sent_once_and_as_soon_as_there_are_enough_steps(
    stream: tuple[list[list[Step]], list[int]], n_step: int, gamma: float, min_steps: int
) -> None:
    envs, lengths = stream
    accumulator = EpisodeAccumulator(NStep(n_step, gamma), min_steps)
    found: list[NStepRow] = []
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        batch = accumulator.push(make_fragment(envs, start, stop))
        ended = [row for env in envs for row in ended_rows(env[:stop], n_step, gamma)]
        if len(ended) - len(found) < min_steps:
            assert batch is None
        else:
            assert batch is not None
            found += as_rows(batch)
            assert_same_rows(found, ended)


def test_memory_is_bounded_even_while_other_envs_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment, "MAX_WAITING_BYTES", 300)
    endings = [[TERMINATED, GOES_ON] * 20, [GOES_ON] * 40]
    envs = [make_steps(env, [1] * 40, each) for env, each in enumerate(endings)]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), 1)
    for t in range(0, 8, 2):
        assert accumulator.push(make_fragment(envs, t, t + 2)) is not None
    with pytest.raises(TrialError, match=r"episodes that have not ended"):
        accumulator.push(make_fragment(envs, 8, 40))


def test_memory_is_free_again_once_episodes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment, "MAX_WAITING_BYTES", 100)
    steps = [make_steps(0, [1] * 400, [GOES_ON, TRUNCATED] * 200)]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), 1)
    assert all(accumulator.push(make_fragment(steps, t, t + 4)) is not None for t in range(0, 400, 4))


def test_an_agent_that_never_comes_holds_back_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment, "MAX_WAITING_BYTES", 200)
    endings = [[GOES_ON, TRUNCATED, GOES_ON, GOES_ON] * 100, [GOES_ON] * 400]
    steps = [make_steps(env, [1] * 400, each) for env, each in enumerate(endings)]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), 1)
    for t in range(0, 400, 4):
        both = make_fragment(steps, t, t + 4)
        batch = accumulator.push(replace(both, valid=both.valid & [True, False]))
        assert batch is not None
        assert batch.count == (2 if t == 0 else 3)


def segment_rows(steps: list[Step], start: int, stop: int, gamma: float) -> list[tuple[int, float, float, bool]]:
    """Return observation, reward, discount and whether it is a step, of each row of one env."""
    rows: list[tuple[int, float, float, bool]] = []
    for t in range(start, stop):
        if steps[t].is_reset:
            continue
        ends = steps[t].ending != GOES_ON
        discount = 0.0 if steps[t].ending in (TERMINATED, BOTH) else gamma
        rows.append((steps[t].obs, steps[t].reward, discount, True))
        if ends or t == stop - 1:
            rows.append((steps[t].obs + 1, 0.0, 0.0, False))
    return rows


@settings(max_examples=200, deadline=None, derandomize=True)
@given(streams(), st.sampled_from([0.9, 0.0]))
def test_segments_are_steps_in_order_each_followed_by_the_observation_after_it(
    stream: tuple[list[list[Step]], list[int]], gamma: float
) -> None:
    envs, lengths = stream
    accumulator = FragmentAccumulator(Segments(gamma))
    for start, stop in pairwise(accumulate(lengths, initial=0)):
        batch = accumulator.push(make_fragment(envs, start, stop))
        expected = [row for env in envs for row in segment_rows(env, start, stop, gamma)]
        is_step = batch[IS_STEP]
        assert batch[OBS][:, 0].tolist() == [row[0] for row in expected]
        assert is_step.tolist() == [row[3] for row in expected]
        assert batch[REWARDS][is_step].tolist() == [row[1] for row in expected if row[3]]
        assert batch[DISCOUNTS][is_step].tolist() == pytest.approx([row[2] for row in expected if row[3]])
        assert (batch[ACTIONS][is_step] == -batch[OBS][is_step, 0]).all()
        assert (batch[OUTPUT] == 10 * batch[OBS][:, 0]).all()


def test_segments_of_whole_episodes_are_these_episodes() -> None:
    endings = [GOES_ON, TERMINATED, GOES_ON, GOES_ON, TRUNCATED, GOES_ON, GOES_ON]
    accumulator = EpisodeAccumulator(Segments(0.9), min_steps=1)
    batch = accumulator.push(make_fragment([make_steps(0, [1] * 7, endings)], 0, 7))
    assert batch is not None
    assert batch[OBS][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert batch[IS_STEP].tolist() == [True, True, False, True, True, False]
