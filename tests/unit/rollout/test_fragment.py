from __future__ import annotations

from dataclasses import replace

import numpy as np

from rlexp.rollout.fragment import Fragment
from rlexp.sample_batch import Array


def make_fragment(start: int, steps: int) -> Fragment:
    """Steps ``start`` and on of two envs; each observation and action is its step's number."""
    times = np.arange(start, start + steps + 1)[:, None].repeat(2, axis=1)
    flags = np.zeros((steps, 2), bool)
    return Fragment(times[..., None], times[:-1], times[:-1].astype(np.float32), flags, flags, ~flags)


def times(column: Array) -> list[int]:
    assert (column[:, 0] == column[:, 1]).all()
    return [int(value) for value in column[:, 0].ravel()]


def test_since_keeps_one_observation_more_than_steps() -> None:
    fragment = make_fragment(10, 4).since(3)
    assert fragment.num_steps == 1
    assert times(fragment.actions) == [13]
    assert times(fragment.obs) == [13, 14]


def test_since_the_end_keeps_the_last_observation() -> None:
    fragment = make_fragment(10, 4).since(4)
    assert fragment.num_steps == 0
    assert times(fragment.obs) == [14]


def test_followed_by_joins_the_streams_without_doubling_the_observation_between() -> None:
    joined = make_fragment(10, 2).followed_by(make_fragment(12, 3))
    assert joined.num_steps == 5
    assert times(joined.obs) == [10, 11, 12, 13, 14, 15]
    assert times(joined.actions) == [10, 11, 12, 13, 14]
    assert times(joined.rewards) == [10, 11, 12, 13, 14]
    assert joined.valid.shape == joined.terminated.shape == joined.truncated.shape == (5, 2)


def test_at_a_border_the_outputs_of_the_weights_that_acted_there_stay() -> None:
    earlier = replace(make_fragment(10, 2), outputs={"values": np.array([[1, 1], [2, 2], [3, 3]])})
    later = replace(make_fragment(12, 2), outputs={"values": np.array([[30, 30], [40, 40], [50, 50]])})
    joined = earlier.followed_by(later)
    assert times(joined.outputs["values"]) == [1, 2, 30, 40, 50]
    assert times(joined.since(3).outputs["values"]) == [40, 50]
    assert make_fragment(10, 2).followed_by(make_fragment(12, 2)).outputs == {}
