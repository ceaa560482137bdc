"""What both samplers must do: keep the newest rows, hand out copies under their own keys, and draw by their law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay.rows import RowRing
from rlexp.replay.samplers import PrioritizedSampler, Sampler, UniformSampler
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import ACTIONS, IMPORTANCE_WEIGHTS, KEYS, OBS, REWARDS, Array, SampleBatch
from tests.lab.checkpoints import in_memory


def rows(count: int) -> SampleBatch:
    return SampleBatch({ACTIONS: np.zeros(count, np.int64)})


def make_sampler(capacity: int, alpha: float) -> PrioritizedSampler:
    return PrioritizedSampler(RowRing(capacity, FrameStorage(capacity)), alpha)


def weight_of(batch: SampleBatch) -> dict[int, float]:
    return dict(zip(batch[KEYS].tolist(), batch[IMPORTANCE_WEIGHTS].tolist(), strict=True))


def follows(counts: Array, chances: Array) -> bool:
    """Whether ``counts [N]`` are as near to ``chances [N]`` as chance brings them, by a chi-square of 5 sigma.

    What is expected less than 10 times is counted together: the law of a chi-square is for more.
    """
    expected = counts.sum() * chances
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    chi_square = ((counts - expected) ** 2 / np.maximum(expected, 1)).sum()
    freedom = len(counts) - 1
    return bool(abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom))


def test_prioritized_weights_match_hand_computation() -> None:
    sampler = make_sampler(4, alpha=0.5)
    sampler.add(rows(4), np.array([1.0, 4.0, 16.0, 81.0]))
    # p^alpha = 1, 2, 4, 9, so P = 1/16, 2/16, 4/16, 9/16 and N P = 1/4, 1/2, 1, 9/4.
    # (N P)^-0.5 = 2, sqrt 2, 1, 2/3; divided by the largest, 2: 1, 1/sqrt 2, 1/2, 1/3.
    batch = sampler.sample(500, 0.5, np.random.default_rng(0))
    assert batch[IMPORTANCE_WEIGHTS].dtype == np.float32
    assert weight_of(batch) == pytest.approx({0: 1.0, 1: 0.5**0.5, 2: 0.5, 3: 1 / 3})
    full = sampler.sample(500, 1.0, np.random.default_rng(0))
    assert weight_of(full) == pytest.approx({0: 1.0, 1: 1 / 2, 2: 1 / 4, 3: 1 / 9})
    assert set(sampler.sample(500, 0.0, np.random.default_rng(0))[IMPORTANCE_WEIGHTS].tolist()) == {1.0}


def test_prioritized_weights_are_normalized_over_all_rows() -> None:
    sampler = make_sampler(2, alpha=1.0)
    sampler.add(rows(2), np.array([1e-9, 1.0]))
    batch = sampler.sample(50, 1.0, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) == {1}
    assert batch[IMPORTANCE_WEIGHTS].tolist() == pytest.approx([1e-9] * 50)
    sampler.add(rows(1), np.array([0.5]))  # overwrites the small one
    assert weight_of(sampler.sample(50, 1.0, np.random.default_rng(0))) == pytest.approx({1: 0.5, 2: 1.0})


def test_prioritized_weights_can_be_normalized_over_the_batch() -> None:
    sampler = PrioritizedSampler(RowRing(3, FrameStorage(3)), 1.0, "batch")
    sampler.add(rows(3), np.array([1e-9, 1.0, 4.0]))
    weights = weight_of(sampler.sample(50, 0.5, np.random.default_rng(0)))
    assert weights == pytest.approx({1: 1.0, 2: 0.5})  # the row of 1e-9 was not drawn


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_prioritized_draws_follow_priorities_after_many_updates(alpha: float) -> None:
    capacity, rng = 5000, np.random.default_rng(7)
    sampler, priorities = make_sampler(capacity, alpha), np.zeros(capacity)
    for turn in range(800):
        new, given = int(rng.integers(1, 200)), 10.0 ** rng.uniform(-3, 3, 200)
        slots = np.arange(sampler.rows.num_added, sampler.rows.num_added + new) % capacity
        sampler.add(rows(new), given[:new])
        priorities[slots] = given[:new]
        oldest = sampler.rows.num_added - sampler.rows.size
        keys, changed = rng.integers(oldest, oldest + sampler.rows.size, 3000), 10.0 ** rng.uniform(-3, 3, 3000)
        assert sampler.update_priorities(keys, changed) == 0
        priorities[keys % capacity] = changed
        if turn % 3 == 0:
            sampler.sample(64, 0.5, rng)
    drawn = sampler.sample(400_000, 1.0, rng)[KEYS] % capacity
    assert follows(np.bincount(drawn, minlength=capacity), priorities**alpha / (priorities**alpha).sum())


def test_prioritized_draws_are_independent() -> None:
    sampler, rng, priorities = make_sampler(4, alpha=1.0), np.random.default_rng(0), np.array([1.0, 2.0, 3.0, 4.0])
    sampler.add(rows(4), priorities)
    pairs = np.array([np.sort(sampler.sample(2, 1.0, rng)[KEYS]) for _ in range(5000)])
    chances = np.outer(priorities, priorities) / priorities.sum() ** 2
    both_orders = np.triu(chances) + np.tril(chances, -1).T
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    assert follows(counts, both_orders.ravel())


def test_prioritized_never_draws_priority_zero() -> None:
    sampler = make_sampler(600, alpha=0.6)
    sampler.add(rows(600), np.where(np.arange(600) % 3 == 0, 0.0, 2.0))
    drawn = sampler.sample(5000, 1.0, np.random.default_rng(0))
    assert (drawn[KEYS] % 3 != 0).all()
    assert (drawn[IMPORTANCE_WEIGHTS] == 1).all()


@given(
    capacity=st.integers(1, 6),
    script=st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.tuples(st.integers(-3, 40), st.floats(0.1, 9)), max_size=6)),
        min_size=1,
        max_size=6,
    ),
)
def test_prioritized_matches_a_dict_of_newest_keys(
    capacity: int, script: list[tuple[int, list[tuple[int, float]]]]
) -> None:
    sampler, model, added, highest = make_sampler(capacity, 1.0), dict[int, float](), 0, 1.0
    for count, updates in script:
        sampler.add(rows(count))
        model |= dict.fromkeys(range(added, added + count), highest)
        added += count
        model = {key: model[key] for key in sorted(model)[-capacity:]}
        dropped = sampler.update_priorities(
            np.array([key for key, _ in updates], np.int64), np.array([priority for _, priority in updates])
        )
        assert dropped == sum(key not in model for key, _ in updates)
        for key, priority in updates:
            if key in model:
                model[key] = priority
                highest = max(highest, priority)
    if model:
        batch = sampler.sample(200, 1.0, np.random.default_rng(0))
        lowest = min(model.values())
        assert weight_of(batch) == pytest.approx({key: lowest / model[key] for key in set(batch[KEYS].tolist())})


def test_prioritized_drops_priorities_of_overwritten_rows() -> None:
    sampler = make_sampler(3, alpha=1.0)
    sampler.add(rows(3))
    sampler.add(rows(2))  # keys 3 and 4 in the places of 0 and 1
    assert sampler.update_priorities(np.array([0, 1, 2]), np.array([50.0, 50.0, 2.0])) == 2
    assert weight_of(sampler.sample(200, 1.0, np.random.default_rng(0))) == pytest.approx({2: 0.5, 3: 1.0, 4: 1.0})


def test_prioritized_default_priority_is_the_highest() -> None:
    sampler = make_sampler(5, alpha=1.0)
    sampler.add(rows(1))  # 1
    sampler.add(rows(1), np.array([4.0]))
    sampler.update_priorities(np.array([0]), np.array([8.0]))
    sampler.update_priorities(np.array([0]), np.array([2.0]))
    sampler.add(rows(1))  # 8, though no row has it any more
    sampler.update_priorities(np.array([99]), np.array([1000.0]))  # no row of ours
    sampler.add(rows(1))
    assert weight_of(sampler.sample(200, 1.0, np.random.default_rng(0))) == pytest.approx(
        {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.25}
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-9])
def test_prioritized_refuses_invalid_priorities(bad: float) -> None:
    sampler = make_sampler(4, alpha=0.6)
    sampler.add(rows(2), np.array([1.0, 3.0]))
    before = in_memory(sampler.state())
    with pytest.raises(ValueError, match="priority of row 1 is"):
        sampler.add(rows(3), np.array([1.0, bad, bad]))
    with pytest.raises(ValueError, match="priority of row 0 is"):
        sampler.update_priorities(np.array([1, 0]), np.array([bad, 1.0]))
    with pytest.raises(ValueError, match=r"shape \[2, 1\] for 2 rows"):
        sampler.update_priorities(np.array([1, 0]), np.ones((2, 1)))
    after = in_memory(sampler.state())
    assert after["num_added"] == 2
    np.testing.assert_array_equal(after["priorities_to_alpha"], before["priorities_to_alpha"])


def test_prioritized_sample_of_nothing_raises() -> None:
    sampler = make_sampler(4, alpha=0.6)
    sampler.add(rows(2), np.zeros(2))
    with pytest.raises(ValueError, match="every slot is empty"):
        sampler.sample(1, 1.0, np.random.default_rng(0))


def test_prioritized_checks_alpha() -> None:
    with pytest.raises(ValueError, match=r"alpha is 1\.5"):
        make_sampler(4, alpha=1.5)
    with pytest.raises(CheckpointError, match=r"alpha 0\.6 does not fit alpha 0\.5"):
        make_sampler(4, alpha=0.5).load(in_memory(make_sampler(4, alpha=0.6).state()))
    with pytest.raises(CheckpointError, match="1 priorities for 0 rows"):
        make_sampler(4, alpha=0.6).load(
            {**in_memory(make_sampler(4, alpha=0.6).state()), "priorities_to_alpha": np.ones(1)}
        )


MakeSampler = Callable[[int], Sampler]


def numbered_rows(first: int, count: int) -> SampleBatch:
    """Rows that say in every column which one they are, in memory as read-only as an object store's."""
    numbers = np.arange(first, first + count)
    batch = SampleBatch({OBS: np.stack([numbers, -numbers], axis=1).astype(np.float32), ACTIONS: numbers})
    for column in batch.columns.values():
        column.flags.writeable = False
    return batch


