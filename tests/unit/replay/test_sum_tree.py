"""The sum tree against a tree made at once, and where sums are rounded."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlexp.replay.sum_tree import BLOCK, BOUND_BLOCK, MOST_STALE, TOP_NODES, SmallestPositive, SumTree
from rlexp.sample_batch import Array

CAPACITIES = [1, 2, 3, BLOCK + 1, TOP_NODES * BLOCK, TOP_NODES * BLOCK + 1, 10_000]
VALUES = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, list[tuple[list[int], list[float], bool]]]:
    """A capacity, and writes to slots: anywhere with repetitions, or a run of neighbours."""
    capacity = draw(st.sampled_from(CAPACITIES))
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        values = draw(st.lists(VALUES, max_size=min(capacity, 12)))
        run = draw(st.booleans())
        start = draw(st.integers(0, capacity - len(values)))
        anywhere = draw(st.lists(st.integers(0, capacity - 1), min_size=len(values), max_size=len(values)))
        calls.append((list(range(start, start + len(values))) if run else anywhere, values, run))
    return capacity, calls


def write(tree: SumTree, slots: list[int], values: list[float], run: bool) -> None:
    if run:
        tree.set_run(slots[0] if slots else 0, np.array(values))
    else:
        tree.set(np.array(slots, np.int64), np.array(values))


def made_at_once(model: Array) -> SumTree:
    tree = SumTree(len(model))
    tree.set_run(0, model)
    return tree


QUESTIONS = ["get", "total", "min", "find"]


@settings(deadline=None)  # two trees an example, on a machine that may be busy
@given(writes(), st.lists(st.lists(st.sampled_from(QUESTIONS), unique=True), min_size=6, max_size=6))
def test_sum_tree_matches_a_new_tree_at_any_time(
    case: tuple[int, list[tuple[list[int], list[float], bool]]], questions: list[list[str]]
) -> None:
    capacity, calls = case
    tree, model = SumTree(capacity), np.zeros(capacity)
    for (slots, values, run), asked in zip(calls, questions, strict=False):
        write(tree, slots, values, run)
        for slot, value in zip(slots, values, strict=True):
            model[slot] = value
        fresh = made_at_once(model)
        for question in asked:
            if question == "get":
                np.testing.assert_array_equal(tree.get(np.arange(capacity)), model)
            elif question == "total":
                assert tree.total == fresh.total == pytest.approx(model.sum(), rel=1e-12)
            elif question == "min":
                assert tree.min == min(model[model > 0], default=np.inf)
            elif model.any():
                numbers = np.linspace(0, fresh.total, 50)
                np.testing.assert_array_equal(tree.find(numbers), fresh.find(numbers))
                np.testing.assert_array_equal(tree.find(numbers)[1], model[tree.find(numbers)[0]])


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_sum_tree_finds_slots_in_proportion_to_values(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    model = rng.integers(0, 4, capacity).astype(np.float64)  # whole numbers: sums are exact in any order
    model[rng.integers(capacity)] = 3.0
    tree = made_at_once(model)
    whole = np.arange(model.sum())
    found, _ = tree.find(whole)
    np.testing.assert_array_equal(np.bincount(found, minlength=capacity), model)
    assert np.count_nonzero(np.diff(found)) == np.count_nonzero(model) - 1  # each is one stretch
    np.testing.assert_array_equal(tree.find(whole + rng.random(len(whole)))[0], found)


def test_sum_tree_bounds_memory_of_stale_slots() -> None:
    tree = SumTree(1000)
    tracemalloc.start()
    try:
        for turn in range(1000):
            tree.set_run(turn % 900, np.full(100, turn + 1.0))
            tree.set(np.arange(100), np.full(100, turn + 1.0))
        assert tracemalloc.get_traced_memory()[0] < 2 * MOST_STALE * 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_sum_tree_never_finds_an_empty_slot(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree = SumTree(capacity)
    for _ in range(20):
        values = rng.random(capacity) * (rng.random(capacity) < 0.3) * 10.0 ** rng.integers(-9, 9, capacity)
        values[rng.integers(capacity)] = 1 / 3
        tree.set_run(0, values)
        edges = np.cumsum(values)
        edges = np.concatenate([edges, np.nextafter(edges, np.inf), np.nextafter(edges, 0), [0.0, tree.total]])
        found, values = tree.find(np.append(edges, tree.total * 1.001))
        assert (values > 0).all()
        np.testing.assert_array_equal(values, tree.get(found))
        assert found.max() < capacity


def test_sum_tree_rounding_in_subtree_finds_no_empty_slot() -> None:
    ulp = np.spacing(1.0)
    right, left = 1.5 * ulp, 1 + 2 * ulp
    tree = SumTree(4 * TOP_NODES * BLOCK)
    last = 4 * TOP_NODES * BLOCK - 1
    before = last - 2 * BLOCK
    tree.set(np.array([last, before]), np.array([right, left]))  # the blocks beside theirs are empty
    just_below = np.nextafter(tree.total, 0)
    assert just_below - right == left  # as much is left as the left half has, though the number is below the total
    slots, values = tree.find(np.array([just_below, 0.0]))
    assert (slots.tolist(), values.tolist()) == ([last, before], [right, left])


def test_sum_tree_rounding_in_block_finds_no_empty_slot() -> None:
    half_ulp = np.spacing(1.0) / 2
    values = np.array([1.0, 0.0, 0.0, 0.0, half_ulp, half_ulp, 0.0, 0.0])
    tree = made_at_once(values)
    assert tree.total > values.cumsum()[-1] == 1.0  # the order of adding matters here
    found, held = tree.find(np.array([1.0]))
    assert held.tolist() == tree.get(found).tolist() != [0.0]


def test_sum_tree_find_sorts_and_does_not_change_its_argument() -> None:
    tree = made_at_once(np.arange(1.0, 4.0))
    asked = np.array([5.5, 0.5, 3.5, 1.0])
    one_by_one = [tree.find(np.array([number]))[0].item() for number in sorted(asked)]
    np.testing.assert_array_equal(tree.find(asked)[0], one_by_one)
    assert asked.tolist() == [5.5, 0.5, 3.5, 1.0]


def test_sum_tree_copies_slots() -> None:
    tree, slots = SumTree(5000), np.array([3, 4999])
    tree.set(slots, np.array([1.0, 2.0]))
    slots[...] = 0
    assert tree.total == 3.0


def test_sum_tree_empty_find_raises() -> None:
    tree = SumTree(5)
    assert (tree.total, tree.min) == (0.0, np.inf)
    with pytest.raises(ValueError, match="every slot is empty"):
        tree.find(np.zeros(1))
    with pytest.raises(ValueError, match="at least one slot"):
        SumTree(0)


def test_sum_tree_accepts_no_rows() -> None:
    tree = SumTree(2)
    tree.set_run(0, np.array([1.0, 1.0]))
    tree.set(np.zeros(0, np.int64), np.zeros(0))
    tree.set_run(1, np.zeros(0))
    assert [found.shape for found in tree.find(np.zeros(0))] == [(0,), (0,)]
    assert tree.total == 2.0


def test_smallest_positive_is_exact() -> None:
    rng = np.random.default_rng(0)
    values = np.zeros(3 * BOUND_BLOCK + 5)
    smallest = SmallestPositive(values)
    for turn in range(400):
        indices = rng.integers(0, len(values), 7)
        written = rng.choice([0.0, 1e-3, 1.0, 5.0], 7) * rng.random(7) * (turn + 1)
        values[indices] = written
        smallest.note(indices, written)
        if turn % 3 == 0:
            lowest = int(np.where(values > 0, values, np.inf).argmin())
            values[lowest] = 9.0
            smallest.note_run(lowest, values[lowest : lowest + 1])
        if turn % 2 == 0:
            assert smallest.find() == values[values > 0].min()
