"""How samplers draw, and the library's buffers, their thin faces, against a model and with wrong calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp.errors import CheckpointError
from rlexp.replay import NStepConfig, PrioritizedReplayBuffer, ReplayBuffer
from rlexp.replay.rows import RowRing
from rlexp.replay.samplers import PrioritizedSampler, Sampler
from rlexp.replay.storage.frames import FrameStorage
from rlexp.sample_batch import ACTIONS, IMPORTANCE_WEIGHTS, KEYS, REWARDS, Array, SampleBatch
from tests.lab.checkpoints import in_memory

AnyBuffer = ReplayBuffer | PrioritizedReplayBuffer
MakeBuffer = Callable[..., AnyBuffer]

both = pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer])
"""The buffers of the replay library in the memory of one process."""

COLUMNS = {
    "obs": ((2,), np.float32),
    "action": ((), np.int8),
    "number": ((), np.int64),
    "picture": ((3, 40), np.uint8),
    "done": ((1,), bool),
}


def rows_of(numbers: Array) -> dict[str, Array]:
    """Return the rows ``[B]`` of these numbers."""
    return {
        "obs": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "action": (numbers % 100).astype(np.int8),
        "number": numbers,
        "picture": np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (len(numbers), 3, 40)),
        "done": (numbers % 2 == 0)[:, None],
    }


def rows(first: int, count: int) -> dict[str, Array]:
    return rows_of(np.arange(first, first + count))


def check_rows(batch: dict[str, Array]) -> None:
    for name, expected in rows_of(batch["number"]).items():
        np.testing.assert_array_equal(batch[name], expected)
        assert batch[name].dtype == expected.dtype


@both
@given(capacity=st.integers(1, 12), counts=st.lists(st.integers(0, 15), min_size=1, max_size=8))
def test_buffer_holds_newest_rows(make: MakeBuffer, capacity: int, counts: list[int]) -> None:
    buffer, added = make(capacity, COLUMNS, seed=0), 0
    for count in counts:
        keys = buffer.add(**rows(added, count))
        assert keys.tolist() == list(range(added, added + count))
        added += count
    held = list(range(max(added - capacity, 0), added))
    assert (len(buffer), buffer.get_stored_size(), buffer.get_buffer_size()) == (len(held), len(held), capacity)
    everything = buffer.get_all_transitions()
    assert everything.keys() == COLUMNS.keys()
    assert everything["number"].tolist() == held
    check_rows(everything)
    assert sorted(buffer.get_all_transitions(shuffle=True)["number"].tolist()) == held
    if held:
        batch = buffer.sample(60 * len(held))
        check_rows(batch)
        np.testing.assert_array_equal(batch["keys"], batch["number"])
        assert len(set(batch["keys"].tolist())) >= len(held) - 3  # each is missed with probability e^-60
        np.testing.assert_array_equal(batch["weights"], np.ones(len(batch["keys"]), np.float32))


@both
def test_buffer_adds_single_transitions_of_plain_numbers(make: MakeBuffer) -> None:
    buffer = make(3, {"obs": ((2,), np.float32), "action": ((), np.uint8), "done": ((), bool)})
    keys = [buffer.add(obs=[number, 0.5], action=number, done=number > 1).tolist() for number in range(4)]
    assert keys == [[0], [1], [2], [3]]
    assert {name: column.tolist() for name, column in buffer.get_all_transitions().items()} == {
        "obs": [[1, 0.5], [2, 0.5], [3, 0.5]],
        "action": [1, 2, 3],
        "done": [False, True, True],
    }


@both
def test_buffer_copies_what_it_gets_and_returns(make: MakeBuffer) -> None:
    buffer, numbers = make(4, {"number": ((), np.int64)}), np.arange(4)
    buffer.add(number=numbers)
    numbers[:] = 77
    for taken in (buffer.sample(50)["number"], buffer.get_all_transitions()["number"]):
        assert taken.max() < 4
        taken[:] = 88
    assert buffer.get_all_transitions()["number"].tolist() == [0, 1, 2, 3]


@both
def test_buffer_shuffles_all_transitions(make: MakeBuffer) -> None:
    buffer = make(50, COLUMNS, seed=1)
    buffer.add(**rows(0, 50))
    shuffled = buffer.get_all_transitions(shuffle=True)
    check_rows(shuffled)
    assert shuffled["number"].tolist() != list(range(50))


@both
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"obs": None}, "missing: obs"),
        ({"extra": [1]}, r"unknown: extra"),
        ({"obs": [[1.0, 2.0, 3.0]]}, r"column obs: .*shape \[1, 3\].*\[2\].*\[B, 2\]"),
        ({"obs": 1.0}, r"column obs: .*shape \[\]"),
        ({"obs": [[1.0, 2.0]] * 2}, "different lengths"),
        ({"action": [128]}, "column action: 128 does not fit int8"),
        ({"action": [1.0]}, "column action: float64 does not become int8"),
        ({"done": [[1]]}, "column done: int64 does not become bool"),
        ({"obs": [[1e60, 0.0]]}, r"column obs: 1e\+60 does not fit float32"),
        ({"obs": [[None, 0.0]]}, "column obs: object"),
        ({"picture": np.full((1, 3, 40), -1)}, "column picture: -1 does not fit uint8"),
    ],
)
def test_buffer_refuses_rows_of_other_columns(make: MakeBuffer, changed: dict[str, Any], message: str) -> None:
    buffer = make(4, COLUMNS)
    buffer.add(**rows(0, 2))
    given = {name: column for name, column in {**rows(2, 1), **changed}.items() if column is not None}
    with pytest.raises(ValueError, match=message):
        buffer.add(**given)
    assert buffer.get_all_transitions()["number"].tolist() == [0, 1]


@both
def test_buffer_keeps_values_that_are_not_finite(make: MakeBuffer) -> None:
    buffer = make(4, {"obs": ((), np.float32)})
    buffer.add(obs=[np.nan, np.inf, 0.1])
    np.testing.assert_array_equal(buffer.get_all_transitions()["obs"], np.array([np.nan, np.inf, 0.1], np.float32))


@both
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "at least one column"),
        ({"keys": ((), np.int64)}, "'keys'"),
        ({"priorities": ((), np.int64)}, "'priorities'"),
        ({"a b": ((), np.int64)}, "identifiers"),
        ({"obs": ((0,), np.int64)}, "column obs: every size"),
        ({"obs": ((), object)}, "column obs: a dtype.*object"),
        ({"obs": ((), "U5")}, "column obs: a dtype"),
    ],
)
def test_buffer_refuses_impossible_columns(make: MakeBuffer, columns: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(4, columns)


@both
def test_buffer_refuses_impossible_sizes(make: MakeBuffer) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        make(0, COLUMNS)
    buffer = make(2, COLUMNS)
    with pytest.raises(ValueError, match="empty buffer"):
        buffer.sample(1)
    buffer.add(**rows(0, 1))
    with pytest.raises(ValueError, match="at least one row, not 0"):
        buffer.sample(0)


@given(
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add_without", "update", "clear"]), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    ),
)
def test_prioritized_weights_are_those_of_a_model(alpha: float, steps: list[tuple[str, int]]) -> None:
    """Weights are (min p / p)^(alpha beta), of the priorities that a dict of all rows held has."""
    eps, rng, given_keys = 0.25, np.random.default_rng(0), [0]
    buffer = PrioritizedReplayBuffer(5, {"number": ((), np.int64)}, alpha=alpha, eps=eps, seed=0)
    model: dict[int, float] = {}
    highest = 1.0
    for step, count in steps:
        priorities = rng.integers(0, 9, count) / 2.0
        if step == "clear":
            buffer.clear()
            model, highest = {}, 1.0
            assert len(buffer) == 0
        elif step == "update":
            keys = rng.choice(given_keys, count, replace=True)
            dropped = buffer.update_priorities(keys, priorities)
            assert dropped == sum(key not in model for key in keys.tolist())
            for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
                if key in model:
                    model[key] = priority + eps
                    highest = max(highest, priority + eps)
        else:
            has_priorities = step == "add"
            keys = buffer.add(number=np.zeros(count, np.int64), priorities=priorities if has_priorities else None)
            new = priorities + eps if has_priorities else np.full(count, highest)
            model |= dict(zip(keys.tolist(), new.tolist(), strict=True))
            model = dict(list(model.items())[-5:])
            highest = max([highest, *new.tolist()])
            given_keys += keys.tolist()
        if model:
            batch = buffer.sample(64, beta=0.5)
            expected = [(min(model.values()) / model[key]) ** (alpha / 2) for key in batch["keys"].tolist()]
            np.testing.assert_allclose(batch["weights"], expected, rtol=1e-6)
            assert batch["weights"].dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, -1e-7])
def test_prioritized_refuses_bad_priorities(bad: float) -> None:
    buffer = PrioritizedReplayBuffer(3, COLUMNS, seed=0)
    buffer.add(**rows(0, 1), priorities=2.0)
    with pytest.raises(ValueError, match="priority of row 1 is"):
        buffer.add(**rows(1, 2), priorities=[1.0, bad])
    with pytest.raises(ValueError, match="finite and not negative"):
        buffer.update_priorities([0], [bad])
    with pytest.raises(ValueError, match=r"shape \[3\] for 2 rows"):
        buffer.add(**rows(1, 2), priorities=[1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="whole numbers"):
        buffer.update_priorities([0.5], [1.0])
    assert buffer.sample(1)["keys"].tolist() == [0]


@pytest.mark.parametrize(("wrong", "message"), [({"alpha": 1.5}, "alpha is 1.5"), ({"eps": -1.0}, "eps is -1")])
def test_prioritized_refuses_bad_exponents(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrioritizedReplayBuffer(3, COLUMNS, **wrong)  # type: ignore[arg-type]


STEP = {"obs": ((), np.int64), "rewards": ((), np.float32), "terminated": ((), bool), "new_obs": ((), np.int64)}


def test_buffer_stores_n_step_transitions_of_episodes() -> None:
    buffer = ReplayBuffer(10, STEP, n_step=NStepConfig(2, gamma=0.5))
    for number, terminated in enumerate([False, True, False, False]):
        buffer.add(obs=number, rewards=2.0**number, terminated=terminated, new_obs=number + 1)
    assert len(buffer) == 3
    assert buffer.on_episode_end().tolist() == [3]
    assert buffer.on_episode_end().tolist() == []
    assert {name: column.tolist() for name, column in buffer.get_all_transitions().items()} == {
        "obs": [0, 1, 2, 3],
        "rewards": [2.0, 2.0, 8.0, 8.0],
        "discounts": [0.0, 0.0, 0.25, 0.5],
        "new_obs": [2, 2, 4, 4],
    }
    with pytest.raises(ValueError, match="NStepFold"):
        PrioritizedReplayBuffer(3, STEP, n_step=NStepConfig(2, 0.5)).add(
            obs=0, rewards=1.0, terminated=False, new_obs=1, priorities=1.0
        )


def clear(buffer: AnyBuffer, folder: Path) -> None:
    buffer.clear()


def save_and_load(buffer: AnyBuffer, folder: Path) -> None:
    buffer.save(folder / "replay.npz")
    buffer.load(folder / "replay.npz")


@both
@pytest.mark.parametrize("replace_rows", [clear, save_and_load])
def test_no_transition_begins_before_the_rows_were_replaced(
    make: MakeBuffer, replace_rows: Callable[[AnyBuffer, Path], None], tmp_path: Path
) -> None:
    buffer = make(10, STEP, n_step=NStepConfig(3, gamma=0.5))
    for number in (100, 101):
        buffer.add(obs=number, rewards=1.0, terminated=False, new_obs=number + 1)
    replace_rows(buffer, tmp_path)
    for number in (0, 1, 2):
        buffer.add(obs=number, rewards=1.0, terminated=False, new_obs=number + 1)
    rows = buffer.get_all_transitions()
    assert (rows["obs"].tolist(), rows["new_obs"].tolist(), rows["rewards"].tolist()) == ([0], [3], [1.75])


def numbered(count: int) -> SampleBatch:
    return SampleBatch({ACTIONS: np.arange(count)})


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


def test_prioritized_weights_can_be_normalized_over_the_batch() -> None:
    sampler = PrioritizedSampler(RowRing(3, FrameStorage(3)), 1.0, "batch")
    sampler.add(numbered(3), np.array([1e-9, 1.0, 4.0]))
    weights = weight_of(sampler.sample(50, 0.5, np.random.default_rng(0)))
    assert weights == pytest.approx({1: 1.0, 2: 0.5})  # the row of 1e-9 was not drawn


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-9])
def test_prioritized_sampler_refuses_invalid_priorities(bad: float) -> None:
    sampler = make_sampler(4, alpha=0.6)
    sampler.add(numbered(2), np.array([1.0, 3.0]))
    before = in_memory(sampler.state())
    with pytest.raises(ValueError, match="priority of row 1 is"):
        sampler.add(numbered(3), np.array([1.0, bad, bad]))
    with pytest.raises(ValueError, match="priority of row 0 is"):
        sampler.update_priorities(np.array([1, 0]), np.array([bad, 1.0]))
    np.testing.assert_equal(in_memory(sampler.state()), before)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_prioritized_draws_follow_priorities_after_many_updates(alpha: float) -> None:
    capacity, rng = 5000, np.random.default_rng(7)
    sampler, priorities = make_sampler(capacity, alpha), np.zeros(capacity)
    for turn in range(800):
        new, given = int(rng.integers(1, 200)), 10.0 ** rng.uniform(-3, 3, 200)
        slots = np.arange(sampler.rows.num_added, sampler.rows.num_added + new) % capacity
        sampler.add(numbered(new), given[:new])
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
    sampler.add(numbered(4), priorities)
    pairs = np.array([np.sort(sampler.sample(2, 1.0, rng)[KEYS]) for _ in range(5000)])
    chances = np.outer(priorities, priorities) / priorities.sum() ** 2
    both_orders = np.triu(chances) + np.tril(chances, -1).T
    counts = np.bincount(pairs[:, 0] * 4 + pairs[:, 1], minlength=16)
    assert follows(counts, both_orders.ravel())


def test_prioritized_refuses_a_state_of_other_alpha_or_with_other_priorities() -> None:
    state = in_memory(make_sampler(4, alpha=0.6).state())
    with pytest.raises(CheckpointError, match=r"alpha 0\.6 does not fit alpha 0\.5"):
        make_sampler(4, alpha=0.5).load(state)
    with pytest.raises(CheckpointError, match="1 priorities for 0 rows"):
        make_sampler(4, alpha=0.6).load({**state, "priorities_to_alpha": np.ones(1)})


def test_sampler_that_loads_an_empty_state_takes_any_columns() -> None:
    sampler = make_sampler(3, alpha=0.6)
    sampler.add(numbered(2))
    sampler.load(in_memory(make_sampler(3, alpha=0.6).state()))
    assert sampler.rows.size == 0
    sampler.add(SampleBatch({REWARDS: np.zeros(1)}))
    assert sampler.rows.size == 1


def test_uniform_draws_equally_often() -> None:
    sampler = Sampler(RowRing(100, FrameStorage(100)))
    with pytest.raises(ValueError, match="nothing to sample"):
        sampler.sample(1, 1.0, np.random.default_rng(0))
    sampler.add(numbered(130), np.full(130, np.nan))
    assert sampler.update_priorities(np.array([0, 129, 10**9]), np.array([np.nan, 1.0, 1.0])) == 0
    drawn = sampler.sample(100_000, 1.0, np.random.default_rng(0))[KEYS] - 30
    assert follows(np.bincount(drawn, minlength=100), np.full(100, 0.01))