def uniform(capacity: int) -> Sampler:
    return UniformSampler(RowRing(capacity, FrameStorage(capacity)))


def prioritized(capacity: int) -> Sampler:
    return PrioritizedSampler(RowRing(capacity, FrameStorage(capacity)), 0.6)


both = pytest.mark.parametrize("make_sampler", [uniform, prioritized])


@both
@given(capacity=st.sampled_from([1, 2, 3, 7, 600]), counts=st.lists(st.integers(0, 20), min_size=1, max_size=8))
def test_sampler_holds_newest_rows_by_key(make_sampler: MakeSampler, capacity: int, counts: list[int]) -> None:
    sampler, added = make_sampler(capacity), 0
    for count in counts:
        sampler.add(numbered_rows(added, count), None)
        added += count
    held = range(max(added - capacity, 0), added)
    assert (sampler.rows.num_added, sampler.rows.size) == (added, len(held))
    if not held:
        with pytest.raises(ValueError, match="nothing"):
            sampler.sample(1, 1.0, np.random.default_rng(0))
        return
    batch = sampler.sample(40 * len(held), 0.5, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) <= set(held)
    assert len(set(batch[KEYS].tolist())) >= len(held) - 3  # each is missed with probability e^-40
    assert batch[KEYS].dtype == np.int64
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])
    np.testing.assert_array_equal(batch[OBS], np.stack([batch[KEYS], -batch[KEYS]], axis=1))
    np.testing.assert_array_equal(batch[IMPORTANCE_WEIGHTS], np.ones(len(batch), np.float32))


