"""The accumulator of whole episodes against a model that looks at one env at a time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.errors import TrialError
from rlexp.rollout import folds
from rlexp.rollout.folds import EpisodeAccumulator, NStep
from tests.unit.rollout.test_n_step import (
    GOES_ON,
    TERMINATED,
    TRUNCATED,
    Row,
    Step,
    as_rows,
    assert_same_rows,
    make_fragment,
    make_steps,
    slow_rows,
    streams,
)


def ended_rows(steps: list[Step], n_step: int, gamma: float) -> list[Row]:
    """Return the rows of one env up to its last end of an episode."""
    ends = [t for t, step in enumerate(steps) if step.ending != GOES_ON]
    if not ends:
        return []
    # What follows the end is never folded: any steps will do, so that the model finds its n successors.
    beyond = [Step(steps[ends[-1]].obs + 1 + k, 0, GOES_ON, is_reset=True) for k in range(n_step)]
    return slow_rows(steps[: ends[-1] + 1] + beyond, n_step, gamma)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(streams(), st.integers(1, 6), st.sampled_from([1.0, 0.5]), st.integers(1, 12))
def test_each_ended_episode_is_sent_once_and_as_soon_as_there_are_enough_steps(
    stream: tuple[list[list[Step]], list[int]], n_step: int, gamma: float, min_steps: int
) -> None:
    envs, lengths = stream
    accumulator = EpisodeAccumulator(NStep(n_step, gamma), min_steps)
    found: list[Row] = []
    stop = 0
    for length in lengths:
        start, stop = stop, stop + length
        batch = accumulator.push(make_fragment(envs, start, stop))
        ended = [row for env in envs for row in ended_rows(env[:stop], n_step, gamma)]
        if len(ended) - len(found) < min_steps:
            assert batch is None
        else:
            assert batch is not None
            found += as_rows(batch)
            assert_same_rows(found, ended)


def test_memory_is_bounded_even_while_other_envs_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MAX_WAITING_BYTES", 100)
    endings = [[TERMINATED, GOES_ON] * 20, [GOES_ON] * 40]
    envs = [make_steps(env, [1] * 40, each) for env, each in enumerate(endings)]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), 1)
    for t in range(0, 8, 2):
        assert accumulator.push(make_fragment(envs, t, t + 2)) is not None
    with pytest.raises(TrialError, match=r"episodes that have not ended"):
        accumulator.push(make_fragment(envs, 8, 40))


def test_memory_is_free_again_once_episodes_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "MAX_WAITING_BYTES", 100)
    steps = [make_steps(0, [1] * 400, [GOES_ON, TRUNCATED] * 200)]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), 1)
    assert all(accumulator.push(make_fragment(steps, t, t + 4)) is not None for t in range(0, 400, 4))


def test_an_episode_over_many_fragments_counts_with_all_its_steps() -> None:
    steps = [make_steps(0, [1] * 5, [GOES_ON] * 4 + [TERMINATED])]
    accumulator = EpisodeAccumulator(NStep(1, 0.9), min_steps=5)
    batches = [accumulator.push(make_fragment(steps, t, t + 1)) for t in range(5)]
    assert batches[:4] == [None] * 4
    assert batches[4] is not None
    assert batches[4].count == 5