@both
def test_sampler_keeps_last_rows_of_a_large_batch(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(5)
    sampler.add(numbered_rows(0, 3), None)
    sampler.add(numbered_rows(3, 14), np.arange(14.0) + 1)
    batch = sampler.sample(500, 0.0, np.random.default_rng(0))
    assert set(batch[KEYS].tolist()) == {12, 13, 14, 15, 16}
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_sampler_sample_returns_copies(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(4)
    sampler.add(numbered_rows(0, 4), None)
    batch = sampler.sample(100, 1.0, np.random.default_rng(0))
    for column in batch.columns.values():
        column[...] = 77
    again = sampler.sample(100, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(again[ACTIONS], again[KEYS])
    assert again[ACTIONS].max() == 3


@both
def test_sampler_add_copies_rows(make_sampler: MakeSampler) -> None:
    sampler, actions = make_sampler(4), np.arange(4)
    sampler.add(SampleBatch({ACTIONS: actions}), None)
    actions[...] = 77
    batch = sampler.sample(50, 1.0, np.random.default_rng(0))
    np.testing.assert_array_equal(batch[ACTIONS], batch[KEYS])


@both
def test_sampler_draws_are_seeded(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1000)
    sampler.add(numbered_rows(0, 1000), np.arange(1000.0))
    first, same, other = (sampler.sample(64, 1.0, np.random.default_rng(seed))[KEYS] for seed in (1, 1, 2))
    assert (first == same).all()
    assert (first != other).any()


@both
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (SampleBatch({OBS: np.zeros((1, 2), np.float32)}), "columns"),
        (SampleBatch({OBS: np.zeros((1, 3), np.float32), ACTIONS: np.zeros(1, np.int64)}), r"obs.*\[3\].*\[2\]"),
        (SampleBatch({OBS: np.zeros((1, 2)), ACTIONS: np.zeros(1, np.int64)}), "float64.*float32"),
    ],
)
def test_sampler_refuses_other_columns(make_sampler: MakeSampler, other: SampleBatch, message: str) -> None:
    sampler = make_sampler(4)
    sampler.add(numbered_rows(0, 3), None)
    with pytest.raises(ValueError, match=message):
        sampler.add(other, None)
    assert sampler.rows.num_added == 3
    assert set(sampler.sample(100, 1.0, np.random.default_rng(0))[KEYS].tolist()) == {0, 1, 2}


@both
def test_sampler_loaded_state_draws_the_same(make_sampler: MakeSampler) -> None:
    original, copy = make_sampler(50), make_sampler(50)
    original.add(numbered_rows(0, 73), np.linspace(0, 5, 73))
    copy.add(numbered_rows(0, 20), None)
    state = in_memory(original.state())
    original.add(numbered_rows(73, 10), None)  # must not reach the state taken before
    copy.load(state)
    copy.add(numbered_rows(73, 10), None)
    drawn = [sampler.sample(300, 0.4, np.random.default_rng(3)) for sampler in (original, copy)]
    for name in drawn[0]:
        np.testing.assert_array_equal(drawn[0][name], drawn[1][name])


@both
def test_sampler_loads_empty_state(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(3)
    sampler.add(numbered_rows(0, 2), None)
    sampler.load(in_memory(make_sampler(3).state()))
    assert sampler.rows.size == 0
    sampler.add(SampleBatch({REWARDS: np.zeros(1)}), None)  # columns are open again
    assert sampler.rows.size == 1


@both
def test_sampler_refuses_state_of_other_capacity(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(3)
    sampler.add(numbered_rows(0, 2), None)
    with pytest.raises(CheckpointError, match="capacity 3 does not fit into 4"):
        make_sampler(4).load(in_memory(sampler.state()))
    with pytest.raises(CheckpointError, match="should hold 3 rows"):
        make_sampler(3).load({**in_memory(sampler.state()), "num_added": 3})


@both
def test_sampler_nbytes_and_close(make_sampler: MakeSampler) -> None:
    sampler = make_sampler(1000)
    before = sampler.nbytes
    sampler.add(numbered_rows(0, 1), None)
    assert sampler.nbytes - before == 1000 * 16  # two float32 and an int64 a row
    sampler.rows.close()
    sampler.rows.close()
    assert sampler.nbytes == before


@both
def test_sampler_refuses_capacity_zero(make_sampler: MakeSampler) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make_sampler(0)


def test_uniform_draws_equally_often() -> None:
    sampler = uniform(100)
    sampler.add(numbered_rows(0, 130), np.full(130, np.nan))
    assert sampler.update_priorities(np.array([0, 129, 10**9]), np.array([np.nan, 1.0, 1.0])) == 0
    counts = np.bincount(sampler.sample(100_000, 1.0, np.random.default_rng(0))[KEYS] - 30, minlength=100)
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert 60 < chi_square < 150  # 99 degrees of freedom
